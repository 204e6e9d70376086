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

// StorePending stores the issued certificate and its recovery token in the pending
// slot and replaces unused ones, as nodeapi.Identities specifies. Storing the same
// certificate again is a no-op. The key must still hold the claim, which may have
// been replaced while the certificate was being issued.
func (s *Identities) StorePending(ctx context.Context, n nodeapi.NewIdentity) (int64, error) {
	return write(ctx, s.db, "storing the certificate of node "+n.NodeID, func(ctx context.Context, tx *tx) (int64, error) {
		return storePending(ctx, tx, n)
	})
}

func storePending(ctx context.Context, tx *tx, n nodeapi.NewIdentity) (int64, error) {
	node, err := tx.lockNode(ctx, n.NodeID)
	switch {
	case err != nil:
		return 0, err
	case node.State.Refusing():
		return 0, errRemoved()
	case node.Incarnation != n.Incarnation:
		return 0, errIdentity(schema.ReasonIdentityMismatch, "the certificate is for another incarnation of the node")
	case node.Locked:
		return 0, errLocked(node.Host, node.IdentityLockReason)
	}
	facts, err := tx.PendingFacts(ctx, pendingFactsParams(n))
	switch {
	case err != nil:
		return 0, err
	case facts.Stored >= 0:
		return facts.Stored, nil
	}
	if err := checkHolder(n, facts); err != nil {
		return 0, err
	}
	if err := tx.ReplacePending(ctx, n.NodeID); err != nil {
		return 0, err
	}
	if err := insertRecovery(ctx, tx, n, node.Now); err != nil {
		return 0, err
	}
	sequence := node.IdentitySequence + 1
	if err := tx.SetSequence(ctx, n.NodeID, sequence); err != nil {
		return 0, err
	}
	e := nodeEvent(n.NodeID, audit.IdentityIssued, audit.Succeeded, map[string]string{
		"serial": n.Cert.Serial, "issuer": n.Cert.Issuer, "spki": n.Cert.SPKI, "token_id": n.TokenID,
		"via": string(n.Via), "sequence": strconv.FormatInt(sequence, 10), "recovery_token_id": n.Recovery.TokenID})
	e.CorrelationID = n.CorrelationID
	tx.note(e)
	if err := tx.InsertPendingCertificate(ctx, pendingCertificate(n, sequence)); err != nil {
		return 0, err
	}
	return sequence, tx.VoidRecoveryTokens(ctx, n.NodeID)
}

// pendingFactsParams selects the facts that storing the certificate depends on.
func pendingFactsParams(n nodeapi.NewIdentity) sqlc.PendingFactsParams {
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

// checkHolder refuses a certificate whose key lost the claim.
func checkHolder(n nodeapi.NewIdentity, facts sqlc.PendingFactsRow) error {
	gone := schema.NewError(schema.KindTokenConsumed, "this key no longer holds the claim")
	switch {
	case n.Via == trust.IssuedByRenew && !facts.RenewalHeld:
		return gone.WithReason("claim_replaced")
	case n.Via != trust.IssuedByRenew && !facts.TokenHeld:
		return gone.WithReason("token_voided")
	}
	return nil
}

// insertRecovery stores the recovery token of a new identity. It expires after
// trust.RecoveryTokenTTL unless the caller sets a time.
func insertRecovery(ctx context.Context, tx *tx, n nodeapi.NewIdentity, now time.Time) error {
	if n.Recovery.TokenID == "" {
		return nil
	}
	t := n.Recovery
	t.NodeID, t.Purpose = n.NodeID, trust.PurposeRecover
	if t.ExpiresAt.IsZero() {
		t.ExpiresAt = now.Add(trust.RecoveryTokenTTL)
	}
	return tx.insertToken(ctx, t, n.Incarnation)
}

func pendingCertificate(n nodeapi.NewIdentity, sequence int64) sqlc.InsertPendingCertificateParams {
	c := n.Cert
	return sqlc.InsertPendingCertificateParams{
		NodeID: n.NodeID, Serial: c.Serial, Incarnation: n.Incarnation, Subject: c.Subject, URI: c.URI, Issuer: c.Issuer,
		Fingerprint: c.Fingerprint, SPKI: c.SPKI, NotBefore: c.NotBefore, NotAfter: c.NotAfter,
		TokenID: optional(n.TokenID), Via: n.Via, Sequence: sequence, RecoveryTokenID: optional(n.Recovery.TokenID),
	}
}

// optional is a value as a nullable column stores it: the zero value is NULL.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
