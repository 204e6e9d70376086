package server

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// rehydrator implements adminapi.Rehydrator. It does for one node at once what the run
// watcher does for all of them. It also ends the runs that no record continues.
type rehydrator struct {
	store *store.Store
	runs  runs
}

// runs reads the runs of operations and ends those that no record continues.
// temporal.Operations implements it.
type runs interface {
	activities.Runs
	EndLeftover(ctx context.Context, workflowID string, read temporal.Read) (temporal.Leftover, error)
}

func (r rehydrator) Rehydrate(ctx context.Context, nodeID, reason string, by audit.Subject) (lifecycle.Rehydration, error) {
	open, err := r.store.Operations.OpenOperations(ctx, nodeID)
	if err != nil {
		return lifecycle.Rehydration{}, err
	}
	ops := make([]lifecycle.Operation, len(open))
	for i, o := range open {
		ops[i] = o.Operation
	}
	ends, errs := r.runs.RunEnds(ctx, ops) // all runs are read before anything changes
	for _, err := range errs {
		if err != nil {
			return lifecycle.Rehydration{}, err
		}
	}
	var running []activities.WatchedOperation
	for i, o := range open {
		if ends[i] == "" {
			running = append(running, o)
		}
		if err := r.mark(ctx, o.Operation, ends[i]); err != nil {
			return lifecycle.Rehydration{}, err
		}
	}
	done, err := r.store.Operations.AcceptAbandoned(ctx, nodeID, reason, by)
	if len(running) > 0 && schema.AsError(err) != nil && schema.AsError(err).Reason == lifecycle.ReasonNotAbandoned {
		err = errRuns(running[0])
	}
	if err != nil {
		return done, err
	}
	return r.endLeftovers(ctx, done)
}

// endLeftovers ends the runs of the node that no record continues; see EndLeftover. If the
// end of an operation or a state was just recorded, a failure is not returned: the next operation ends
// such a run, too.
func (r rehydrator) endLeftovers(ctx context.Context, done lifecycle.Rehydration) (lifecycle.Rehydration, error) {
	for _, a := range []lifecycle.Action{lifecycle.ActionDrain, lifecycle.ActionReissueEnrollment} { // one for each workflow ID
		left, err := r.runs.EndLeftover(ctx, lifecycle.WorkflowID(a, done.Node.Host, done.Node.NodeID), r.store.Admin.Operation)
		if err == nil && !left.ClaimBy.IsZero() {
			err = errUnclaimed(left, done.Node.Host)
		}
		if err != nil && len(done.Ended) == 0 && done.From == done.Node.State {
			return done, err
		}
		if left.Terminated {
			done.Terminated = append(done.Terminated, left.OperationID)
		}
	}
	return done, nil
}

// mark records whether the operation has an open run. An abandoned operation has one if
// its run was reset.
func (r rehydrator) mark(ctx context.Context, op lifecycle.Operation, end lifecycle.RunEnd) error {
	if end == "" {
		return r.store.Operations.Continue(ctx, op.OperationID, op.RunID)
	}
	_, err := r.store.Operations.Abandon(ctx, op.OperationID, op.RunID, end)
	return err
}

// errRuns rejects the rehydration of a node whose operation runs.
func errRuns(o activities.WatchedOperation) error {
	op := o.Operation
	return schema.NewError(schema.KindOperationInProgress, "the %s of %s continues: the run of operation %s is open, so there is nothing to rehydrate",
		op.Action, o.Host, op.OperationID).WithReason(lifecycle.ReasonNotAbandoned).WithNext(lifecycle.OpCommand("show", op.Action, o.Host))
}
