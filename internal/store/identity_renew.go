package store

import (
	"context"
	"strconv"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// ClaimRenewal claims the next certificate for an authenticated caller, as
// nodeapi.Identities specifies. A newer key replaces an older claim whose certificate was
// never used: the node may have lost that key.
func (s *Identities) ClaimRenewal(ctx context.Context, c nodeapi.RenewClaim) (nodeapi.ClaimResult, error) {
	return write(ctx, s.db, "claiming a renewal of node "+c.Caller.NodeID, func(ctx context.Context, tx *tx) (nodeapi.ClaimResult, error) {
		return claimRenewal(ctx, tx, c)
	})
}

func claimRenewal(ctx context.Context, tx *tx, c nodeapi.RenewClaim) (nodeapi.ClaimResult, error) {
	none, nodeID := nodeapi.ClaimResult{}, c.Caller.NodeID
	node, err := tx.lockNode(ctx, nodeID)
	if err != nil {
		return none, err
	}
	e := nodeEvent(nodeID, audit.RenewalClaimed, audit.Succeeded, map[string]string{
		"serial": c.Caller.Serial, "spki": c.SPKI, "sequence": strconv.FormatInt(c.Sequence, 10)})
	e.CorrelationID = c.CorrelationID
	if err := admitRenewal(c, node); err != nil {
		return none, refuse(err, e)
	}
	first, err := tx.ClaimRenewal(ctx, sqlc.ClaimRenewalParams{SPKI: c.SPKI, NodeID: nodeID, Serial: c.Caller.Serial,
		Sequence: c.Sequence})
	if postgres.NotFound(err) {
		return none, explainRenewal(ctx, tx, c, e)
	}
	if err != nil {
		return none, err
	}
	if bound, err := tx.BindKey(ctx, c.SPKI, nodeID); err != nil {
		return none, err
	} else if bound == 0 {
		return none, refuse(errForeignKey(), e) // rolls back the claim
	}
	if first {
		tx.note(e)
	}
	return nodeapi.ClaimResult{NodeID: nodeID, Incarnation: node.Incarnation, Recoverable: len(node.RecoveryKey) > 0,
		Now: node.Now}, nil
}

// admitRenewal checks that the node may renew in its current state.
func admitRenewal(c nodeapi.RenewClaim, n sqlc.LockNodeRow) error {
	switch {
	case n.State.Refusing():
		return errRemoved()
	case n.Incarnation != c.Caller.Incarnation:
		return errIdentity(schema.ReasonIdentityMismatch, "the renewal is for another incarnation of the node")
	case n.Locked:
		return errLocked(n.Host, n.IdentityLockReason)
	case c.SPKI == "":
		return schema.NewError(schema.KindInvalidRequest, "a renewal needs a key").WithReason("key_missing")
	}
	return nil
}

// explainRenewal refuses with the reason why the conditional update claimed nothing.
// A caller whose certificate was replaced since its authentication is refused
// quietly. One that holds the current certificate but is behind its sequence is a
// clone.
func explainRenewal(ctx context.Context, tx *tx, c nodeapi.RenewClaim, e audit.Event) error {
	current, err := tx.CurrentCertificate(ctx, c.Caller.NodeID)
	if postgres.NotFound(err) || err == nil && current.Serial != c.Caller.Serial {
		return refuse(errSuperseded(), e)
	}
	if err != nil {
		return err
	}
	e.Detail["current_serial"] = current.Serial
	e.Detail["current_sequence"] = strconv.FormatInt(current.Sequence, 10)
	return refuseClone(clone{c.Caller.NodeID, c.Caller.Incarnation, trust.LockedBySequence}, e)
}
