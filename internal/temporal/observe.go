package temporal

import (
	"cmp"
	"context"
	"errors"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/grpc/codes"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Status queries an operation's status. An empty runID means the newest run. If another
// run continues the run, that one answers.
// KindNotFound when the node has none; KindServiceUnavailable with reason
// no_worker when no worker responds.
//
// A terminated run, for example one that was reset, would return its last status
// although the operation continues in another run, so it is rejected.
func (c Operations) Status(ctx context.Context, workflowID, runID string) (st lifecycle.OperationStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	for _, reject := range []enumspb.QueryRejectCondition{
		enumspb.QUERY_REJECT_CONDITION_NOT_COMPLETED_CLEANLY, enumspb.QUERY_REJECT_CONDITION_NONE} {
		answer, err := c.sdk.QueryWorkflowWithOptions(ctx, &client.QueryWorkflowWithOptionsRequest{
			WorkflowID: workflowID, RunID: runID, QueryType: lifecycle.QueryStatus, QueryRejectCondition: reject})
		switch {
		case err != nil:
			return st, queryError(c.connection, err, workflowID)
		case answer.QueryRejected == nil:
			err = answer.QueryResult.Get(&st)
			return st, c.interpret(err, "reading the operation's status")
		case answer.QueryRejected.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
			last, err := chain(c).newest(ctx, workflowID, runID)
			if err != nil || last == runID {
				return st, c.interpret(err, "looking for the run that continues the operation")
			}
			return c.Status(ctx, workflowID, last)
		case answer.QueryRejected.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED:
			return st, schema.NewError(schema.KindServiceUnavailable, "run %s was reset or terminated", runID).WithReason("run_terminated")
		}
	}
	return st, nil
}

func queryError(c *connection, err error, workflowID string) error {
	// The server returns FailedPrecondition for a queue without pollers.
	if code := codeOf(err); code == codes.FailedPrecondition || code == codes.DeadlineExceeded {
		return schema.NewError(schema.KindServiceUnavailable, "no worker responds for %s at %s", workflowID, c.address).
			WithReason(lifecycle.ReasonNoWorker).WithNext("start a gpuaas-worker, or run: gpuaas dev up")
	}
	return c.interpret(err, "querying the operation's status")
}

// Result waits until the run ends and returns its final status. It returns ctx's
// error unchanged.
func (c Operations) Result(ctx context.Context, workflowID, runID string) (lifecycle.OperationStatus, error) {
	var st lifecycle.OperationStatus
	err := c.sdk.GetWorkflow(ctx, workflowID, runID).Get(ctx, &st)
	if err == nil {
		return st, nil
	}
	if ctx.Err() != nil {
		return st, ctx.Err()
	}
	if canceled, ok := errors.AsType[*temporal.CanceledError](err); ok && canceled.HasDetails() {
		err = canceled.Details(&st)
		return st, c.interpret(err, "reading the canceled operation's status")
	}
	return st, c.interpret(err, "waiting for the operation")
}

// Resolve sends an operator's decision to the node's running operation and returns
// the status after it. A decision with the same ID again returns the first response.
// KindNotFound when none runs, KindInvalidRequest when the decision is not possible
// or contains a secret, KindDecisionOutdated when it is addressed to another
// operation, phase or park, KindKeyInUse when its ID belongs to another decision.
// KindServiceUnavailable with reason no_worker when no worker responds. A cancel is then
// stored in Temporal and applies when a worker is up: its reason is
// lifecycle.ReasonCancelStored. The reason is lifecycle.ReasonDecisionAccepted if the
// operation accepted the decision and applies it when the database is available, and
// reasonTasksFail if the run's workflow tasks fail.
func (c Operations) Resolve(caller context.Context, workflowID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	if err := c.scanner.Check(r); err != nil {
		return lifecycle.OperationStatus{}, err
	}
	ctx, cancel := context.WithTimeout(caller, submitBudget)
	defer cancel()
	var done lifecycle.Resolution
	if r.RunID == "" && (r.Decision == lifecycle.DecisionForce || r.Decision == lifecycle.DecisionSkip) {
		current, err := c.sdk.DescribeWorkflowExecution(ctx, workflowID, "")
		if err != nil && !is[*serviceerror.NotFound](err) {
			return lifecycle.OperationStatus{}, c.interpret(err, "looking for the operation's run")
		}
		r.RunID = current.GetWorkflowExecutionInfo().GetExecution().GetRunId()
	}
	r.ID = cmp.Or(r.ID, schema.NewID())
	err := c.update(ctx, client.UpdateWorkflowOptions{
		WorkflowID: workflowID, UpdateID: r.ID, UpdateName: lifecycle.UpdateResolve, Args: []any{r},
		WaitForStage: client.WorkflowUpdateStageCompleted,
	}, &done)
	if errors.Is(err, errEnded) {
		// The run took the decision and closed; a newer one may run.
		run, err := c.runOf(ctx, workflowID, r.OperationID)
		if err == nil && run == "" {
			err = schema.NewError(schema.KindNotFound, "Temporal lists no run of operation %s", r.OperationID)
		}
		if err != nil {
			return lifecycle.OperationStatus{}, c.interpret(err, "looking for the operation's run")
		}
		return c.Status(ctx, workflowID, run)
	}
	unanswered := is[*client.WorkflowUpdateServiceTimeoutOrCanceledError](err) || is[*serviceerror.WorkflowNotReady](err)
	if unanswered && !errors.Is(caller.Err(), context.Canceled) {
		return lifecycle.OperationStatus{}, c.resolveLater(caller, workflowID, r, err)
	}
	return c.resolution(r, done, err)
}

// Resolved returns the first response to the decision with the request's ID, even
// after the run ended. It asks the newest run that continues runID, then those before.
// KindNotFound if none of them took a decision with this ID, KindKeyInUse if it was
// another decision.
func (c Operations) Resolved(ctx context.Context, workflowID, runID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	run, err := chain(c).newest(ctx, workflowID, runID)
	for err == nil && run != "" {
		var done lifecycle.Resolution
		err = c.sdk.GetWorkflowUpdateHandle(client.GetWorkflowUpdateHandleOptions{WorkflowID: workflowID, RunID: run, UpdateID: r.ID}).Get(ctx, &done)
		if !is[*serviceerror.NotFound](err) { // the SDK wraps it as a timeout
			return c.resolution(r, done, err)
		}
		run, err = chain(c).previous(ctx, workflowID, run)
	}
	if err != nil {
		return lifecycle.OperationStatus{}, c.interpret(err, "looking for the operation's runs")
	}
	return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "operation %s took no decision %s", r.OperationID, r.ID)
}

// resolution is the answer to a decision, which the ID of r may share with another one.
// The phase and park of r do not matter: a repeat may name those after the decision.
func (c Operations) resolution(r lifecycle.ResolveRequest, done lifecycle.Resolution, err error) (lifecycle.OperationStatus, error) {
	if err != nil {
		return lifecycle.OperationStatus{}, c.interpret(err, "sending the decision")
	}
	if first := done.Request; first.Decision != r.Decision || first.Reason != r.Reason {
		return lifecycle.OperationStatus{}, schema.NewError(schema.KindKeyInUse,
			"the idempotency key belongs to another decision about operation %s: to %s", r.OperationID, first.Decision).
			WithNext("use a new key for a new decision")
	}
	return done.OperationStatus, nil
}

// errEnded is returned when a run closes while it handles an update.
var errEnded = errors.New("the run ended while it handled the update")

// update sends an update and reads its response. If the run changes concurrently (for
// example a result arrives as the run closes), the server drops the update and reports
// it. update then repeats the same update ID, which is safe. It returns errEnded if
// the run has ended, and WorkflowNotReady if the server dropped the update until ctx ended,
// for example because the run's workflow tasks fail.
func (c Operations) update(ctx context.Context, o client.UpdateWorkflowOptions, answer any) error {
	var dropped error
	for {
		handle, err := c.sdk.UpdateWorkflow(ctx, o)
		if err == nil {
			err = handle.Get(ctx, answer)
		}
		switch {
		case dropped != nil && is[*serviceerror.NotFound](err):
			return errEnded
		case err != nil && dropped != nil && ctx.Err() != nil:
			return dropped
		}
		if dropped = err; !is[*serviceerror.WorkflowNotReady](err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(droppedWait):
		}
	}
}

// droppedWait is the wait before a dropped update is sent again.
const droppedWait = 100 * time.Millisecond

// closed reports whether a run with this status is over.
func closed(s enumspb.WorkflowExecutionStatus) bool {
	return s != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING && s != enumspb.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED
}
