package store

import (
	"bytes"
	"context"
	"errors"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// refuseToken refuses a token that the conditional update did not claim. If another key
// claimed it, one of two machines is an unauthorized one, or one machine lost its key. That
// raises an alarm. The first machine is proven to be unauthorized if the second
// has the recovery key with which the node was enrolled before, and the first has not:
// then the identity is locked.
func refuseToken(ctx context.Context, tx *tx, c nodeapi.TokenClaim, n sqlc.LockNodeRow, e audit.Event) error {
	t, err := tx.GetToken(ctx, c.TokenID)
	if err != nil {
		return err
	}
	refused := refuseUnclaimed(t, c.SPKI, n, e)
	r, ok := errors.AsType[*refusal](refused)
	if !ok || t.State == tokenVoided || t.ClaimedSPKI == nil || *t.ClaimedSPKI == c.SPKI || t.Incarnation != n.Incarnation {
		return refused
	}
	if provesPrevious(c, n) {
		e.Detail["claimed_spki"] = *t.ClaimedSPKI
		return refuseClone(clone{t.NodeID, t.Incarnation, trust.LockedByToken}, e)
	}
	r.alarm = &clone{t.NodeID, t.Incarnation, trust.AlarmToken}
	return r
}

// provesPrevious reports whether the request was signed with the recovery key of the node's
// previous incarnation. An older agent enrolls with the same recovery key again.
func provesPrevious(c nodeapi.TokenClaim, n sqlc.LockNodeRow) bool {
	before := n.PreviousRecoveryKey
	return len(before) > 0 && (bytes.Equal(before, c.PreviousKey) || bytes.Equal(before, c.RecoveryKey))
}
