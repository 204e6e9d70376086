package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

const (
	// maxAsked bounds the identities of one read.
	maxAsked = 256
	// askedWindow is how long one waits at most for the read before.
	askedWindow = 20 * time.Millisecond
)

// claimant is an identity that is looked up, and what was found.
type claimant struct {
	nodeID, serial string
	row            *sqlc.IdentityFactsRow // nil for a node that is not there
}

// newAsked gathers the identities that come while others are looked up.
func newAsked() *gathering[claimant] {
	return &gathering[claimant]{window: askedWindow, eager: true, most: maxAsked}
}

// lookUp reads what is on record of identities.
func (s *Store) lookUp(ctx context.Context, all []*claimant) error {
	ids, serials := make([]string, len(all)), make([]string, len(all))
	for i, c := range all {
		ids[i], serials[i] = c.nodeID, c.serial
	}
	var rows []sqlc.IdentityFactsRow
	err := s.read(ctx, "checking identities", func(ctx context.Context) (err error) {
		rows, err = s.q.IdentityFacts(ctx, trust.InFlight.Seconds(), ids, serials)
		return err
	})
	found := make(map[[2]string]*sqlc.IdentityFactsRow, len(rows))
	for i, r := range rows {
		found[[2]string{r.NodeID, r.Serial}] = &rows[i]
	}
	for _, c := range all {
		c.row = found[[2]string{c.nodeID, c.serial}]
	}
	return err
}

// facts reads what is on record of one identity, together with others.
func (s *Store) facts(ctx context.Context, nodeID, serial string) (row sqlc.IdentityFactsRow, err error) {
	unknown := errIdentity(schema.ReasonIdentityMismatch, "the certificate names no node of this system")
	if !schema.IsID(nodeID) {
		return row, unknown
	}
	c := &claimant{nodeID: strings.ToLower(nodeID), serial: cleanText(serial)}
	if err := s.asked.bring(ctx, c, s.lookUp); err != nil {
		return row, interpretError(err, s.address, "checking the identity of node "+nodeID)
	}
	if c.row == nil {
		return row, unknown
	}
	return *c.row, nil
}

// Authenticate checks a caller's certificate facts against the node's row, as
// nodeapi.Store says. An accepted caller costs one read, which also tells whether
// there is a task to ask for; a refusal is put on
// record at most once a minute per node and reason.
func (s *Store) Authenticate(ctx context.Context, id trust.Identity, cert trust.CertFacts) (nodeapi.Caller, error) {
	doing := "checking the identity of node " + id.NodeID
	stream := id.NodeID
	row, err := s.facts(ctx, id.NodeID, cert.Serial)
	if row.NodeID == "" {
		stream = audit.SystemStream
	} else {
		err = checkIdentity(row, id, cert)
	}
	switch {
	case err != nil && schema.AsError(err).Reason == schema.ReasonSerialSuperseded && usedAndOver(row):
		return nodeapi.Caller{}, s.lockCopies(ctx, doing, id, cert)
	case err != nil:
		return nodeapi.Caller{}, s.recordRefusal(ctx, doing, stream, id, cert, err)
	}
	caller := nodeapi.Caller{NodeID: id.NodeID, Incarnation: row.Incarnation, Host: row.Host, State: row.State,
		Serial: cert.Serial, HasPolled: row.PolledIncarnation == row.Incarnation, VerifierSet: row.SetVersion, Idle: row.Idle}
	if *row.Slot == slotCurrent {
		return caller, nil
	}
	if err := s.promote(ctx, id, cert); err != nil {
		return nodeapi.Caller{}, err
	}
	return caller, nil
}

// checkIdentity compares a caller's certificate with what the node's row says.
func checkIdentity(row sqlc.IdentityFactsRow, id trust.Identity, cert trust.CertFacts) error {
	switch {
	case row.State.Refusing():
		return errRemoved()
	case row.Incarnation != id.Incarnation:
		return errIdentity(schema.ReasonIdentityMismatch, "the certificate is for another incarnation of the node")
	case row.Locked:
		return errLocked(row.Host)
	case row.Slot == nil:
		return errSuperseded()
	case *row.Fingerprint != "" && cert.Fingerprint != "" && *row.Fingerprint != cert.Fingerprint:
		return errIdentity(schema.ReasonIdentityMismatch, "the certificate is not the one that was issued under its serial")
	case *row.Slot != slotCurrent && *row.Slot != slotPending:
		return errSuperseded()
	}
	return nil
}

// usedAndOver reports whether the certificate was the node's until its
// successor was used, and no request made before that can still be on its way:
// who shows it has a copy. One that was replaced before its first use is what a
// lost answer leaves, and says nothing.
func usedAndOver(row sqlc.IdentityFactsRow) bool {
	return row.Slot != nil && *row.Slot == slotRetired && !row.InFlight
}

// lockCopies locks the identity of a node whose replaced certificate was shown.
func (s *Store) lockCopies(ctx context.Context, doing string, id trust.Identity, cert trust.CertFacts) error {
	return s.write(ctx, doing, func(ctx context.Context, u *unit) error {
		current, err := u.CurrentCertificate(ctx, id.NodeID)
		if err != nil && !notFound(err) {
			return err
		}
		return refuseClone(clone{id.NodeID, id.Incarnation, cloneOfSerial}, audit.Event{
			Stream: id.NodeID, Actor: nodeActor(id.NodeID), Target: id.NodeID,
			Detail: map[string]string{"serial": cert.Serial, "current_serial": current.Serial, "uri": id.URI()},
		})
	})
}

// promote makes the pending certificate the current one at its first use. What
// it was bought with is consumed, and its recovery token is the only one left.
func (s *Store) promote(ctx context.Context, id trust.Identity, cert trust.CertFacts) error {
	return s.write(ctx, "promoting the certificate of node "+id.NodeID, func(ctx context.Context, u *unit) error {
		node, err := u.lockNode(ctx, id.NodeID)
		if err != nil {
			return err
		}
		c, err := u.GetCertificate(ctx, id.NodeID, cert.Serial)
		if err != nil {
			return err
		}
		if err := checkIdentity(sqlc.IdentityFactsRow{Host: node.Host, State: node.State, Incarnation: node.Incarnation, Locked: node.Locked,
			Slot: &c.Slot, Fingerprint: new(string)}, id, cert); err != nil || c.Slot == slotCurrent {
			return err // another request was first
		}
		retired, err := u.RetireCertificates(ctx, id.NodeID, []string{slotCurrent})
		if err != nil {
			return err
		}
		if err := u.later.PromoteCertificate(ctx, id.NodeID, cert.Serial); err != nil {
			return err
		}
		if err := u.later.ConsumeTokens(ctx, id.NodeID, c.TokenID, c.Incarnation); err != nil {
			return err
		}
		detail := map[string]string{"serial": cert.Serial}
		for _, serial := range retired {
			detail["replaces"] = serial
		}
		if c.TokenID != nil {
			detail["token_id"] = *c.TokenID
		}
		u.note(audit.Event{Stream: id.NodeID, Actor: nodeActor(id.NodeID), Action: audit.IdentityActive,
			Target: id.NodeID, Result: audit.Succeeded, Detail: detail})
		return u.later.VoidRecoveryTokens(ctx, id.NodeID)
	})
}

// recordRefusal returns the refusal, after it was put on record unless the same
// one was within the last minute. Failures of another kind pass as they are.
func (s *Store) recordRefusal(ctx context.Context, doing, stream string, id trust.Identity, cert trust.CertFacts, refused error) error {
	cause, ok := errors.AsType[*schema.Error](refused)
	if !ok || cause.Kind != schema.KindInvalidNodeIdentity || !schema.IsID(id.NodeID) {
		return refused
	}
	err := s.write(ctx, doing, func(ctx context.Context, u *unit) error {
		rows, err := u.RecordRefusal(ctx, id.NodeID, cause.Reason)
		if rows > 0 {
			u.note(audit.Event{Stream: stream, Actor: nodeActor(id.NodeID), Action: audit.IdentityRefused,
				Target: id.NodeID, Result: audit.Refused, Reason: cause.Reason,
				Detail: map[string]string{"serial": cert.Serial, "uri": id.URI()}})
		}
		return err
	})
	if err != nil {
		return err
	}
	return cause
}

// RecordPoll records an authenticated poll. The first one of an incarnation makes
// the event that whoever waits for it hears: a reissue, an enrolment, or both
// when the reissue came while the enrolment was open. Every later one costs
// nothing, but for the one that names another verifier set than the one before.
func (s *Store) RecordPoll(ctx context.Context, c nodeapi.Caller, set int64) error {
	if c.VerifierSet != set {
		err := s.read(ctx, "noting the verifier set of node "+c.NodeID, func(ctx context.Context) error {
			return s.q.SetNodeSet(ctx, set, c.NodeID, c.Incarnation)
		})
		if err != nil {
			return err
		}
	}
	if c.HasPolled {
		return nil
	}
	return s.write(ctx, "recording the first poll of node "+c.NodeID, func(ctx context.Context, u *unit) error {
		rows, err := u.RecordPoll(ctx, c.NodeID, c.Incarnation)
		if err != nil || rows == 0 {
			return err
		}
		reissued, err := u.IncarnationReissued(ctx, c.NodeID, c.Incarnation)
		if err != nil {
			return err
		}
		return u.tellEnrolment(ctx, c.NodeID, c.Incarnation, reissued, lifecycle.EventFirstPoll)
	})
}

func errIdentity(reason, message string) error {
	return schema.NewError(schema.KindInvalidNodeIdentity, "%s", message).WithReason(reason)
}

func errSuperseded() error {
	return errIdentity(schema.ReasonSerialSuperseded, "the certificate was replaced by a newer one")
}

func errRemoved() error { return errIdentity(schema.ReasonNodeRemoved, "the node was removed") }
