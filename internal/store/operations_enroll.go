package store

import (
	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// requireEnrolled rejects the completion of an enrollment whose node has never polled
// with a certificate, as KindInvalidRequest, reason not_enrolled. The workflow has read
// the record before; the check also holds if what the workflow received was forged.
func requireEnrolled(n sqlc.LockNodeRow, op sqlc.GetOperationRow, e activities.Finish) error {
	if op.Action != lifecycle.ActionEnroll || e.Status != lifecycle.OperationCompleted || n.PolledIncarnation > 0 {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "node %s has not polled with a certificate", n.NodeID).WithReason("not_enrolled")
}
