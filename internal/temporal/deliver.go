package temporal

import (
	"context"
	"slices"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// CompleteTask completes the activity that waits for a node task, with a reference to
// the task's stored result, whatever its status: the workflow reads the result. Temporal
// accepts a completion also for an activity that has no worker, waits for its next try
// or is paused, which it does not for a failure. If the run was reset, the new run is
// completed.
//
// KindNotFound means that no activity waits: with reason schema.ReasonActivityClosed
// because the operation continued or ended without it, otherwise because its run is
// unknown or was terminated.
func (c NodeTasks) CompleteTask(ctx context.Context, o task.Owner, r task.Reference) error {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	err := c.complete(ctx, o, r)
	if !is[*serviceerror.NotFound](err) {
		return c.interpret(err, "completing the task's activity")
	}
	p, err := c.locate(ctx, o)
	switch {
	case err != nil:
		return c.interpret(err, "looking for the task's activity")
	case p.activity == nil:
		return notPending(o, p.status)
	}
	o.RunID = p.runID
	err = c.complete(ctx, o, r)
	if is[*serviceerror.NotFound](err) { // the activity changed meanwhile: try again later
		return schema.Wrap(schema.KindInternal, err, "activity %s of %s is pending but cannot be completed now", o.ActivityID, o.WorkflowID)
	}
	return c.interpret(err, "completing the reset task's activity")
}

func (c NodeTasks) complete(ctx context.Context, o task.Owner, r task.Reference) error {
	return c.sdk.CompleteActivityByIDWithOptions(ctx, client.CompleteActivityByIDOptions{
		Namespace: c.namespace, WorkflowID: o.WorkflowID, RunID: o.RunID, ActivityID: o.ActivityID, Result: r,
	})
}

// notPending is the KindNotFound of CompleteTask.
func notPending(o task.Owner, s enumspb.WorkflowExecutionStatus) error {
	gone := schema.NewError(schema.KindNotFound, "no activity %s is pending in %s", o.ActivityID, o.WorkflowID)
	if continuedWithout(s) {
		gone = gone.WithReason(schema.ReasonActivityClosed)
	}
	return gone
}

// location is the run and the activity of a task. The zero value means that the
// run is unknown.
type location struct {
	runID  string
	status enumspb.WorkflowExecutionStatus
	// activity is set while it is pending in an open run.
	activity *workflowpb.PendingActivityInfo
}

// locate finds the newest run of the owner's chain and the activity in it.
func (c NodeTasks) locate(ctx context.Context, o task.Owner) (location, error) {
	before, err := c.sdk.DescribeWorkflowExecution(ctx, o.WorkflowID, o.RunID)
	if is[*serviceerror.NotFound](err) {
		return location{}, nil
	}
	if err != nil {
		return location{}, err
	}
	now, err := c.sdk.DescribeWorkflowExecution(ctx, o.WorkflowID, "")
	if err != nil {
		return location{}, err
	}
	info := now.GetWorkflowExecutionInfo()
	if info.GetFirstRunId() != before.GetWorkflowExecutionInfo().GetFirstRunId() {
		info = before.GetWorkflowExecutionInfo()
	}
	p := location{runID: info.GetExecution().GetRunId(), status: info.GetStatus()}
	if closed(p.status) {
		return p, nil
	}
	for _, a := range now.GetPendingActivities() {
		if a.GetActivityId() == o.ActivityID {
			p.activity = a
		}
	}
	return p, nil
}

// continuedWithout reports whether a run with this status no longer needs a late
// result: it continued, or it ended on its own.
func continuedWithout(s enumspb.WorkflowExecutionStatus) bool {
	return slices.Contains([]enumspb.WorkflowExecutionStatus{
		enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED,
		enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW}, s)
}

// SignalAgent delivers an agent event to the node's running workflow.
// KindNotFound means that none runs.
func (c NodeTasks) SignalAgent(ctx context.Context, workflowID string, e lifecycle.AgentEvent) error {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	return c.interpret(c.sdk.SignalWorkflow(ctx, workflowID, "", lifecycle.SignalAgent, e), "signaling the operation")
}
