package store

import (
	"context"
	"errors"

	"github.com/gpuaas/gpuaas/schema/task"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// facts reads the row of one identity.
func (s *Identities) facts(ctx context.Context, nodeID, serial string) (sqlc.IdentityFactsRow, error) {
	unknown := errIdentity(schema.ReasonIdentityMismatch, "the certificate names no node of this system")
	if !schema.IsID(nodeID) {
		return sqlc.IdentityFactsRow{}, unknown
	}
	return query(ctx, s.db, "checking the identity of node "+nodeID, func(ctx context.Context) (sqlc.IdentityFactsRow, error) {
		row, err := s.db.q.IdentityFacts(ctx, trust.InFlight.Seconds(), cleanText(serial), nodeID)
		return row, orMissing(err, unknown)
	})
}

// Authenticate checks a caller's certificate facts against the node's row, as
// nodeapi.Identities specifies. An accepted caller costs one read, which also reports
// whether the node has a task to dispatch. A refusal is audited at most once a
// minute per node and reason.
func (s *Identities) Authenticate(ctx context.Context, id trust.Identity, cert trust.CertFacts) (nodeapi.Caller, error) {
	doing := "checking the identity of node " + id.NodeID
	stream := id.NodeID
	row, err := s.facts(ctx, id.NodeID, cert.Serial)
	if row.NodeID == "" {
		stream = audit.SystemStream
	} else {
		err = checkIdentity(row, id, cert)
	}
	if aheadOfDatabase(row, id) {
		adopted, adoptErr := adoptNewer(ctx, s.db, id, cert)
		if adoptErr != nil {
			return nodeapi.Caller{}, adoptErr
		}
		if adopted {
			if row, err = s.facts(ctx, id.NodeID, cert.Serial); err == nil {
				err = checkIdentity(row, id, cert)
			}
		}
	}
	switch {
	case err != nil && schema.AsError(err).Reason == schema.ReasonSerialSuperseded && wasCurrent(row):
		return nodeapi.Caller{}, lockCloned(ctx, s.db, doing, id, cert)
	case err != nil:
		return nodeapi.Caller{}, s.recordRefusal(ctx, doing, stream, id, cert, err)
	}
	caller := nodeapi.Caller{NodeID: id.NodeID, Incarnation: row.Incarnation, Host: row.Host, State: row.State,
		Serial: cert.Serial, Session: row.PollSession, Contested: row.PollContested, HasPolled: row.PolledIncarnation == row.Incarnation, Idle: row.Idle,
		VerifierSet: trust.VerifierSetRef{Version: row.SetVersion, Hash: row.SetHash}, CABundle: row.CaBundle,
		Floors: task.Floors{TaskSeq: row.TaskSeq, IdentitySequence: row.IdentitySequence}}
	if *row.Slot == slotCurrent {
		return caller, nil
	}
	if err := promote(ctx, s.db, id, cert); err != nil {
		return nodeapi.Caller{}, err
	}
	return caller, nil
}

// aheadOfDatabase reports whether the certificate may have been issued after the time to
// which the database was restored.
func aheadOfDatabase(row sqlc.IdentityFactsRow, id trust.Identity) bool {
	return row.NodeID != "" && !row.State.Refusing() && !row.Locked &&
		(row.Incarnation < id.Incarnation || row.Incarnation == id.Incarnation && row.Slot == nil)
}

// checkIdentity compares a caller's certificate with the node's row.
func checkIdentity(row sqlc.IdentityFactsRow, id trust.Identity, cert trust.CertFacts) error {
	switch {
	case row.State.Refusing():
		return errRemoved()
	case row.Incarnation != id.Incarnation:
		return errIdentity(schema.ReasonIdentityMismatch, "the certificate is for another incarnation of the node")
	case row.Locked:
		return errLocked(row.Host, row.IdentityLockReason)
	case row.Slot == nil:
		return errSuperseded()
	case *row.Fingerprint != "" && cert.Fingerprint != "" && *row.Fingerprint != cert.Fingerprint:
		return errIdentity(schema.ReasonIdentityMismatch, "the certificate is not the one that was issued under its serial")
	case *row.Slot != slotCurrent && *row.Slot != slotPending:
		return errSuperseded()
	}
	return nil
}

// wasCurrent reports whether the certificate was in use until its successor was
// used, and no earlier request can still be in flight: the caller is a clone. A
// certificate that was replaced before its first use follows a lost response and
// proves nothing.
func wasCurrent(row sqlc.IdentityFactsRow) bool {
	return row.Slot != nil && *row.Slot == slotRetired && !row.InFlight
}

// lockCloned locks the identity of a node whose retired certificate was used.
func lockCloned(ctx context.Context, db *db, doing string, id trust.Identity, cert trust.CertFacts) error {
	return db.write(ctx, doing, func(ctx context.Context, tx *tx) error {
		current, err := tx.CurrentCertificate(ctx, id.NodeID)
		if err != nil && !postgres.NotFound(err) {
			return err
		}
		return refuseClone(clone{id.NodeID, id.Incarnation, trust.LockedBySerial}, nodeEvent(id.NodeID, audit.IdentityLocked, audit.Succeeded,
			map[string]string{"serial": cert.Serial, "current_serial": current.Serial, "uri": id.URI()}))
	})
}

// promote makes the pending certificate the current one at its first use. It
// consumes the token that paid for the certificate and voids the other recovery
// tokens.
func promote(ctx context.Context, db *db, id trust.Identity, cert trust.CertFacts) error {
	return db.write(ctx, "promoting the certificate of node "+id.NodeID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNode(ctx, id.NodeID)
		if err != nil {
			return err
		}
		c, err := tx.GetCertificate(ctx, id.NodeID, cert.Serial)
		if err != nil {
			return err
		}
		if err := checkIdentity(sqlc.IdentityFactsRow{Host: node.Host, State: node.State, Incarnation: node.Incarnation, Locked: node.Locked, IdentityLockReason: node.IdentityLockReason,
			Slot: &c.Slot, Fingerprint: new(string)}, id, cert); err != nil || c.Slot == slotCurrent {
			return err // a concurrent request promoted it
		}
		retired, err := tx.RetireCertificates(ctx, id.NodeID, []string{slotCurrent})
		if err != nil {
			return err
		}
		if err := tx.PromoteCertificate(ctx, id.NodeID, cert.Serial); err != nil {
			return err
		}
		if err := tx.ConsumeTokens(ctx, id.NodeID, c.TokenID, c.Incarnation); err != nil {
			return err
		}
		detail := map[string]string{"serial": cert.Serial}
		for _, serial := range retired {
			detail["replaces"] = serial
		}
		if c.TokenID != nil {
			detail["token_id"] = *c.TokenID
		}
		tx.note(nodeEvent(id.NodeID, audit.IdentityActive, audit.Succeeded, detail))
		return tx.VoidRecoveryTokens(ctx, id.NodeID)
	})
}

// recordRefusal audits the refusal, unless the same one was audited within the
// last minute, and returns it. It returns other errors unchanged.
func (s *Identities) recordRefusal(ctx context.Context, doing, stream string, id trust.Identity, cert trust.CertFacts, refused error) error {
	cause, ok := errors.AsType[*schema.Error](refused)
	if !ok || cause.Kind != schema.KindInvalidNodeIdentity || !schema.IsID(id.NodeID) {
		return refused
	}
	err := s.db.write(ctx, doing, func(ctx context.Context, tx *tx) error {
		e := nodeEvent(id.NodeID, audit.IdentityRefused, audit.Refused, map[string]string{"serial": cert.Serial, "uri": id.URI()})
		e.Stream, e.Reason = stream, cause.Reason
		_, err := noteLimited(ctx, tx, id.NodeID, cause.Reason, e)
		return err
	})
	if err != nil {
		return err
	}
	return cause
}

// RecordPoll records an authenticated poll. The first one of an incarnation signals the
// open enrollment or reissue. A later one writes only if it names another verifier
// set than the poll before, or counters above those on record.
func (s *Identities) RecordPoll(ctx context.Context, c nodeapi.Caller, poll wire.PollRequest) error {
	if err := raiseFloors(ctx, s.db, c, poll.Floors); err != nil {
		return err
	}
	if set := (trust.VerifierSetRef{Version: poll.VerifierSet, Hash: poll.VerifierSetHash}); c.VerifierSet != set {
		err := s.db.Call(ctx, "recording the verifier set of node "+c.NodeID, func(ctx context.Context) error {
			return s.db.q.SetNodeSet(ctx, sqlc.SetNodeSetParams{SetVersion: set.Version, SetHash: set.Hash, NodeID: c.NodeID, Incarnation: c.Incarnation})
		})
		if err != nil {
			return err
		}
	}
	if c.CABundle != poll.NodeCABundle {
		err := s.db.Call(ctx, "recording the CA bundle of node "+c.NodeID, func(ctx context.Context) error {
			return s.db.q.SetNodeCABundle(ctx, poll.NodeCABundle, c.NodeID, c.Incarnation)
		})
		if err != nil {
			return err
		}
	}
	if c.HasPolled {
		return nil
	}
	return s.db.write(ctx, "recording the first poll of node "+c.NodeID, func(ctx context.Context, tx *tx) error {
		rows, err := tx.RecordPoll(ctx, c.NodeID, c.Incarnation)
		if err != nil || rows == 0 {
			return err
		}
		reissued, err := tx.IncarnationReissued(ctx, c.NodeID, c.Incarnation)
		if err != nil {
			return err
		}
		return tx.signalEnrollment(ctx, c.NodeID, c.Incarnation, reissued, lifecycle.EventFirstPoll)
	})
}

func errIdentity(reason, message string) error {
	return schema.NewError(schema.KindInvalidNodeIdentity, "%s", message).WithReason(reason)
}

func errSuperseded() error {
	return errIdentity(schema.ReasonSerialSuperseded, "the certificate was replaced by a newer one")
}

func errRemoved() error { return errIdentity(schema.ReasonNodeRemoved, "the node was removed") }
