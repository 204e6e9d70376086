package temporal

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
)

// renewing is an operation whose first run was continued by a second one.
type renewing struct {
	*Client
	t     *testing.T
	op    lifecycle.Operation
	first lifecycle.ResolveRequest
}

// renews is a workflow that answers decisions. Its first run continues as a new one at a
// signal; a signal ends the second one.
func renews(ctx workflow.Context, op lifecycle.Operation, renewed bool) (st lifecycle.OperationStatus, err error) {
	op.Status, op.RunID = lifecycle.OperationRunning, workflow.GetInfo(ctx).WorkflowExecution.RunID
	if renewed {
		op.Status = lifecycle.OperationParked
	}
	st.Operation = op
	if err := workflow.SetQueryHandler(ctx, lifecycle.QueryStatus, func() (lifecycle.OperationStatus, error) { return st, nil }); err != nil {
		return st, err
	}
	if err := workflow.SetUpdateHandler(ctx, lifecycle.UpdateResolve,
		func(_ workflow.Context, r lifecycle.ResolveRequest) (lifecycle.Resolution, error) {
			return lifecycle.Resolution{OperationStatus: st, Request: r}, nil
		}); err != nil {
		return st, err
	}
	workflow.GetSignalChannel(ctx, lifecycle.SignalAgent).Receive(ctx, nil)
	if !renewed {
		return st, workflow.NewContinueAsNewError(ctx, "renews", op, true)
	}
	st.Operation.End(lifecycle.OperationCompleted, "done", workflow.Now(ctx))
	return st, nil
}

func newRenewing(t *testing.T) *renewing {
	t.Helper()
	r := &renewing{Client: connect(t), t: t}
	w := worker.New(r.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(renews, workflow.RegisterOptions{Name: "renews"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	r.op = lifecycle.Operation{OperationID: schema.NewID(), WorkflowID: lifecycle.NodeWorkflowID("gpu-17", schema.NewID())}
	r.op.RunID = r.start(r.op)
	r.first = lifecycle.ResolveRequest{ID: schema.NewID(), OperationID: r.op.OperationID, Decision: lifecycle.DecisionRetry, Reason: "because"}
	_, err := r.Operations.Resolve(t.Context(), r.op.WorkflowID, r.first)
	require.NoError(t, err)
	r.proceed(enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW)
	return r
}

func (r *renewing) start(op lifecycle.Operation) (runID string) {
	r.t.Helper()
	run, err := r.sdk.ExecuteWorkflow(r.t.Context(), client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue, ID: op.WorkflowID,
		TypedSearchAttributes: sdk.NewSearchAttributes(sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrOperationID).ValueSet(op.OperationID))},
		"renews", op, false)
	require.NoError(r.t, err)
	return run.GetRunID()
}

// proceed lets the newest run continue, until the first one has the status.
func (r *renewing) proceed(want enumspb.WorkflowExecutionStatus) {
	r.t.Helper()
	require.NoError(r.t, r.NodeTasks.SignalAgent(r.t.Context(), r.op.WorkflowID, lifecycle.AgentEvent{}))
	harness.Eventually(r.t, "the run continued", func() bool {
		d, err := r.sdk.DescribeWorkflowExecution(r.t.Context(), r.op.WorkflowID, r.op.RunID)
		require.NoError(r.t, err)
		return d.GetWorkflowExecutionInfo().GetStatus() == want
	})
}

// complete ends the second run and starts another operation under the same workflow ID.
func (r *renewing) complete() {
	r.t.Helper()
	require.NoError(r.t, r.NodeTasks.SignalAgent(r.t.Context(), r.op.WorkflowID, lifecycle.AgentEvent{}))
	_, err := r.Operations.Result(r.t.Context(), r.op.WorkflowID, "")
	require.NoError(r.t, err)
	other := r.op
	other.OperationID = schema.NewID()
	r.start(other)
}

// TestRenewedRun: what the recorded run of an operation is asked is answered by the run
// that continues it, also when another operation has the newest run.
func TestRenewedRun(t *testing.T) {
	r := newRenewing(t)
	ctx := t.Context()
	status := func(want lifecycle.OperationState) {
		t.Helper()
		st := statusOf(t, r.Client, r.op.WorkflowID, r.op.RunID)
		require.Equal(t, want, st.Operation.Status)
		require.Equal(t, r.op.OperationID, st.Operation.OperationID)
		require.NotEqual(t, r.op.RunID, st.Operation.RunID)
	}
	end := func(want lifecycle.RunEnd) {
		t.Helper()
		got, err := r.Operations.RunEnd(ctx, r.op)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	status(lifecycle.OperationParked)
	end("")
	r.complete()
	status(lifecycle.OperationCompleted)
	end(lifecycle.RunClosed)
	st, err := r.Operations.Result(ctx, r.op.WorkflowID, r.op.RunID)
	require.NoError(t, err)
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)

	err = r.NodeTasks.CompleteTask(ctx, task.Owner{WorkflowID: r.op.WorkflowID, RunID: r.op.RunID, ActivityID: "cordon"}, task.Reference{})
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindNotFound, Reason: schema.ReasonActivityClosed})
}

// TestEndOfARenewedRun: the end of an operation is that of its last run.
func TestEndOfARenewedRun(t *testing.T) {
	r := newRenewing(t)
	ctx := t.Context()
	require.NoError(t, r.sdk.TerminateWorkflow(ctx, r.op.WorkflowID, "", "by hand"))
	r.start(lifecycle.Operation{OperationID: schema.NewID(), WorkflowID: r.op.WorkflowID})
	got, err := r.Operations.RunEnd(ctx, r.op)
	require.NoError(t, err)
	require.Equal(t, lifecycle.RunTerminated, got)
	_, err = r.Operations.Status(ctx, r.op.WorkflowID, r.op.RunID)
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindServiceUnavailable, Reason: "run_terminated"})
}

// TestResolvedAcrossRuns: the response to a decision is found in whichever run took it,
// from whichever run is known.
func TestResolvedAcrossRuns(t *testing.T) {
	r := newRenewing(t)
	ctx := t.Context()
	second := r.first
	second.ID = schema.NewID()
	now, err := r.Operations.Resolve(ctx, r.op.WorkflowID, second)
	require.NoError(t, err)
	r.complete()
	for decision, taken := range map[string]lifecycle.OperationState{r.first.ID: lifecycle.OperationRunning, second.ID: lifecycle.OperationParked} {
		for _, run := range []string{r.op.RunID, now.Operation.RunID} {
			ask := r.first
			ask.ID = decision
			st, err := r.Operations.Resolved(ctx, r.op.WorkflowID, run, ask)
			require.NoError(t, err)
			require.Equal(t, taken, st.Operation.Status)
		}
	}
	unknown := r.first
	unknown.ID = schema.NewID()
	_, err = r.Operations.Resolved(ctx, r.op.WorkflowID, r.op.RunID, unknown)
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
}

// noHistory is a client that refuses to read a history.
type noHistory struct{ client.Client }

func (noHistory) GetWorkflowHistory(context.Context, string, string, bool, enumspb.HistoryEventFilterType) client.HistoryEventIterator {
	return refusal{}
}

type refusal struct{ client.HistoryEventIterator }

func (refusal) HasNext() bool { return true }

func (refusal) Next() (*historypb.HistoryEvent, error) {
	return nil, errors.New("the history was read")
}

// The server responds to a request for the close event of a running workflow only when the
// workflow closes, or half the deadline has passed.
func TestNewestRunDoesNotWaitForItsEnd(t *testing.T) {
	c := connect(t)
	in := drainOf("gpu-17")
	run := begin(t, c, in).GetRunID()
	runs := chain{&connection{sdk: noHistory{c.sdk}, namespace: c.namespace}}
	newest, err := runs.newest(t.Context(), workflowID(in), run)
	require.NoError(t, err)
	require.Equal(t, run, newest)
}
