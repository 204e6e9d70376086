package temporal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/grpc/codes"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// parkedPage bounds how many parked operations one listing returns.
const parkedPage = 200

// Status queries an operation's status. An empty runID means the newest run.
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
			return st, c.queryError(err, workflowID)
		case answer.QueryRejected == nil:
			err = answer.QueryResult.Get(&st)
			return st, c.interpret(err, "reading the operation's status")
		case answer.QueryRejected.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED:
			return st, schema.NewError(schema.KindServiceUnavailable, "run %s was reset or terminated", runID).WithReason("run_terminated")
		}
	}
	return st, nil
}

func (c Operations) queryError(err error, workflowID string) error {
	// The server returns FailedPrecondition for a queue without pollers.
	if code := codeOf(err); code == codes.FailedPrecondition || code == codes.DeadlineExceeded {
		return schema.NewError(schema.KindServiceUnavailable, "no worker responds for %s at %s", workflowID, c.address).
			WithReason("no_worker").WithNext("start a gpuaas-worker, or run: gpuaas dev up")
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
// KindServiceUnavailable with reason no_worker when no worker responds: a cancel is then
// stored in Temporal and applies when a worker is up.
func (c Operations) Resolve(caller context.Context, workflowID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	if err := c.scanner.Check(r); err != nil {
		return lifecycle.OperationStatus{}, err
	}
	ctx, cancel := context.WithTimeout(caller, submitBudget)
	defer cancel()
	var done lifecycle.Resolution
	err := c.update(ctx, client.UpdateWorkflowOptions{
		WorkflowID: workflowID, UpdateID: cmp.Or(r.ID, schema.NewID()), UpdateName: lifecycle.UpdateResolve, Args: []any{r},
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
	if is[*client.WorkflowUpdateServiceTimeoutOrCanceledError](err) && !errors.Is(caller.Err(), context.Canceled) {
		return lifecycle.OperationStatus{}, c.resolveLater(caller, workflowID, r, err)
	}
	return c.resolution(r, done, err)
}

// Resolved returns the first response to the decision with the request's ID, even
// after the run ended. KindNotFound if the run took no decision with this ID,
// KindKeyInUse if it was another decision.
func (c Operations) Resolved(ctx context.Context, workflowID, runID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	var done lifecycle.Resolution
	err := c.sdk.GetWorkflowUpdateHandle(client.GetWorkflowUpdateHandleOptions{WorkflowID: workflowID, RunID: runID, UpdateID: r.ID}).Get(ctx, &done)
	if is[*serviceerror.NotFound](err) { // the SDK wraps it as a timeout
		return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "operation %s took no decision %s", r.OperationID, r.ID)
	}
	return c.resolution(r, done, err)
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
// the run has ended.
func (c Operations) update(ctx context.Context, o client.UpdateWorkflowOptions, answer any) error {
	for try := 0; ; try++ {
		handle, err := c.sdk.UpdateWorkflow(ctx, o)
		if err == nil {
			err = handle.Get(ctx, answer)
		}
		if is[*serviceerror.NotFound](err) && try > 0 {
			return errEnded
		}
		if !is[*serviceerror.WorkflowNotReady](err) {
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

// Parked lists the parked operations, oldest first and at most parkedPage of them, by
// their search attributes. It needs no worker; Status returns the decisions that are
// possible.
func (c Operations) Parked(ctx context.Context) ([]lifecycle.OperationStatus, error) {
	query := fmt.Sprintf("ExecutionStatus = 'Running' AND %s IN ('%s','%s','%s','%s')", lifecycle.AttrAttention,
		lifecycle.AttentionAgent, lifecycle.AttentionProvider, lifecycle.AttentionOperator, lifecycle.AttentionCompensation)
	infos, err := c.list(ctx, query, parkedPage)
	if err != nil {
		return nil, err
	}
	out := make([]lifecycle.OperationStatus, len(infos))
	for i, info := range infos {
		out[i] = parked(info)
	}
	slices.SortFunc(out, func(a, b lifecycle.OperationStatus) int {
		return a.Operation.Stuck.Since.Compare(b.Operation.Stuck.Since)
	})
	return out, nil
}

func parked(info *workflowpb.WorkflowExecutionInfo) lifecycle.OperationStatus {
	attrs, exec, started := info.GetSearchAttributes(), info.GetExecution(), info.GetStartTime().AsTime()
	plan, _ := lifecycle.PlanOfWorkflow(info.GetType().GetName())
	host := attribute[string](attrs, lifecycle.AttrHost)
	return lifecycle.OperationStatus{
		Operation: lifecycle.Operation{
			OperationID: attribute[string](attrs, lifecycle.AttrOperationID), WorkflowID: exec.GetWorkflowId(), RunID: exec.GetRunId(),
			Action: plan.Action, Status: lifecycle.OperationParked, StartedAt: &started,
			Stuck: &lifecycle.Stuck{
				Phase:     attribute[string](attrs, lifecycle.AttrPhase),
				WaitingOn: attribute[lifecycle.Attention](attrs, lifecycle.AttrAttention),
				Reason:    attribute[string](attrs, lifecycle.AttrStuckReason),
				Since:     attribute[time.Time](attrs, lifecycle.AttrStuckSince),
				Next:      lifecycle.OpCommand("show", plan.Action, host),
			},
		},
		Node: lifecycle.NodeRef{NodeID: attribute[string](attrs, lifecycle.AttrNodeID), Host: host},
	}
}

// Described returns what Temporal itself has about an open operation: enough to address a
// decision while no worker responds. KindNotFound when no such run is open.
func (c Operations) Described(ctx context.Context, workflowID string) (lifecycle.OperationStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	d, err := c.sdk.DescribeWorkflowExecution(ctx, workflowID, "")
	if err != nil {
		return lifecycle.OperationStatus{}, c.interpret(err, "reading the operation's run")
	}
	info := d.GetWorkflowExecutionInfo()
	if closed(info.GetStatus()) {
		return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "no run of %s is open", workflowID)
	}
	st := parked(info)
	if st.Operation.Stuck.WaitingOn == lifecycle.AttentionNone {
		st.Operation.Status, st.Operation.Stuck = lifecycle.OperationAccepted, nil
	}
	return st, nil
}

// FindNode finds a node by its host name or id among the operations that Temporal
// retains, for use without the admin API. KindNotFound when there is none.
func (c Operations) FindNode(ctx context.Context, name string) (lifecycle.NodeRef, error) {
	key := lifecycle.AttrHost
	if schema.IsID(name) {
		key = lifecycle.AttrNodeID
	}
	infos, err := c.list(ctx, fmt.Sprintf("%s = %q", key, name), 1)
	if err != nil {
		return lifecycle.NodeRef{}, err
	}
	if len(infos) == 0 {
		return lifecycle.NodeRef{}, schema.NewError(schema.KindNotFound, "Temporal retains no operation of node %q", name)
	}
	attrs := infos[0].GetSearchAttributes()
	return lifecycle.NodeRef{NodeID: attribute[string](attrs, lifecycle.AttrNodeID), Host: attribute[string](attrs, lifecycle.AttrHost)}, nil
}

func (c Operations) list(ctx context.Context, query string, limit int32) ([]*workflowpb.WorkflowExecutionInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	answer, err := c.sdk.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Query: query, PageSize: limit})
	if err != nil {
		return nil, c.interpret(err, "listing operations")
	}
	return answer.GetExecutions(), nil
}

// operationOf returns the id of a run's operation.
func operationOf(info *workflowpb.WorkflowExecutionInfo) string {
	return attribute[string](info.GetSearchAttributes(), lifecycle.AttrOperationID)
}

// attribute reads a search attribute; the zero value when it is not set.
func attribute[T any](attrs *commonpb.SearchAttributes, name string) (value T) {
	if p := attrs.GetIndexedFields()[name]; p != nil {
		_ = converter.GetDefaultDataConverter().FromPayload(p, &value) // another type counts as not set
	}
	return value
}

// closed reports whether a run with this status is over.
func closed(s enumspb.WorkflowExecutionStatus) bool {
	return s != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING && s != enumspb.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED
}
