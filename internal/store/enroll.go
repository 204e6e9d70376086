package store

import (
	"context"
	"crypto/subtle"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
)

// Certificate slots and token states as the database spells them.
const (
	slotPending = "pending"
	slotCurrent = "current"

	tokenClaimed  = "claimed"
	tokenConsumed = "consumed"
	tokenVoided   = "voided"
)

// IssueToken voids the node's live tokens and unused certificates and stores a
// new token, as adminapi.Store says. When the identity of this incarnation was
// used already, the new token begins the next one, and the old identity is
// void.
func (s *Store) IssueToken(ctx context.Context, t schema.MintedToken, by schema.Subject) error {
	return s.write(ctx, "issuing an enrolment token for node "+t.NodeID, func(ctx context.Context, u *unit) error {
		node, err := u.lockNode(ctx, t.NodeID)
		if err != nil {
			return err
		}
		e := schema.AuditEvent{Stream: t.NodeID, Actor: by.Actor, Action: schema.AuditTokenIssued, Target: t.NodeID,
			Result: schema.AuditSucceeded, CorrelationID: by.CorrelationID,
			Detail: map[string]string{"token_id": t.TokenID, "purpose": string(t.Purpose), "from": string(node.State)}}
		if _, err := schema.CheckMove(schema.ActionEnroll, node.State); err != nil {
			return refuse(err, e)
		}
		incarnation, err := u.freshIncarnation(ctx, node)
		if err != nil {
			return err
		}
		if _, err := u.VoidTokens(ctx, t.NodeID); err != nil {
			return err
		}
		if err := u.InsertToken(ctx, sqlc.InsertTokenParams{TokenID: t.TokenID, NodeID: t.NodeID,
			Incarnation: incarnation, Purpose: t.Purpose, SecretHash: t.Hash, ExpiresAt: t.ExpiresAt}); err != nil {
			return err
		}
		if err := u.moveNode(ctx, node, schema.NodeBootstrapIssued); err != nil {
			return err
		}
		u.note(e)
		return u.tell(ctx, t.NodeID, incarnation, schema.EventBundleIssued)
	})
}

// freshIncarnation returns the incarnation a new token is for and voids what
// could still be used of an older one.
func (u *unit) freshIncarnation(ctx context.Context, n sqlc.LockNodeRow) (int64, error) {
	used, err := u.HasCurrentCertificate(ctx, n.NodeID)
	if err != nil {
		return 0, err
	}
	if _, err := u.RetireCertificates(ctx, n.NodeID, []string{slotPending, slotCurrent}); err != nil || !used {
		return n.Incarnation, err
	}
	return u.NextIncarnation(ctx, n.NodeID)
}

// moveNode puts the node into a state outside any operation.
func (u *unit) moveNode(ctx context.Context, n sqlc.LockNodeRow, to schema.NodeState) error {
	if n.State == to {
		return nil
	}
	_, err := u.SetNodeState(ctx, n.NodeID, n.OpSeq, to)
	return err
}

// ClaimToken claims a token for a key, as nodeapi.Store says.
func (s *Store) ClaimToken(ctx context.Context, c schema.TokenClaim) (schema.Claimed, error) {
	var claimed schema.Claimed
	err := s.write(ctx, "claiming an enrolment token", func(ctx context.Context, u *unit) (err error) {
		claimed, err = u.claimToken(ctx, c)
		return err
	})
	return claimed, err
}

func (u *unit) claimToken(ctx context.Context, c schema.TokenClaim) (schema.Claimed, error) {
	none, e := schema.Claimed{}, tokenEvent(c)
	token, node, err := u.findToken(ctx, c)
	if token.NodeID != "" {
		e.Stream, e.Target = token.NodeID, token.NodeID
	}
	if err != nil {
		return none, refuse(err, e)
	}
	won, err := u.ClaimToken(ctx, c.SPKI, c.TokenID, c.NodeID)
	if notFound(err) {
		return none, u.explainToken(ctx, c, e)
	}
	if err != nil {
		return none, err
	}
	if _, err := schema.CheckMove(schema.ActionEnroll, node.State); err != nil {
		return none, refuse(err, e) // which undoes the claim
	}
	claimed := schema.Claimed{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: won.Incarnation}
	if !won.First {
		return claimed, nil
	}
	if err := u.moveNode(ctx, node, schema.NodeEnrolling); err != nil {
		return none, err
	}
	e.Actor, e.Action, e.Result = nodeActor(c.NodeID), schema.AuditTokenClaimed, schema.AuditSucceeded
	u.note(e)
	return claimed, u.tell(ctx, c.NodeID, won.Incarnation, schema.EventTokenClaimed)
}

// findToken finds the token and locks its node. It refuses a token that is
// unknown, that shows another secret, that belongs to another node than the one
// it is presented for, or whose node was removed. An unknown id and a wrong
// secret look the same from outside.
func (u *unit) findToken(ctx context.Context, c schema.TokenClaim) (sqlc.GetTokenRow, sqlc.LockNodeRow, error) {
	var token sqlc.GetTokenRow
	unknown := schema.NewError(schema.KindUnauthenticated, "unknown enrolment token").WithReason("token_unknown")
	if !schema.IsID(c.TokenID) || c.SPKI == "" {
		return token, sqlc.LockNodeRow{}, unknown
	}
	token, err := u.GetToken(ctx, c.TokenID)
	if notFound(err) {
		return token, sqlc.LockNodeRow{}, unknown
	}
	if err != nil {
		return token, sqlc.LockNodeRow{}, err
	}
	node, err := u.lockNode(ctx, token.NodeID)
	switch {
	case err != nil:
		return token, node, err
	case subtle.ConstantTimeCompare(token.SecretHash, c.Hash) != 1:
		return token, node, unknown
	case token.NodeID != c.NodeID:
		return token, node, schema.NewError(schema.KindUnauthenticated, "this enrolment token is for another node").
			WithReason("token_foreign")
	case node.State.Refusing():
		return token, node, errRemoved()
	}
	return token, node, nil
}

// explainToken says why the conditional update found nothing to claim.
func (u *unit) explainToken(ctx context.Context, c schema.TokenClaim, e schema.AuditEvent) error {
	t, err := u.GetToken(ctx, c.TokenID)
	if err != nil {
		return err
	}
	next := "gpuaas node enroll NODE"
	switch {
	case t.State == tokenConsumed:
		return refuse(schema.NewError(schema.KindTokenConsumed, "this enrolment token was used").
			WithReason("token_used").WithNext(next), e)
	case t.State == tokenVoided:
		return refuse(schema.NewError(schema.KindTokenConsumed, "this enrolment token was replaced or withdrawn").
			WithReason("token_voided").WithNext(next), e)
	case t.State == tokenClaimed && (t.ClaimedSPKI == nil || *t.ClaimedSPKI != c.SPKI):
		return refuse(schema.NewError(schema.KindTokenConsumed, "this enrolment token was claimed by another key").
			WithReason("token_claimed").WithNext(next), e)
	}
	return refuse(schema.NewError(schema.KindTokenExpired, "this enrolment token has expired").
		WithReason("token_expired").WithNext(next), e)
}

// tokenEvent is a token's audit event before the token is known.
func tokenEvent(c schema.TokenClaim) schema.AuditEvent {
	return schema.AuditEvent{
		Stream: schema.SystemStream, Actor: "unauthenticated", Action: schema.AuditTokenRefused, Target: c.NodeID,
		CorrelationID: c.CorrelationID, Detail: map[string]string{"token_id": c.TokenID, "path_node": c.NodeID,
			"spki": c.SPKI, "agent_version": c.AgentVersion, "remote_addr": c.RemoteAddr},
	}
}

// StorePending keeps the issued certificate in the pending slot, replacing an
// unused one, as nodeapi.Store says. The same certificate again changes nothing.
// With a token, the token must still be claimed by the certificate's key: it may
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
	}
	if _, err := u.GetCertificate(ctx, n.NodeID, n.Cert.Serial); !notFound(err) {
		return 1, err
	}
	p := pendingCertificate(n.NodeID, n.Incarnation, n.Cert)
	if n.TokenID != "" {
		p.TokenID = &n.TokenID
		t, err := u.GetToken(ctx, n.TokenID)
		if err != nil {
			return 0, err
		}
		if t.State != tokenClaimed || t.NodeID != n.NodeID || t.ClaimedSPKI == nil || *t.ClaimedSPKI != n.Cert.SPKI {
			return 0, schema.NewError(schema.KindTokenConsumed, "the enrolment token is not held by this key any more").
				WithReason("token_voided")
		}
	}
	if _, err := u.RetireCertificates(ctx, n.NodeID, []string{slotPending}); err != nil {
		return 0, err
	}
	u.note(schema.AuditEvent{
		Stream: n.NodeID, Actor: nodeActor(n.NodeID), Action: schema.AuditIdentityIssued, Target: n.NodeID,
		Result: schema.AuditSucceeded, CorrelationID: n.CorrelationID,
		Detail: map[string]string{"serial": n.Cert.Serial, "issuer": n.Cert.Issuer, "spki": n.Cert.SPKI, "token_id": n.TokenID},
	})
	return 1, u.InsertPendingCertificate(ctx, p)
}

func pendingCertificate(nodeID string, incarnation int64, c schema.CertFacts) sqlc.InsertPendingCertificateParams {
	return sqlc.InsertPendingCertificateParams{
		NodeID: nodeID, Serial: c.Serial, Incarnation: incarnation, Subject: c.Subject, URI: c.URI, Issuer: c.Issuer,
		Fingerprint: c.Fingerprint, SPKI: c.SPKI, NotBefore: c.NotBefore, NotAfter: c.NotAfter,
	}
}
