package temporal

import (
	"context"

	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// resolveLater handles a decision that no worker answered. Temporal keeps an update only
// in memory until a worker accepts it. A cancel therefore becomes a cancellation of the
// run, which Temporal stores. The other decisions must be repeated. It uses a context of
// its own, because the caller's may have just ended.
func (c Operations) resolveLater(ctx context.Context, workflowID string, r lifecycle.ResolveRequest, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBudget)
	defer cancel()
	d, err := c.sdk.DescribeWorkflowExecution(ctx, workflowID, "")
	info := d.GetWorkflowExecutionInfo()
	if err != nil || closed(info.GetStatus()) || operationOf(info) != r.OperationID {
		return c.interpret(cause, "sending the decision")
	}
	if r.Decision != lifecycle.DecisionCancel {
		return schema.Wrap(schema.KindServiceUnavailable, cause, "no worker responded to the decision within %s; it is not stored", submitBudget).
			WithReason("no_worker").WithNext("start a gpuaas-worker, then repeat the command")
	}
	err = c.sdk.CancelWorkflowWithOptions(ctx, client.CancelWorkflowOptions{
		WorkflowID: workflowID, RunID: info.GetExecution().GetRunId(), Reason: r.By + ": " + r.Reason})
	if err != nil {
		return c.interpret(err, "canceling the operation")
	}
	return schema.NewError(schema.KindServiceUnavailable,
		"no worker responded within %s; Temporal stored the cancel, which undoes the operation as soon as a worker is up", submitBudget).
		WithReason("no_worker").WithNext("start a gpuaas-worker, or run: gpuaas dev up")
}
