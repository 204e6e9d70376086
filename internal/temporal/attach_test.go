package temporal

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// operationWorker runs operations that respond to their submit, if they may claim their
// node, and end with a signal or a cancel.
func operationWorker(t *testing.T, c *Client, claim func(context.Context) error) {
	t.Helper()
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
		st := lifecycle.OperationStatus{Operation: lifecycle.Operation{OperationID: in.OperationID, Status: lifecycle.OperationRunning}}
		claimed := false
		if err := errors.Join(
			workflow.SetQueryHandler(ctx, lifecycle.QueryStatus, func() (lifecycle.OperationStatus, error) { return st, nil }),
			workflow.SetUpdateHandler(ctx, lifecycle.UpdateSubmit, func(ctx workflow.Context) (lifecycle.Operation, error) {
				return st.Operation, workflow.Await(ctx, func() bool { return claimed })
			})); err != nil {
			return st, err
		}
		try := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		if err := workflow.ExecuteActivity(try, "claim").Get(ctx, nil); err != nil {
			return st, err
		}
		claimed = true
		workflow.GetSignalChannel(ctx, lifecycle.SignalAgent).Receive(ctx, nil)
		st.Operation.End(lifecycle.OperationCompleted, "drained", workflow.Now(ctx))
		return st, ctx.Err()
	}, workflow.RegisterOptions{Name: plan.Workflow})
	w.RegisterActivityWithOptions(claim, activity.RegisterOptions{Name: "claim"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
}

func drainOf(host string) lifecycle.OperationInput {
	return lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: schema.NewID(), Host: host, Action: lifecycle.ActionDrain, Actor: "alice"}
}

// begin starts the operation without its update: so Temporal has it after the loss of an
// update that no worker accepted.
func begin(t *testing.T, c *Client, in lifecycle.OperationInput) client.WorkflowRun {
	t.Helper()
	plan, _ := lifecycle.PlanOf(in.Action, in.Options)
	run, err := c.sdk.ExecuteWorkflow(t.Context(), startOptions(in, plan), plan.Workflow, in)
	require.NoError(t, err)
	return run
}

func succeeds(context.Context) error { return nil }

// A repeated submit attaches to its own run, while it runs and after it ended, also when a
// newer operation holds the node.
func TestRepeatedSubmitAttaches(t *testing.T) {
	c := connect(t)
	operationWorker(t, c, succeeds)
	in := drainOf("gpu-17")
	run := begin(t, c, in)
	submit := func(in lifecycle.OperationInput) string {
		op, err := c.Operations.Submit(t.Context(), in)
		require.NoError(t, err)
		return op.OperationID
	}
	require.Equal(t, in.OperationID, submit(in))

	require.NoError(t, c.NodeTasks.SignalAgent(t.Context(), workflowID(in), lifecycle.AgentEvent{}))
	require.NoError(t, run.Get(t.Context(), nil))
	require.Equal(t, in.OperationID, submit(in), "after the end")

	newer := in
	newer.OperationID = schema.NewID()
	require.Equal(t, newer.OperationID, submit(newer))
	harness.Eventually(t, "the older operation is listed", func() bool {
		op, err := c.Operations.Submit(t.Context(), in)
		require.True(t, err == nil || schema.KindOf(err) == schema.KindOperationInProgress, "%v", err)
		return err == nil && op.OperationID == in.OperationID
	})
	third := in
	third.OperationID = schema.NewID()
	_, err := c.Operations.Submit(t.Context(), third)
	require.Equal(t, schema.KindOperationInProgress, schema.KindOf(err))
	require.ErrorContains(t, err, newer.OperationID)
}

// short ends before a submit's or a decision's own budget.
func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// expiring is a context whose deadline passes when over is closed.
type expiring struct {
	context.Context //nolint:containedctx // it is a context
	over            chan struct{}
}

// Done implements context.Context.
func (e expiring) Done() <-chan struct{} { return e.over }

// Err implements context.Context.
func (e expiring) Err() error {
	select {
	case <-e.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// errorAfter makes a call whose deadline passes once the condition holds, and returns its error.
func errorAfter[T any](t *testing.T, what string, holds func() bool, call func(ctx context.Context) (T, error)) *schema.Error {
	t.Helper()
	ctx, ended := expiring{t.Context(), make(chan struct{})}, make(chan error, 1)
	go func() {
		_, err := call(ctx)
		ended <- err
	}()
	harness.Eventually(t, what, holds)
	close(ctx.over)
	return schema.AsError(harness.Receive(t, "the end of the call", ended))
}

func TestSubmitNamesTheDatabase(t *testing.T) {
	c := connect(t)
	operationWorker(t, c, func(context.Context) error { return errors.New("Postgres at db:5432 does not respond") })
	in := drainOf("gpu-17")
	e := errorAfter(t, "the claim is tried", func() bool {
		d, err := c.sdk.DescribeWorkflowExecution(t.Context(), workflowID(in), "")
		return err == nil && len(d.GetPendingActivities()) > 0 && d.GetPendingActivities()[0].GetLastFailure() != nil
	}, func(ctx context.Context) (lifecycle.Operation, error) { return c.Operations.Submit(ctx, in) })
	require.Equal(t, []string{string(schema.KindServiceUnavailable), "database_unavailable"}, []string{string(e.Kind), e.Reason})
	require.Contains(t, e.Message, "Postgres at db:5432 does not respond")
}

// Without a worker, a cancel is stored; another decision is not, and says so. Neither
// reaches another operation.
func TestDecisionWithoutWorker(t *testing.T) {
	c := connect(t)
	in := drainOf("gpu-17")
	_, err := c.Operations.Submit(short(t), in)
	require.Equal(t, "no_worker", schema.AsError(err).Reason, "%v", err)
	require.Equal(t, "start a gpuaas-worker, then run: gpuaas op watch gpu-17 --operation "+in.OperationID, schema.AsError(err).Next, "not the operation before it")
	decide := func(operation string, d lifecycle.Decision) *schema.Error {
		_, err := c.Operations.Resolve(short(t), workflowID(in), lifecycle.ResolveRequest{
			OperationID: operation, Decision: d, Reason: "wrong node", By: "alice"})
		return schema.AsError(err)
	}
	require.Equal(t, "no_worker", decide(in.OperationID, lifecycle.DecisionRetry).Reason)
	require.Equal(t, "temporal_unreachable", decide(schema.NewID(), lifecycle.DecisionCancel).Reason)
	d, err := c.sdk.DescribeWorkflow(t.Context(), workflowID(in), "")
	require.NoError(t, err)
	require.Equal(t, enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, d.Status)

	st, err := c.Operations.Described(t.Context(), workflowID(in))
	require.NoError(t, err)
	require.Equal(t, []string{in.OperationID, in.NodeID, in.Host, string(lifecycle.OperationAccepted)},
		[]string{st.Operation.OperationID, st.Node.NodeID, st.Node.Host, string(st.Operation.Status)})
	since := time.Now()
	_, err = c.Operations.Resolve(short(t), workflowID(in), lifecycle.ResolveRequest{OperationID: in.OperationID, StuckSince: &since,
		Decision: lifecycle.DecisionCancel, Reason: "wrong node", By: "alice"})
	require.Equal(t, schema.KindDecisionOutdated, schema.KindOf(err), "the run is not parked: %v", err)
	e := decide(in.OperationID, lifecycle.DecisionCancel)
	require.Equal(t, lifecycle.ReasonCancelStored, e.Reason)
	require.Contains(t, e.Message, "stored the cancel")
	operationWorker(t, c, succeeds)
	harness.Eventually(t, "the cancel", func() bool {
		d, err := c.sdk.DescribeWorkflow(t.Context(), workflowID(in), "")
		return err == nil && d.Status == enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED
	})
	st, err = c.Operations.Described(t.Context(), workflowID(in))
	require.NoError(t, err)
	require.NotNil(t, st.Operation.EndedAt)
	require.Equal(t, in.OperationID, st.Operation.OperationID)
	require.Empty(t, st.Operation.Status, "the run's status is not the operation's")
	_, err = c.Operations.Described(t.Context(), "node:none:"+schema.NewID())
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
}

// A decision that the operation accepted and cannot record yet is not reported as lost: it
// is in the history. A cancel of the run is not needed then.
func TestDecisionAcceptedWithoutResult(t *testing.T) {
	c := connect(t)
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context, _ lifecycle.OperationInput) error {
		err := workflow.SetUpdateHandler(ctx, lifecycle.UpdateResolve, func(ctx workflow.Context, r lifecycle.ResolveRequest) (lifecycle.Resolution, error) {
			workflow.GetSignalChannel(ctx, lifecycle.SignalAgent).Receive(ctx, nil)
			return lifecycle.Resolution{Request: r}, nil
		})
		return errors.Join(err, workflow.Await(ctx, func() bool { return false }))
	}, workflow.RegisterOptions{Name: plan.Workflow})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	in := drainOf("gpu-17")
	run := begin(t, c, in)
	for _, d := range []lifecycle.Decision{lifecycle.DecisionExtend, lifecycle.DecisionCancel} {
		r := lifecycle.ResolveRequest{ID: schema.NewID(), OperationID: in.OperationID, Decision: d, Reason: "wait", By: "alice"}
		e := errorAfter(t, "the decision is accepted", func() bool {
			return c.Operations.accepted(t.Context(), &commonpb.WorkflowExecution{WorkflowId: run.GetID(), RunId: run.GetRunID()}, r.ID)
		}, func(ctx context.Context) (lifecycle.OperationStatus, error) {
			return c.Operations.Resolve(ctx, workflowID(in), r)
		})
		require.Equal(t, []string{string(schema.KindServiceUnavailable), lifecycle.ReasonDecisionAccepted, "gpuaas op watch gpu-17"},
			[]string{string(e.Kind), e.Reason, e.Next}, "%v", e)
		require.Contains(t, e.Message, "accepted the decision")
		require.NoError(t, c.NodeTasks.SignalAgent(t.Context(), workflowID(in), lifecycle.AgentEvent{}))
		harness.Eventually(t, "the operation applies it later", func() bool {
			_, err := c.Operations.Resolved(t.Context(), workflowID(in), run.GetRunID(), r)
			return err == nil
		})
	}
	d, err := c.sdk.DescribeWorkflowExecution(t.Context(), workflowID(in), "")
	require.NoError(t, err)
	require.False(t, d.GetWorkflowExtendedInfo().GetCancelRequested())
}
