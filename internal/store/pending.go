package store

import (
	"context"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// StorePending keeps the issued certificate and its recovery token in the
// pending slot, replacing unused ones, as nodeapi.Store says. The same
// certificate again changes nothing. The claim must still be the key's: it may
// have been replaced while the certificate was being issued.
func (s *Store) StorePending(ctx context.Context, n nodeapi.NewIdentity) (int64, error) {
	var sequence int64
	err := s.write(ctx, "storing the certificate of node "+n.NodeID, func(ctx context.Context, u *unit) (err error) {
		sequence, err = u.storePending(ctx, n)
		return err
	})
	return sequence, err
}

func (u *unit) storePending(ctx context.Context, n nodeapi.NewIdentity) (int64, error) {
	node, err := u.lockNode(ctx, n.NodeID)
	switch {
	case err != nil:
		return 0, err
	case node.State.Refusing():
		return 0, errRemoved()
	case node.Incarnation != n.Incarnation:
		return 0, errIdentity(schema.ReasonIdentityMismatch, "the certificate is for another incarnation of the node")
	case node.Locked:
		return 0, errLocked(node.Host)
	}
	facts, err := u.PendingFacts(ctx, pendingQuestion(n))
	switch {
	case err != nil:
		return 0, err
	case facts.Stored >= 0:
		return facts.Stored, nil
	}
	if err := checkHolder(n, facts); err != nil {
		return 0, err
	}
	if err := u.later.ReplacePending(ctx, n.NodeID); err != nil {
		return 0, err
	}
	if err := u.insertRecovery(ctx, n); err != nil {
		return 0, err
	}
	sequence := node.IdentitySequence + 1
	if err := u.later.SetSequence(ctx, n.NodeID, sequence); err != nil {
		return 0, err
	}
	u.note(audit.Event{
		Stream: n.NodeID, Actor: nodeActor(n.NodeID), Action: audit.IdentityIssued, Target: n.NodeID,
		Result: audit.Succeeded, CorrelationID: n.CorrelationID,
		Detail: map[string]string{"serial": n.Cert.Serial, "issuer": n.Cert.Issuer, "spki": n.Cert.SPKI, "token_id": n.TokenID,
			"via": string(n.Via), "sequence": strconv.FormatInt(sequence, 10), "recovery_token_id": n.Recovery.TokenID},
	})
	if err := u.later.InsertPendingCertificate(ctx, pendingCertificate(n, sequence)); err != nil {
		return 0, err
	}
	return sequence, u.later.VoidRecoveryTokens(ctx, n.NodeID)
}

// pendingQuestion asks for what storing the certificate depends on.
func pendingQuestion(n nodeapi.NewIdentity) sqlc.PendingFactsParams {
	q := sqlc.PendingFactsParams{NodeID: n.NodeID, Serial: n.Cert.Serial, Incarnation: n.Incarnation, SPKI: n.Cert.SPKI,
		Purposes: purposes(trust.PurposeEnroll, trust.PurposeReissue)}
	if n.Via == trust.IssuedByRecover {
		q.Purposes = purposes(trust.PurposeRecover)
	}
	if schema.IsID(n.TokenID) {
		q.TokenID = &n.TokenID
	}
	return q
}

// checkHolder refuses a certificate whose claim is not its key's any more.
func checkHolder(n nodeapi.NewIdentity, facts sqlc.PendingFactsRow) error {
	gone := schema.NewError(schema.KindTokenConsumed, "the claim is not held by this key any more")
	switch {
	case n.Via == trust.IssuedByRenew && !facts.RenewalHeld:
		return gone.WithReason("claim_replaced")
	case n.Via != trust.IssuedByRenew && !facts.TokenHeld:
		return gone.WithReason("token_voided")
	}
	return nil
}

// insertRecovery stores the recovery token that goes with a new identity. Its
// life begins now when the caller sets none.
func (u *unit) insertRecovery(ctx context.Context, n nodeapi.NewIdentity) error {
	if n.Recovery.TokenID == "" {
		return nil
	}
	t := n.Recovery
	t.NodeID, t.Purpose = n.NodeID, trust.PurposeRecover
	if t.ExpiresAt.IsZero() {
		t.ExpiresAt = time.Now().Add(trust.RecoveryTokenTTL)
	}
	return u.insertToken(ctx, t, n.Incarnation)
}

func pendingCertificate(n nodeapi.NewIdentity, sequence int64) sqlc.InsertPendingCertificateParams {
	c := n.Cert
	return sqlc.InsertPendingCertificateParams{
		NodeID: n.NodeID, Serial: c.Serial, Incarnation: n.Incarnation, Subject: c.Subject, URI: c.URI, Issuer: c.Issuer,
		Fingerprint: c.Fingerprint, SPKI: c.SPKI, NotBefore: c.NotBefore, NotAfter: c.NotAfter,
		TokenID: nonEmpty(n.TokenID), Via: n.Via, Sequence: sequence, RecoveryTokenID: nonEmpty(n.Recovery.TokenID),
	}
}

// nonEmpty is a text as a nullable column takes it.
func nonEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
