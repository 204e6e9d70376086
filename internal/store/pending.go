package store

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
)

// StorePending keeps the issued certificate and its recovery token in the
// pending slot, replacing unused ones, as nodeapi.Store says. The same
// certificate again changes nothing. The claim must still be the key's: it may
// have been replaced while the certificate was being issued.
func (s *Store) StorePending(ctx context.Context, n schema.NewIdentity) (int64, error) {
	var sequence int64
	err := s.write(ctx, "storing the certificate of node "+n.NodeID, func(ctx context.Context, u *unit) (err error) {
		sequence, err = u.storePending(ctx, n)
		return err
	})
	return sequence, err
}

func (u *unit) storePending(ctx context.Context, n schema.NewIdentity) (int64, error) {
	node, err := u.lockNode(ctx, n.NodeID)
	switch {
	case err != nil:
		return 0, err
	case node.State.Refusing():
		return 0, errRemoved()
	case node.Incarnation != n.Incarnation:
		return 0, errIdentity(schema.ReasonIdentityMismatch, "the certificate is for another incarnation of the node")
	case node.Locked:
		return 0, errLocked()
	}
	if c, err := u.GetCertificate(ctx, n.NodeID, n.Cert.Serial); !notFound(err) {
		return c.Sequence, err
	}
	if err := u.checkHolder(ctx, n); err != nil {
		return 0, err
	}
	if _, err := u.RetireCertificates(ctx, n.NodeID, []string{slotPending}); err != nil {
		return 0, err
	}
	if err := u.insertRecovery(ctx, n); err != nil {
		return 0, err
	}
	sequence, err := u.NextSequence(ctx, n.NodeID)
	if err != nil {
		return 0, err
	}
	u.note(schema.AuditEvent{
		Stream: n.NodeID, Actor: nodeActor(n.NodeID), Action: schema.AuditIdentityIssued, Target: n.NodeID,
		Result: schema.AuditSucceeded, CorrelationID: n.CorrelationID,
		Detail: map[string]string{"serial": n.Cert.Serial, "issuer": n.Cert.Issuer, "spki": n.Cert.SPKI, "token_id": n.TokenID,
			"via": string(n.Via), "sequence": strconv.FormatInt(sequence, 10), "recovery_token_id": n.Recovery.TokenID},
	})
	if err := u.InsertPendingCertificate(ctx, pendingCertificate(n, sequence)); err != nil {
		return 0, err
	}
	return sequence, u.VoidRecoveryTokens(ctx, n.NodeID)
}

// checkHolder refuses a certificate whose claim is not its key's any more.
func (u *unit) checkHolder(ctx context.Context, n schema.NewIdentity) error {
	gone := schema.NewError(schema.KindTokenConsumed, "the claim is not held by this key any more").WithReason("token_voided")
	if n.Via == schema.ViaRenew {
		c, err := u.CurrentCertificate(ctx, n.NodeID)
		if notFound(err) || err == nil && (c.RenewalSPKI == nil || *c.RenewalSPKI != n.Cert.SPKI) {
			return gone.WithReason("claim_replaced")
		}
		return err
	}
	if !schema.IsID(n.TokenID) {
		return gone
	}
	t, err := u.GetToken(ctx, n.TokenID)
	pays := []schema.TokenPurpose{schema.PurposeEnroll, schema.PurposeReissue}
	if n.Via == schema.ViaRecover {
		pays = []schema.TokenPurpose{schema.PurposeRecover}
	}
	if notFound(err) || err == nil && (t.State != tokenClaimed || t.NodeID != n.NodeID || t.Incarnation != n.Incarnation ||
		!slices.Contains(pays, t.Purpose) || t.ClaimedSPKI == nil || *t.ClaimedSPKI != n.Cert.SPKI) {
		return gone
	}
	return err
}

// insertRecovery stores the recovery token that goes with a new identity. Its
// life begins now when the caller sets none.
func (u *unit) insertRecovery(ctx context.Context, n schema.NewIdentity) error {
	if n.Recovery.TokenID == "" {
		return nil
	}
	t := n.Recovery
	t.NodeID, t.Purpose = n.NodeID, schema.PurposeRecover
	if t.ExpiresAt.IsZero() {
		t.ExpiresAt = time.Now().Add(schema.RecoveryTokenTTL)
	}
	return u.insertToken(ctx, t, n.Incarnation)
}

func pendingCertificate(n schema.NewIdentity, sequence int64) sqlc.InsertPendingCertificateParams {
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
