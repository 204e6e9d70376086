package server

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// starter implements adminapi.Lifecycle. It starts operations although a run still holds
// the node that Temporal was restored with, or whose record the database was restored
// without.
type starter struct {
	temporal.Operations

	records *store.Admin
}

// startBudget bounds a start over a run that is left. It is shorter than the time that a
// client waits for a change.
const startBudget = 25 * time.Second

// Submit implements adminapi.Lifecycle.
func (s starter) Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	ctx, cancel := context.WithTimeout(ctx, startBudget)
	defer cancel()
	op, err := s.Operations.Submit(ctx, in)
	if e := schema.AsError(err); e == nil || e.Reason != lifecycle.ReasonRunOpen {
		return op, err
	}
	left, failure := s.EndLeftover(ctx, lifecycle.WorkflowID(in.Action, in.Host, in.NodeID), s.records.Operation)
	switch {
	case failure != nil:
		return op, failure
	case !left.ClaimBy.IsZero():
		return op, errUnclaimed(left, in.Host)
	case !left.Done:
		return op, err
	}
	return s.Operations.Submit(ctx, in)
}

// errUnclaimed rejects what an operation prevents that is not on record: it has not claimed
// its node yet, or the database was restored without it. Until it may no longer claim its
// node, only Temporal shows it.
func errUnclaimed(left temporal.Leftover, host string) error {
	return schema.NewError(schema.KindOperationInProgress,
		"the run of operation %s (%s) is open, and the database does not have the operation: it may claim node %s until %s; after that, %s ends its run",
		left.OperationID, left.Action, host, left.ClaimBy.UTC().Format(time.RFC3339), lifecycle.RehydrateCommand(host)).
		WithReason("not_claimed").WithNext(lifecycle.DirectOpCommand("show", left.Action, host))
}
