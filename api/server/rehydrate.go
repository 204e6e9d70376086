package server

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// rehydrator implements adminapi.Rehydrator. It does for one node at once what the run
// watcher does for all of them.
type rehydrator struct {
	operations *store.Operations
	runs       activities.Runs
}

func (r rehydrator) Rehydrate(ctx context.Context, nodeID, reason string, by audit.Subject) (lifecycle.Rehydration, error) {
	open, err := r.operations.HoldingOperation(ctx, nodeID)
	if err != nil {
		return lifecycle.Rehydration{}, err
	}
	ends := make([]lifecycle.RunEnd, len(open))
	for i, o := range open { // all runs are read before anything changes
		if ends[i], err = r.runs.RunEnd(ctx, o.Operation); err != nil {
			return lifecycle.Rehydration{}, err
		}
	}
	var running []activities.WatchedOperation
	for i, o := range open {
		if ends[i] == "" {
			running = append(running, o)
			continue
		}
		if err := r.operations.Abandon(ctx, o.Operation.OperationID, o.Operation.RunID, ends[i]); err != nil {
			return lifecycle.Rehydration{}, err
		}
	}
	done, err := r.operations.AcceptAbandoned(ctx, nodeID, reason, by)
	if len(running) > 0 && schema.AsError(err) != nil && schema.AsError(err).Reason == "not_abandoned" {
		err = errRuns(running[0])
	}
	return done, err
}

// errRuns rejects the rehydration of a node whose operation runs.
func errRuns(o activities.WatchedOperation) error {
	op := o.Operation
	return schema.NewError(schema.KindOperationInProgress, "%s of %s is %s: the run of operation %s is open, so there is nothing to rehydrate",
		op.Action, o.Host, op.Status, op.OperationID).WithReason("not_abandoned").WithNext(lifecycle.OpCommand("show", op.Action, o.Host))
}
