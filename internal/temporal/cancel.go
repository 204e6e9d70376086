package temporal

import (
	"context"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	updatepb "go.temporal.io/api/update/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// reasonTasksFail: the run takes no decision, because its workflow tasks fail.
const reasonTasksFail = "workflow_tasks_fail"

// resolveLater handles a decision without a response. An update that the operation
// accepted is in its history and applies later. Temporal keeps an update only in memory
// until a worker accepts it. A cancel therefore becomes a cancellation of the run, which
// Temporal stores, unless it is about an earlier park of the operation. The other decisions
// must be repeated. It uses a context of its own, because the caller's may have just ended.
func (c Operations) resolveLater(ctx context.Context, workflowID string, r lifecycle.ResolveRequest, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBudget)
	defer cancel()
	d, err := c.sdk.DescribeWorkflowExecution(ctx, workflowID, "")
	info := d.GetWorkflowExecutionInfo()
	if err != nil || closed(info.GetStatus()) || operationOf(info) != r.OperationID {
		return c.interpret(cause, "sending the decision")
	}
	plan, _ := lifecycle.PlanOfWorkflow(info.GetType().GetName())
	host := attribute[string](info.GetSearchAttributes(), lifecycle.AttrHost)
	if c.accepted(ctx, info.GetExecution(), r.ID) {
		return schema.Wrap(schema.KindServiceUnavailable, cause,
			"operation %s accepted the decision and has not applied it within %s; it applies when the database and a gpuaas-worker are available", r.OperationID, submitBudget).
			WithReason(lifecycle.ReasonDecisionAccepted).
			WithNext(lifecycle.OpCommand("watch", plan.Action, host))
	}
	if is[*serviceerror.WorkflowNotReady](cause) || d.GetPendingWorkflowTask().GetAttempt() >= failedTasks {
		return schema.Wrap(schema.KindServiceUnavailable, cause, "the workflow tasks of operation %s fail, so no decision reaches it", r.OperationID).
			WithReason(reasonTasksFail).WithNext("correct what the log of gpuaas-worker names; or terminate the run in Temporal, then run " +
			lifecycle.RehydrateCommand(host))
	}
	if r.Decision != lifecycle.DecisionCancel {
		return schema.Wrap(schema.KindServiceUnavailable, cause, "no worker responded to the decision within %s; it is not stored", submitBudget).
			WithReason(lifecycle.ReasonNoWorker).WithNext("start a gpuaas-worker, then repeat the command")
	}
	if at := attribute[time.Time](info.GetSearchAttributes(), lifecycle.AttrStuckSince); r.StuckSince != nil && !r.StuckSince.Equal(at) {
		return schema.NewError(schema.KindDecisionOutdated, "operation %s is no longer parked since %s", r.OperationID, r.StuckSince.Format(time.RFC3339)).
			WithNext(lifecycle.OpCommand("show", plan.Action, host))
	}
	err = c.sdk.CancelWorkflowWithOptions(ctx, client.CancelWorkflowOptions{
		WorkflowID: workflowID, RunID: info.GetExecution().GetRunId(), Reason: r.By + ": " + r.Reason})
	if err != nil {
		return c.interpret(err, "canceling the operation")
	}
	return schema.NewError(schema.KindServiceUnavailable,
		"no worker responded within %s; Temporal stored the cancel, which undoes the operation as soon as a worker is up", submitBudget).
		WithReason(lifecycle.ReasonCancelStored).WithNext("start a gpuaas-worker, or run: gpuaas dev up")
}

// accepted reports whether a run has accepted an update. It does not wait.
func (c Operations) accepted(ctx context.Context, run *commonpb.WorkflowExecution, updateID string) bool {
	answer, err := c.sdk.WorkflowService().PollWorkflowExecutionUpdate(ctx, &workflowservice.PollWorkflowExecutionUpdateRequest{
		Namespace: c.namespace, UpdateRef: &updatepb.UpdateRef{WorkflowExecution: run, UpdateId: updateID}})
	return err == nil && answer.GetStage() >= enumspb.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED &&
		answer.GetOutcome().GetFailure() == nil // a rejection
}
