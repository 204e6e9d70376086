package store

import (
	"context"
	"crypto/subtle"
	"slices"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Certificate slots and token states as the database spells them.
const (
	slotPending = "pending"
	slotCurrent = "current"
	slotRetired = "retired"

	tokenClaimed  = "claimed"
	tokenConsumed = "consumed"
	tokenVoided   = "voided"
)

// purposeFetch is the purpose of a one-time reference to a bundle.
const purposeFetch trust.TokenPurpose = "fetch"

// IssueToken stores a new token and voids what it takes the place of, as
// adminapi.Store says. When the identity of this incarnation was used already, a
// token to enrol begins the next one, and the old identity is void; a token to
// reissue does so when it is claimed.
func (s *Store) IssueToken(ctx context.Context, t trust.MintedToken, by audit.Subject) error {
	return s.write(ctx, "issuing an enrolment token for node "+t.NodeID, func(ctx context.Context, u *unit) error {
		node, err := u.lockNode(ctx, t.NodeID)
		if err != nil {
			return err
		}
		e := audit.Event{Stream: t.NodeID, Actor: by.Actor, Action: audit.TokenIssued, Target: t.NodeID,
			Result: audit.Succeeded, CorrelationID: by.CorrelationID,
			Detail: map[string]string{"token_id": t.TokenID, "purpose": string(t.Purpose), "from": string(node.State)}}
		if t.Purpose == trust.PurposeReissue {
			e.Action = audit.ActionName(lifecycle.ActionReissueEnrollment)
		}
		if err := u.admitToken(ctx, t.Purpose, node); err != nil {
			return refuse(err, e)
		}
		if t.Purpose == trust.PurposeReissue {
			return u.issueReissue(ctx, t, node, e)
		}
		return u.issueEnrolment(ctx, t, node, e)
	})
}

// admitToken says whether a node may be enrolled, or enrolled anew, as it is.
func (u *unit) admitToken(ctx context.Context, p trust.TokenPurpose, n sqlc.LockNodeRow) error {
	switch p {
	case trust.PurposeReissue:
		return u.admitReissue(ctx, n)
	case trust.PurposeEnroll:
		if n.Locked && !n.State.Refusing() {
			return errLocked(n.Host)
		}
		_, err := lifecycle.CheckMove(lifecycle.ActionEnroll, n.State)
		return err
	}
	return schema.NewError(schema.KindInvalidRequest, "no bundle is made for a token of purpose %q", p).
		WithReason("token_purpose")
}

func (u *unit) issueEnrolment(ctx context.Context, t trust.MintedToken, n sqlc.LockNodeRow, e audit.Event) error {
	if _, err := u.VoidTokens(ctx, t.NodeID, allPurposes()); err != nil {
		return err
	}
	incarnation, err := u.freshIncarnation(ctx, n)
	if err != nil {
		return err
	}
	if err := u.insertToken(ctx, t, incarnation); err != nil {
		return err
	}
	if err := u.moveNode(ctx, n, lifecycle.NodeBootstrapIssued); err != nil {
		return err
	}
	u.note(e)
	return u.tellEnrolment(ctx, t.NodeID, incarnation, false, lifecycle.EventBundleIssued)
}

func (u *unit) insertToken(ctx context.Context, t trust.MintedToken, incarnation int64) error {
	return u.later.InsertToken(ctx, sqlc.InsertTokenParams{TokenID: t.TokenID, NodeID: t.NodeID,
		Incarnation: incarnation, Purpose: t.Purpose, SecretHash: t.Hash, ExpiresAt: t.ExpiresAt})
}

// allPurposes are the purposes of every token that an identity's end voids.
func allPurposes() []string {
	return purposes(trust.PurposeEnroll, trust.PurposeReissue, trust.PurposeRecover, purposeFetch)
}

func purposes(list ...trust.TokenPurpose) []string {
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = string(p)
	}
	return names
}

// freshIncarnation returns the incarnation a new token is for and voids what
// could still be used of an older one.
func (u *unit) freshIncarnation(ctx context.Context, n sqlc.LockNodeRow) (int64, error) {
	_, err := u.CurrentCertificate(ctx, n.NodeID)
	unused := notFound(err)
	if err != nil && !unused {
		return 0, err
	}
	if _, err := u.RetireCertificates(ctx, n.NodeID, []string{slotPending, slotCurrent}); err != nil || unused {
		return n.Incarnation, err
	}
	return u.NextIncarnation(ctx, n.NodeID)
}

// moveNode puts the node into a state outside any operation.
func (u *unit) moveNode(ctx context.Context, n sqlc.LockNodeRow, to lifecycle.NodeState) error {
	if n.State == to {
		return nil
	}
	_, err := u.later.SetNodeState(ctx, n.NodeID, n.OpSeq, to)
	return err
}

// ClaimToken claims a token for a key, as nodeapi.Store says.
func (s *Store) ClaimToken(ctx context.Context, c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
	var claimed nodeapi.ClaimResult
	err := s.write(ctx, "claiming an enrolment token", func(ctx context.Context, u *unit) (err error) {
		claimed, err = u.claimToken(ctx, c)
		return err
	})
	return claimed, err
}

func (u *unit) claimToken(ctx context.Context, c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
	none, e := nodeapi.ClaimResult{}, tokenEvent(c)
	token, node, err := u.findToken(ctx, presented{c.NodeID, c.TokenID, c.Hash, c.SPKI},
		trust.PurposeEnroll, trust.PurposeReissue)
	if token.NodeID != "" {
		e.Stream, e.Target = token.NodeID, token.NodeID
	}
	if err != nil {
		return none, refuse(err, e)
	}
	won, err := u.ClaimToken(ctx, sqlc.ClaimTokenParams{SPKI: c.SPKI, TokenID: c.TokenID, NodeID: c.NodeID,
		Purposes: purposes(token.Purpose)})
	if notFound(err) {
		return none, u.explainToken(ctx, c.TokenID, c.SPKI, node, e)
	}
	if err != nil {
		return none, err
	}
	// A refusal from here on undoes the claim.
	if err := u.admitClaim(ctx, token.Purpose, won.First, node); err != nil {
		return none, refuse(err, e)
	}
	if !won.Bound {
		return none, refuse(errForeignKey(), e)
	}
	e.Actor, e.Action, e.Result = nodeActor(c.NodeID), audit.TokenClaimed, audit.Succeeded
	e.Detail["purpose"] = string(token.Purpose)
	if won.First {
		if err := u.claimedFirst(ctx, token, node, e); err != nil {
			return none, err
		}
	}
	return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: won.Incarnation,
		Recoverable: len(c.RecoveryKey) > 0}, u.later.SetRecoveryKey(ctx, c.NodeID, orNil(c.RecoveryKey))
}

// orNil is the key as a nullable column takes it.
func orNil(key []byte) []byte {
	if len(key) == 0 {
		return nil
	}
	return key
}

// admitClaim says whether a node may take up a token as it is. The same key's
// later tries are of the incarnation that the first one began.
func (u *unit) admitClaim(ctx context.Context, p trust.TokenPurpose, first bool, n sqlc.LockNodeRow) error {
	if p == trust.PurposeReissue && !first {
		if n.Locked {
			return errLocked(n.Host)
		}
		return nil
	}
	return u.admitToken(ctx, p, n)
}

// claimedFirst does what a token's first claim brings about.
func (u *unit) claimedFirst(ctx context.Context, t sqlc.GetTokenRow, n sqlc.LockNodeRow, e audit.Event) error {
	reissued := t.Purpose == trust.PurposeReissue
	if reissued {
		if err := u.beginIncarnation(ctx, t.Incarnation, n, e.Detail); err != nil {
			return err
		}
	} else if err := u.moveNode(ctx, n, lifecycle.NodeEnrolling); err != nil {
		return err
	}
	u.note(e)
	return u.tellEnrolment(ctx, n.NodeID, t.Incarnation, reissued, lifecycle.EventTokenClaimed)
}

// presented is a token as a caller shows it, with the key it is shown for.
type presented struct {
	nodeID, tokenID string
	hash            []byte
	spki            string
}

// findToken finds the token and locks its node. It refuses a token that is
// unknown or for something else, that shows another secret, that belongs to
// another node than the one it is presented for, or whose node was removed. An
// unknown id and a wrong secret look the same from outside.
func (u *unit) findToken(ctx context.Context, p presented, want ...trust.TokenPurpose) (sqlc.GetTokenRow, sqlc.LockNodeRow, error) {
	var node sqlc.LockNodeRow
	if !schema.IsID(p.tokenID) || p.spki == "" {
		return sqlc.GetTokenRow{}, node, errUnknownToken()
	}
	token, err := u.GetToken(ctx, p.tokenID)
	if notFound(err) {
		return sqlc.GetTokenRow{}, node, errUnknownToken()
	}
	if err != nil {
		return token, node, err
	}
	node, err = u.lockNode(ctx, token.NodeID)
	switch {
	case err != nil:
		return token, node, err
	case subtle.ConstantTimeCompare(token.SecretHash, p.hash) != 1 || !slices.Contains(want, token.Purpose):
		return token, node, errUnknownToken()
	case token.NodeID != p.nodeID:
		return token, node, schema.NewError(schema.KindUnauthenticated, "this token is for another node").
			WithReason("token_foreign")
	case node.State.Refusing():
		return token, node, errRemoved()
	}
	return token, node, nil
}

func errUnknownToken() *schema.Error {
	return schema.NewError(schema.KindUnauthenticated, "unknown token").WithReason("token_unknown")
}

// explainToken says why the conditional update found nothing to claim.
func (u *unit) explainToken(ctx context.Context, tokenID, spki string, n sqlc.LockNodeRow, e audit.Event) error {
	t, err := u.GetToken(ctx, tokenID)
	if err != nil {
		return err
	}
	cause := schema.NewError(schema.KindTokenExpired, "this token has expired").WithReason("token_expired")
	switch {
	case t.State == tokenConsumed:
		cause = schema.NewError(schema.KindTokenConsumed, "this token was used").WithReason("token_used")
	case t.State == tokenVoided:
		cause = schema.NewError(schema.KindTokenConsumed, "this token was replaced or withdrawn").WithReason("token_voided")
	case t.State == tokenClaimed && (t.ClaimedSPKI == nil || *t.ClaimedSPKI != spki):
		cause = schema.NewError(schema.KindTokenConsumed, "this token was claimed by another key").WithReason("token_claimed")
	}
	return refuse(cause.WithNext(anotherToken(t.Purpose, n)), e)
}

// anotherToken is the command that gives the node another token of the purpose
// p. A node that is beyond its first enrolment is not enrolled again.
func anotherToken(p trust.TokenPurpose, n sqlc.LockNodeRow) string {
	verb := string(lifecycle.ActionReissueEnrollment)
	switch p {
	case purposeFetch:
		verb = "bootstrap-script"
	case trust.PurposeEnroll:
		if _, err := lifecycle.CheckMove(lifecycle.ActionEnroll, n.State); err == nil {
			verb = string(lifecycle.ActionEnroll)
		}
	}
	return "gpuaas node " + verb + " " + n.Host
}

// tokenEvent is a token's audit event before the token is known.
func tokenEvent(c nodeapi.TokenClaim) audit.Event {
	return audit.Event{
		Stream: audit.SystemStream, Actor: "unauthenticated", Action: audit.TokenRefused, Target: c.NodeID,
		CorrelationID: c.CorrelationID, Detail: map[string]string{"token_id": c.TokenID, "path_node": c.NodeID,
			"spki": c.SPKI, "agent_version": c.AgentVersion, "remote_addr": c.RemoteAddr},
	}
}
