package store

import (
	"context"
	"crypto/ed25519"
	"strconv"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// RecoveryFacts returns the facts to verify a recovery's signature, as nodeapi.Identities
// specifies.
func (s *Identities) RecoveryFacts(ctx context.Context, nodeID string) (nodeapi.RecoveryFacts, error) {
	row, err := ofNode(ctx, s.unauthenticated, "reading the recovery key", nodeID, s.unauthenticated.q.RecoveryFacts)
	switch {
	case schema.KindOf(err) == schema.KindNotFound:
		err = errUnknownToken()
	case err != nil:
	case row.State.Refusing():
		err = errRemoved()
	case row.Locked:
		err = errLocked(nodeID, row.IdentityLockReason)
	}
	if err != nil {
		return nodeapi.RecoveryFacts{}, err
	}
	return nodeapi.RecoveryFacts{Incarnation: row.Incarnation, Key: ed25519.PublicKey(row.RecoveryKey)}, nil
}

// ClaimRecovery claims a recovery token for a key, as nodeapi.Identities specifies. It
// checks the caller's sequence before the token's state: a replaced token still
// proves which machine is behind.
func (s *Identities) ClaimRecovery(ctx context.Context, c nodeapi.RecoveryClaim) (nodeapi.ClaimResult, error) {
	return write(ctx, s.unauthenticated, "claiming a recovery of node "+c.NodeID, func(ctx context.Context, tx *tx) (nodeapi.ClaimResult, error) {
		return claimRecovery(ctx, tx, c)
	})
}

func claimRecovery(ctx context.Context, tx *tx, c nodeapi.RecoveryClaim) (nodeapi.ClaimResult, error) {
	none, e := nodeapi.ClaimResult{}, recoveryEvent(c)
	if c.SPKI == "" {
		return none, errUnknownToken()
	}
	if err := restoreToken(ctx, tx, c); err != nil {
		return none, err
	}
	token, node, err := findToken(ctx, tx, &e, c.TokenID, c.Hash, trust.PurposeRecover)
	if err == nil {
		err = refuseNode(admitRecovery(c, token, node), e)
	}
	if err != nil {
		return none, err
	}
	if err := checkSequence(ctx, tx, c, e); err != nil {
		return none, err
	}
	won, err := tx.ClaimToken(ctx, sqlc.ClaimTokenParams{SPKI: c.SPKI, TokenID: c.TokenID, NodeID: c.NodeID,
		Purposes: purposes(trust.PurposeRecover)})
	if postgres.NotFound(err) {
		return none, explainToken(ctx, tx, c.TokenID, c.SPKI, node, e)
	}
	if err != nil {
		return none, err
	}
	if !won.Bound {
		return none, refuseNode(errForeignKey(), e) // rolls back the claim
	}
	if won.First {
		e.Actor, e.Action, e.Result = nodeActor(c.NodeID), audit.RecoveryClaimed, audit.Succeeded
		tx.note(e)
	}
	return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: won.Incarnation, Recoverable: true, Now: node.Now}, nil
}

// admitRecovery refuses another node, a locked one, another incarnation and a node
// without a recovery key.
func admitRecovery(c nodeapi.RecoveryClaim, t sqlc.GetTokenRow, n sqlc.LockNodeRow) error {
	if err := checkOwner(t, c.NodeID); err != nil {
		return err
	}
	switch {
	case n.Locked:
		return errLocked(n.Host, n.IdentityLockReason)
	case t.Incarnation != n.Incarnation || c.Incarnation != n.Incarnation:
		return errIdentity(schema.ReasonIdentityMismatch, "the recovery is for another incarnation of the node")
	case len(n.RecoveryKey) == 0:
		return errUnknownToken()
	}
	return nil
}

// checkSequence locks the identity if the caller is behind the last used identity
// and presents another key: another machine has used a newer identity. The same key
// is a retry after a lost response.
func checkSequence(ctx context.Context, tx *tx, c nodeapi.RecoveryClaim, e audit.Event) error {
	current, err := tx.CurrentCertificate(ctx, c.NodeID)
	if postgres.NotFound(err) || err == nil && c.Sequence >= current.Sequence {
		return nil
	}
	if err != nil {
		return err
	}
	known, err := tx.HoldsKey(ctx, c.NodeID, c.SPKI)
	if err != nil || known {
		return err
	}
	serial, err := tx.SerialOfRecovery(ctx, &c.TokenID)
	if err != nil && !postgres.NotFound(err) {
		return err
	}
	e.Actor = nodeActor(c.NodeID)
	e.Detail["serial"], e.Detail["current_serial"] = serial, current.Serial
	e.Detail["current_sequence"] = strconv.FormatInt(current.Sequence, 10)
	return refuseClone(clone{c.NodeID, c.Incarnation, trust.LockedBySequence}, e)
}

// recoveryEvent is the audit event of a refused recovery. findToken sets its node.
func recoveryEvent(c nodeapi.RecoveryClaim) audit.Event {
	return audit.Event{
		Actor: unauthenticated, Action: audit.RecoveryRefused,
		CorrelationID: c.CorrelationID, Detail: map[string]string{"token_id": c.TokenID, "path_node": c.NodeID,
			"spki": c.SPKI, "sequence": strconv.FormatInt(c.Sequence, 10),
			"agent_version": c.AgentVersion, "remote_addr": c.RemoteAddr},
	}
}
