package store

import (
	"context"
	"crypto/subtle"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
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

// TokenExpiry implements adminapi.EnrollmentTokens.
func (s *Identities) TokenExpiry(ctx context.Context) (time.Time, error) {
	now, err := query(ctx, s.db, "reading the database's clock", s.db.q.DatabaseTime)
	return now.Add(trust.TokenTTL).UTC().Truncate(time.Second), err
}

// IssueToken stores a new token and voids the tokens it replaces, as adminapi.EnrollmentTokens
// specifies. If the incarnation's identity was used, an enrollment token starts the
// next incarnation and voids the old identity; a reissue token does that when it is
// claimed.
func (s *Identities) IssueToken(ctx context.Context, t trust.MintedToken, by audit.Subject) error {
	return s.db.write(ctx, "issuing an enrollment token for node "+t.NodeID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNode(ctx, t.NodeID)
		if err != nil {
			return err
		}
		e := subjectEvent(by, t.NodeID, audit.TokenIssued, t.NodeID,
			map[string]string{"token_id": t.TokenID, "purpose": string(t.Purpose), "from": string(node.State)})
		if err := admitToken(ctx, tx, t.Purpose, node); err != nil {
			return refuse(err, e)
		}
		if t.Purpose == trust.PurposeReissue {
			return issueReissue(ctx, tx, t, node, e)
		}
		return issueEnrollment(ctx, tx, t, node, e)
	})
}

// admitToken checks that a token of the purpose may be issued in the node's current
// state.
func admitToken(ctx context.Context, tx *tx, p trust.TokenPurpose, n sqlc.LockNodeRow) error {
	switch p {
	case trust.PurposeReissue:
		open, err := tx.OpenOperations(ctx, n.NodeID)
		if err == nil {
			_, err = admitReissue(n, open)
		}
		return err
	case trust.PurposeEnroll:
		if n.Locked && !n.State.Refusing() {
			return errLocked(n.Host, n.IdentityLockReason)
		}
		if _, err := lifecycle.CheckStart(lifecycle.ActionEnroll, n.State); err != nil {
			return err
		}
		return admitSecond(ctx, tx, n)
	}
	return schema.NewError(schema.KindInvalidRequest, "a token of purpose %q has no bundle", p).
		WithReason("token_purpose")
}

// admitSecond rejects a token for a new incarnation while a provisioning or a repair holds the node,
// whose machine has enrolled: it could not complete.
func admitSecond(ctx context.Context, tx *tx, n sqlc.LockNodeRow) error {
	if n.OperationID == nil || n.PolledIncarnation != n.Incarnation {
		return nil
	}
	op, err := tx.GetOperation(ctx, *n.OperationID)
	if err != nil || op.EndedAt != nil || op.Action != lifecycle.ActionProvision && op.Action != lifecycle.ActionRecover {
		return err
	}
	return schema.NewError(schema.KindInvalidRequest, "the machine of node %s has enrolled, and its %s is not over", n.Host, op.Action).
		WithReason("already_enrolled").WithNext("gpuaas op show " + n.Host)
}

func issueEnrollment(ctx context.Context, tx *tx, t trust.MintedToken, n sqlc.LockNodeRow, e audit.Event) error {
	if _, err := tx.VoidTokens(ctx, t.NodeID, allPurposes()); err != nil {
		return err
	}
	incarnation, err := freshIncarnation(ctx, tx, n)
	if err != nil {
		return err
	}
	if err := tx.insertToken(ctx, t, incarnation); err != nil {
		return err
	}
	if err := tx.moveNode(ctx, n, lifecycle.NodeBootstrapIssued); err != nil {
		return err
	}
	tx.note(e)
	return tx.signalEnrollment(ctx, t.NodeID, incarnation, false, lifecycle.EventBundleIssued)
}

func (tx *tx) insertToken(ctx context.Context, t trust.MintedToken, incarnation int64) error {
	return tx.InsertToken(ctx, sqlc.InsertTokenParams{TokenID: t.TokenID, NodeID: t.NodeID,
		Incarnation: incarnation, Purpose: t.Purpose, SecretHash: t.Hash, ExpiresAt: t.ExpiresAt})
}

// allPurposes are the purposes of the tokens that the end of an identity voids.
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

// freshIncarnation returns the incarnation for a new token and voids the
// certificates of the old one.
func freshIncarnation(ctx context.Context, tx *tx, n sqlc.LockNodeRow) (int64, error) {
	_, err := tx.CurrentCertificate(ctx, n.NodeID)
	unused := postgres.NotFound(err)
	if err != nil && !unused {
		return 0, err
	}
	if _, err := tx.RetireCertificates(ctx, n.NodeID, []string{slotPending, slotCurrent}); err != nil || unused {
		return n.Incarnation, err
	}
	return tx.NextIncarnation(ctx, n.NodeID)
}

// ClaimToken claims a token for a key, as nodeapi.Identities specifies.
func (s *Identities) ClaimToken(ctx context.Context, c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
	return write(ctx, s.unauthenticated, "claiming an enrollment token", func(ctx context.Context, tx *tx) (nodeapi.ClaimResult, error) {
		return claimToken(ctx, tx, c)
	})
}

func claimToken(ctx context.Context, tx *tx, c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
	none, e := nodeapi.ClaimResult{}, tokenEvent(c)
	if c.SPKI == "" {
		return none, errUnknownToken()
	}
	token, node, err := findToken(ctx, tx, &e, c.TokenID, c.Hash, trust.PurposeEnroll, trust.PurposeReissue)
	if err == nil {
		err = refuseNode(checkOwner(token, c.NodeID), e)
	}
	if err != nil {
		return none, err
	}
	won, err := tx.ClaimToken(ctx, sqlc.ClaimTokenParams{SPKI: c.SPKI, TokenID: c.TokenID, NodeID: c.NodeID,
		Purposes: purposes(token.Purpose)})
	if postgres.NotFound(err) {
		return none, refuseToken(ctx, tx, c, node, e)
	}
	if err != nil {
		return none, err
	}
	// A refusal below rolls back the claim.
	if err := admitClaim(ctx, tx, token.Purpose, won.First, node); err != nil {
		return none, refuseNode(err, e)
	}
	if !won.Bound {
		return none, refuseNode(errForeignKey(), e)
	}
	e.Actor, e.Action, e.Result = nodeActor(c.NodeID), audit.TokenClaimed, audit.Succeeded
	e.Detail["purpose"] = string(token.Purpose)
	if won.First {
		if err := claimedFirst(ctx, tx, token, node, e); err != nil {
			return none, err
		}
	}
	return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: won.Incarnation,
		Recoverable: len(c.RecoveryKey) > 0, Now: node.Now}, tx.SetRecoveryKey(ctx, c.RecoveryKey, c.PreviousKey, c.NodeID)
}

// admitClaim checks that a token may be claimed in the node's current state. Retries
// with the same key belong to the incarnation that the first claim started.
func admitClaim(ctx context.Context, tx *tx, p trust.TokenPurpose, first bool, n sqlc.LockNodeRow) error {
	if p == trust.PurposeReissue && !first {
		if n.Locked {
			return errLocked(n.Host, n.IdentityLockReason)
		}
		return nil
	}
	return admitToken(ctx, tx, p, n)
}

// claimedFirst applies the effects of a token's first claim.
func claimedFirst(ctx context.Context, tx *tx, t sqlc.GetTokenRow, n sqlc.LockNodeRow, e audit.Event) error {
	reissued := t.Purpose == trust.PurposeReissue
	if reissued {
		if err := beginIncarnation(ctx, tx, t.Incarnation, n, e.Detail); err != nil {
			return err
		}
	} else if err := tx.moveNode(ctx, n, lifecycle.NodeEnrolling); err != nil {
		return err
	}
	tx.note(e)
	return tx.signalEnrollment(ctx, n.NodeID, t.Incarnation, reissued, lifecycle.EventTokenClaimed)
}

// findToken finds the token, makes its node the subject of the event, and locks the
// node. The error does not distinguish an unknown id from a wrong secret or purpose, and
// such a request locks nothing and writes no audit row: anybody can send it, so the node
// API counts it. A token of a removed node is refused with an audit row.
func findToken(ctx context.Context, tx *tx, e *audit.Event, tokenID string, hash []byte, want ...trust.TokenPurpose,
) (token sqlc.GetTokenRow, node sqlc.LockNodeRow, err error) {
	if !schema.IsID(tokenID) {
		return token, node, errUnknownToken()
	}
	if token, err = tx.GetToken(ctx, tokenID); err != nil {
		return token, node, orMissing(err, errUnknownToken())
	}
	if subtle.ConstantTimeCompare(token.SecretHash, hash) != 1 || !slices.Contains(want, token.Purpose) {
		return token, node, errUnknownToken()
	}
	e.Stream, e.Target = token.NodeID, token.NodeID
	if node, err = tx.lockNode(ctx, token.NodeID); err == nil && node.State.Refusing() {
		err = refuseNode(errRemoved(), *e)
	}
	return token, node, err
}

// checkOwner refuses a token that was presented for another node than its own.
func checkOwner(t sqlc.GetTokenRow, nodeID string) error {
	if t.NodeID != nodeID {
		return schema.NewError(schema.KindUnauthenticated, "this token is for another node").WithReason("token_foreign")
	}
	return nil
}

func errUnknownToken() *schema.Error {
	return schema.NewError(schema.KindUnauthenticated, "unknown token").WithReason("token_unknown")
}

// explainToken refuses a token that the conditional update did not claim.
func explainToken(ctx context.Context, tx *tx, tokenID, spki string, n sqlc.LockNodeRow, e audit.Event) error {
	t, err := tx.GetToken(ctx, tokenID)
	if err != nil {
		return err
	}
	return refuseUnclaimed(t, spki, n, e)
}

// refuseUnclaimed refuses with the reason why the conditional update claimed nothing. t was
// read after the update.
func refuseUnclaimed(t sqlc.GetTokenRow, spki string, n sqlc.LockNodeRow, e audit.Event) error {
	cause := schema.NewError(schema.KindTokenExpired, "this token has expired").WithReason("token_expired")
	switch {
	case t.State == tokenConsumed:
		cause = schema.NewError(schema.KindTokenConsumed, "this token was used").WithReason("token_used")
	case t.State == tokenVoided:
		cause = schema.NewError(schema.KindTokenConsumed, "this token was replaced or withdrawn").WithReason("token_voided")
	case t.State == tokenClaimed && (t.ClaimedSPKI == nil || *t.ClaimedSPKI != spki):
		cause = schema.NewError(schema.KindTokenConsumed, "this token was claimed by another key").WithReason("token_claimed")
	}
	return refuseNode(cause.WithNext(anotherToken(t.Purpose, n)), e)
}

// anotherToken is the command that issues another token of the purpose. A node that
// was enrolled needs a reissue.
func anotherToken(p trust.TokenPurpose, n sqlc.LockNodeRow) string {
	verb := string(lifecycle.ActionReissueEnrollment)
	switch p {
	case purposeFetch:
		verb = "bootstrap-script"
	case trust.PurposeEnroll:
		if _, err := lifecycle.CheckStart(lifecycle.ActionEnroll, n.State); err == nil {
			verb = string(lifecycle.ActionEnroll)
		}
	}
	return "gpuaas node " + verb + " " + n.Host
}

// tokenEvent is the audit event of a refused claim. findToken sets its node.
func tokenEvent(c nodeapi.TokenClaim) audit.Event {
	return audit.Event{
		Actor: unauthenticated, Action: audit.TokenRefused,
		CorrelationID: c.CorrelationID, Detail: map[string]string{"token_id": c.TokenID, "path_node": c.NodeID,
			"spki": c.SPKI, "agent_version": c.AgentVersion, "remote_addr": c.RemoteAddr},
	}
}
