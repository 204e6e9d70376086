package temporal

import (
	"context"
	"errors"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

func isDeadline(err error) bool {
	if _, ok := errors.AsType[*serviceerror.DeadlineExceeded](err); ok {
		return true
	}
	return status.Code(err) == codes.DeadlineExceeded
}

// CompleteTask completes the activity that waits for a node task: with the
// result when the task succeeded, with a final error of the result's code when
// it failed or was given up, as cancelled when it was cancelled and the activity
// was too. A run that was reset meanwhile
// gets the result under its new run id. KindNotFound says that nothing waits
// any more: with reason schema.ReasonSettled because the operation went on or
// ended by itself, without it because its run is gone or was terminated. A
// result that holds a secret is kept back and completes the activity as failed,
// which says so.
func (c *Client) CompleteTask(ctx context.Context, o task.Owner, r task.Result) error {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	err := c.complete(ctx, o, r)
	if isSecretLeak(err) {
		r = task.Result{Status: task.Failed, Code: schema.KindTaskFailed,
			Message: "the node's report was kept back: it holds what looks like a secret"}
		err = c.complete(ctx, o, r)
	}
	if _, gone := errors.AsType[*serviceerror.NotFound](err); !gone {
		return c.interpret(err, "completing the task's activity")
	}
	runID, err := c.waiting(ctx, o)
	if err != nil {
		return c.interpret(err, "looking for the task's activity")
	}
	o.RunID = runID
	return c.interpret(c.complete(ctx, o, r), "completing the reset task's activity")
}

func (c *Client) complete(ctx context.Context, o task.Owner, r task.Result) error {
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
		if _, unasked := errors.AsType[*serviceerror.InvalidArgument](err); !unasked {
			return err
		}
		// An operator cancelled the task and not the operation.
	}
	e := r.Failure()
	opts.Err = temporal.NewApplicationErrorWithOptions(e.Message, string(e.Kind), temporal.ApplicationErrorOptions{
		NonRetryable: true, Details: []any{schema.ErrorInfo{Reason: e.Reason, Next: e.Next}}})
	return c.sdk.CompleteActivityByIDWithOptions(ctx, opts)
}

// waiting finds the run of the same chain in which the activity is pending now:
// a reset gives a running workflow a new run id. Otherwise it answers
// KindNotFound, as CompleteTask says.
func (c *Client) waiting(ctx context.Context, o task.Owner) (runID string, err error) {
	gone := schema.NewError(schema.KindNotFound, "no activity %s waits in %s any more", o.ActivityID, o.WorkflowID)
	p, err := c.locate(ctx, o)
	switch {
	case err != nil:
		return "", err
	case settled(p.status):
		gone = gone.WithReason(schema.ReasonSettled)
	}
	if p.activity == nil {
		return "", gone
	}
	return p.runID, nil
}

// place is where a task's activity is now. The zero value says that its run is
// not known any more.
type place struct {
	runID  string
	status enumspb.WorkflowExecutionStatus
	// activity is set while it is pending in a run that goes on.
	activity *workflowpb.PendingActivityInfo
}

// locate finds the newest run of the owner's chain and the activity in it.
func (c *Client) locate(ctx context.Context, o task.Owner) (place, error) {
	before, err := c.sdk.DescribeWorkflowExecution(ctx, o.WorkflowID, o.RunID)
	if _, unknown := errors.AsType[*serviceerror.NotFound](err); unknown {
		return place{}, nil
	}
	if err != nil {
		return place{}, err
	}
	now, err := c.sdk.DescribeWorkflowExecution(ctx, o.WorkflowID, "")
	if err != nil {
		return place{}, err
	}
	info := now.GetWorkflowExecutionInfo()
	if info.GetFirstRunId() != before.GetWorkflowExecutionInfo().GetFirstRunId() {
		info = before.GetWorkflowExecutionInfo()
	}
	p := place{runID: info.GetExecution().GetRunId(), status: info.GetStatus()}
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

// settled reports whether a run with this status has no use for a late result:
// it went on without it, or it ended by itself.
func settled(s enumspb.WorkflowExecutionStatus) bool {
	switch s {
	case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED,
		enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
		return true
	}
	return false
}

// SignalAgent delivers an agent event to the node's running workflow.
// KindNotFound says that none runs.
func (c *Client) SignalAgent(ctx context.Context, workflowID string, e lifecycle.AgentEvent) error {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	return c.interpret(c.sdk.SignalWorkflow(ctx, workflowID, "", lifecycle.SignalAgent, e), "signalling the operation")
}
