package store

import (
	"context"
	"crypto/ed25519"
	"strconv"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// RecoveryFacts returns what a recovery's signature is checked against, as
// nodeapi.Store says.
func (s *Store) RecoveryFacts(ctx context.Context, nodeID string) (nodeapi.RecoveryFacts, error) {
	var facts nodeapi.RecoveryFacts
	err := s.read(ctx, "reading how node "+nodeID+" recovers", func(ctx context.Context) error {
		if !schema.IsID(nodeID) {
			return errUnknownToken()
		}
		row, err := s.q.RecoveryFacts(ctx, nodeID)
		switch {
		case notFound(err):
			return errUnknownToken()
		case err != nil:
			return err
		case row.State.Refusing():
			return errRemoved()
		case row.Locked:
			return errLocked(nodeID)
		}
		facts.Incarnation = row.Incarnation
		if len(row.RecoveryKey) > 0 {
			facts.Key = ed25519.PublicKey(row.RecoveryKey)
		}
		return nil
	})
	return facts, err
}

// ClaimRecovery claims a recovery token for a key, as nodeapi.Store says. What
// it refuses of a caller who holds the token is decided before the token's own
// state: a token that was replaced still shows who is behind.
func (s *Store) ClaimRecovery(ctx context.Context, c nodeapi.RecoveryClaim) (nodeapi.ClaimResult, error) {
	var claimed nodeapi.ClaimResult
	err := s.write(ctx, "claiming a recovery of node "+c.NodeID, func(ctx context.Context, u *unit) (err error) {
		claimed, err = u.claimRecovery(ctx, c)
		return err
	})
	return claimed, err
}

func (u *unit) claimRecovery(ctx context.Context, c nodeapi.RecoveryClaim) (nodeapi.ClaimResult, error) {
	none, e := nodeapi.ClaimResult{}, recoveryEvent(c)
	token, node, err := u.findToken(ctx, presented{c.NodeID, c.TokenID, c.Hash, c.SPKI}, trust.PurposeRecover)
	if token.NodeID != "" {
		e.Stream, e.Target = token.NodeID, token.NodeID
	}
	if err == nil {
		err = admitRecovery(c, token, node)
	}
	if err != nil {
		return none, refuse(err, e)
	}
	if err := u.checkSequence(ctx, c, e); err != nil {
		return none, err
	}
	won, err := u.ClaimToken(ctx, sqlc.ClaimTokenParams{SPKI: c.SPKI, TokenID: c.TokenID, NodeID: c.NodeID,
		Purposes: purposes(trust.PurposeRecover)})
	if notFound(err) {
		return none, u.explainToken(ctx, c.TokenID, c.SPKI, node, e)
	}
	if err != nil {
		return none, err
	}
	if !won.Bound {
		return none, refuse(errForeignKey(), e) // which undoes the claim
	}
	if won.First {
		e.Actor, e.Action, e.Result = nodeActor(c.NodeID), audit.RecoveryClaimed, audit.Succeeded
		u.note(e)
	}
	return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: won.Incarnation, Recoverable: true}, nil
}

// admitRecovery says whether the node may recover as it is: locked ones, those
// of another incarnation and those without a recovery key may not.
func admitRecovery(c nodeapi.RecoveryClaim, t sqlc.GetTokenRow, n sqlc.LockNodeRow) error {
	switch {
	case n.Locked:
		return errLocked(n.Host)
	case t.Incarnation != n.Incarnation || c.Incarnation != n.Incarnation:
		return errIdentity(schema.ReasonIdentityMismatch, "the recovery is of another incarnation of the node")
	case len(n.RecoveryKey) == 0:
		return errUnknownToken()
	}
	return nil
}

// checkSequence locks the identity when the caller is behind the identity that
// was used last and asks for another key: somebody else has gone on from where
// it stands. The same key is the retry of a request whose answer was lost.
func (u *unit) checkSequence(ctx context.Context, c nodeapi.RecoveryClaim, e audit.Event) error {
	current, err := u.CurrentCertificate(ctx, c.NodeID)
	if notFound(err) || err == nil && c.Sequence >= current.Sequence {
		return nil
	}
	if err != nil {
		return err
	}
	known, err := u.HoldsKey(ctx, c.NodeID, c.SPKI)
	if err != nil || known {
		return err
	}
	serial, err := u.SerialOfRecovery(ctx, &c.TokenID)
	if err != nil && !notFound(err) {
		return err
	}
	e.Actor = nodeActor(c.NodeID)
	e.Detail["serial"], e.Detail["current_serial"] = serial, current.Serial
	e.Detail["current_sequence"] = strconv.FormatInt(current.Sequence, 10)
	return refuseClone(clone{c.NodeID, c.Incarnation, cloneOfSequence}, e)
}

// recoveryEvent is a recovery's audit event before the token is known.
func recoveryEvent(c nodeapi.RecoveryClaim) audit.Event {
	return audit.Event{
		Stream: audit.SystemStream, Actor: "unauthenticated", Action: audit.RecoveryRefused, Target: c.NodeID,
		CorrelationID: c.CorrelationID, Detail: map[string]string{"token_id": c.TokenID, "path_node": c.NodeID,
			"spki": c.SPKI, "sequence": strconv.FormatInt(c.Sequence, 10),
			"agent_version": c.AgentVersion, "remote_addr": c.RemoteAddr},
	}
}
