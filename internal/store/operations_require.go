package store

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// requireGoal rejects the completion of an operation whose goal is not on record, as
// KindInvalidRequest. The workflow has read the record before; the check also holds if
// what the workflow received was forged.
//
// An enrollment, and a provisioning that creates the machine, needs a poll of the node's current
// incarnation with a certificate: reason not_enrolled. A termination and a removal need a ledger without open entries: reason
// resources_open. A person may force the teardown, which the document's phases show.
func requireGoal(ctx context.Context, tx *tx, n sqlc.LockNodeRow, op sqlc.GetOperationRow, e activities.Finish) error {
	switch {
	case e.Status != lifecycle.OperationCompleted:
		return nil
	case (op.Action == lifecycle.ActionEnroll || op.Claim.Creates && op.Action == lifecycle.ActionProvision) && n.PolledIncarnation != n.Incarnation:
		return schema.NewError(schema.KindInvalidRequest, "node %s has not polled with a certificate", n.NodeID).WithReason("not_enrolled")
	case op.Action == lifecycle.ActionRecover && e.Instance == lifecycle.InstanceRunning && n.PolledIncarnation != n.Incarnation:
		return schema.NewError(schema.KindInvalidRequest, "the new machine of node %s has not polled with a certificate", n.NodeID).WithReason("not_enrolled")
	case (op.Action == lifecycle.ActionTerminate || op.Action == lifecycle.ActionRemove) && !e.TeardownForced():
		return requireReleased(ctx, tx, n)
	}
	return nil
}

func requireReleased(ctx context.Context, tx *tx, n sqlc.LockNodeRow) error {
	open, err := tx.OpenResources(ctx, n.NodeID)
	if err != nil || len(open) == 0 {
		return err
	}
	return schema.NewError(schema.KindInvalidRequest, "the ledger of node %s has %d entries that are not released", n.NodeID, len(open)).
		WithReason("resources_open")
}
