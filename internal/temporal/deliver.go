package temporal

import (
	"context"
	"encoding/json"
	"slices"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// CompleteTask completes the activity that waits for a node task: with the result
// when the task succeeded, with a final error of the result's code when it failed
// or was lost, and as canceled when both the task and the activity were canceled.
// If the run was reset, the result goes to the new run.
//
// KindNotFound means that no activity waits: with reason schema.ReasonActivityClosed
// because the operation continued or ended without it, otherwise because its run is
// unknown or was terminated. A result that contains a secret or is too large for
// Temporal is withheld; the activity then fails with a message that says so.
func (c NodeTasks) CompleteTask(ctx context.Context, o task.Owner, r task.Result) error {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	if tooLarge(r) {
		r = withheld("it is larger than Temporal accepts")
	}
	err := c.complete(ctx, o, r)
	if isSecretLeak(err) {
		r = withheld("it contains what looks like a secret")
		err = c.complete(ctx, o, r)
	}
	if !is[*serviceerror.NotFound](err) {
		return c.interpret(err, "completing the task's activity")
	}
	runID, err := c.pendingRun(ctx, o)
	if err != nil {
		return c.interpret(err, "looking for the task's activity")
	}
	o.RunID = runID
	return c.interpret(c.complete(ctx, o, r), "completing the reset task's activity")
}

// maxResult bounds a result as the data converter encodes it. Temporal's limits are
// 2 MiB for a payload and 4 MiB for a request; it answers a larger request like an
// overload, so that a retry would never end.
const maxResult = 1 << 20

// tooLarge reports whether Temporal would reject the result for its size. The node
// API accepts no such result, but the output can grow in the database: jsonb writes
// the number 1e300 with all of its digits.
func tooLarge(r task.Result) bool {
	raw, err := json.Marshal(r)
	return err == nil && len(raw) > maxResult
}

// withheld replaces a result that must not or cannot enter Temporal.
func withheld(why string) task.Result {
	return task.Result{Status: task.Failed, Code: schema.KindTaskFailed, Message: "the node's report was withheld: " + why}
}

func (c NodeTasks) complete(ctx context.Context, o task.Owner, r task.Result) error {
	opts := client.CompleteActivityByIDOptions{
		Namespace: c.namespace, WorkflowID: o.WorkflowID, RunID: o.RunID, ActivityID: o.ActivityID,
	}
	if r.Status == task.Succeeded {
		opts.Result = r
		return c.sdk.CompleteActivityByIDWithOptions(ctx, opts)
	}
	if r.Status == task.Canceled {
		opts.Err = temporal.NewCanceledError()
		err := c.sdk.CompleteActivityByIDWithOptions(ctx, opts)
		if !is[*serviceerror.InvalidArgument](err) {
			return err
		}
		// An operator canceled the task but not the operation.
	}
	opts.Err = activities.Failure(r.Failure(), true)
	return c.sdk.CompleteActivityByIDWithOptions(ctx, opts)
}

// pendingRun finds the run of the same chain in which the activity is pending: a
// reset assigns a new run ID to a running workflow. Otherwise it returns KindNotFound as
// CompleteTask documents.
func (c NodeTasks) pendingRun(ctx context.Context, o task.Owner) (runID string, err error) {
	p, err := c.locate(ctx, o)
	if err != nil || p.activity != nil {
		return p.runID, err
	}
	gone := schema.NewError(schema.KindNotFound, "no activity %s is pending in %s", o.ActivityID, o.WorkflowID)
	if continuedWithout(p.status) {
		gone = gone.WithReason(schema.ReasonActivityClosed)
	}
	return "", gone
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
