package temporal

import (
	"context"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// leftoverBudget is how long a run may take to close after the end of its operation is
	// recorded.
	leftoverBudget = 5 * time.Second
	// claimGrace is how much the clocks of Temporal, of the database and of this process may
	// differ when an operation without a record is read.
	claimGrace = time.Minute
)

// Leftover is what EndLeftover found about the newest run under a workflow ID.
type Leftover struct {
	OperationID string
	Action      lifecycle.Action
	// Done is set if the run is closed. Terminated is set if EndLeftover closed it.
	Done, Terminated bool
	// ClaimBy is set if the operation is not on record and may still claim its node: until
	// then.
	ClaimBy time.Time
}

// Read returns the record of an operation. KindNotFound if there is none.
type Read func(ctx context.Context, operationID string) (lifecycle.OperationStatus, error)

// EndLeftover terminates the open run of the workflow that keeps an operation from starting if no record
// continues it: the run's own operation has ended and the run does not close, or the
// operation is not on record and the time to claim its node is over. The first is so after
// Temporal was restored from a backup, the second after the database was. A run of another
// workflow, which someone started by hand, never claims the node. Such a run may be
// parked, and no decision reaches it through its record. The node and the record do not
// change.
func (c Operations) EndLeftover(ctx context.Context, workflowID string, read Read) (left Leftover, err error) {
	info, err := c.describeRun(ctx, workflowID, "")
	if err != nil || info == nil {
		return left, err
	}
	plan, _ := lifecycle.PlanOfWorkflow(info.GetType().GetName())
	left.OperationID, left.Action = operationOf(info), plan.Action
	if left.Done = closed(info.GetStatus()); left.Done {
		return left, nil
	}
	if left.OperationID == "" { // not by its type: a newer version may have others
		return c.terminate(ctx, info, left, "the run is no operation of gpuaas and holds the workflow ID of a node")
	}
	why := "operation " + left.OperationID + " has ended, but its run did not close"
	switch st, err := read(ctx, left.OperationID); {
	case schema.KindOf(err) == schema.KindNotFound:
		until, err := c.claimBy(ctx, info)
		if err != nil || !time.Now().After(until) {
			left.ClaimBy = until
			return left, err
		}
		why = "operation " + left.OperationID + " is not on record"
	case err != nil || st.Operation.EndedAt == nil:
		return left, err
	}
	return c.terminate(ctx, info, left, why)
}

// terminate closes the run unless it closes itself.
func (c Operations) terminate(ctx context.Context, info *workflowpb.WorkflowExecutionInfo, left Leftover, why string) (Leftover, error) {
	workflow, run := info.GetExecution().GetWorkflowId(), info.GetExecution().GetRunId()
	closing, cancel := context.WithTimeout(ctx, leftoverBudget)
	defer cancel()
	if left.Done = closes(closing, c, workflow, run); left.Done {
		return left, nil
	}
	ending, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	err := c.sdk.TerminateWorkflow(ending, workflow, run, why)
	left.Terminated = err == nil
	left.Done = left.Terminated || is[*serviceerror.NotFound](err)
	if left.Done {
		return left, nil
	}
	return left, c.interpret(err, "ending the run of operation "+left.OperationID)
}

// claimBy returns the time after which the database rejects the claim of a run's
// operation. Without a limit of its own, the operation has that of the longest one.
func (c Operations) claimBy(ctx context.Context, info *workflowpb.WorkflowExecutionInfo) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	events := c.sdk.GetWorkflowHistory(ctx, info.GetExecution().GetWorkflowId(), info.GetExecution().GetRunId(), false,
		enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	first, err := events.Next()
	if err != nil {
		return time.Time{}, c.interpret(err, "reading the start of the operation")
	}
	var in lifecycle.OperationInput
	_ = c.converter.FromPayloads(first.GetWorkflowExecutionStartedEventAttributes().GetInput(), &in) // another input has no limit
	within := in.StartWithin()
	if within == 0 || within > wire.MaxStartWithin { // another input may have any limit
		within = wire.MaxStartWithin
	}
	return first.GetEventTime().AsTime().Add(within + claimGrace), nil
}
