package temporal

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// TestSubmitAfterRecordedEnd starts an operation while the previous one has recorded its
// end and its run is still open, as it is for a moment after each operation.
func TestSubmitAfterRecordedEnd(t *testing.T) {
	c := connect(t)
	plan, ok := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	require.True(t, ok)
	var asked atomic.Int32
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
		st := lifecycle.OperationStatus{Operation: lifecycle.Operation{OperationID: in.OperationID, Status: lifecycle.OperationRunning}}
		if err := workflow.SetQueryHandler(ctx, lifecycle.QueryStatus, func() (lifecycle.OperationStatus, error) {
			asked.Add(1)
			return st, nil
		}); err != nil {
			return st, err
		}
		if err := workflow.SetUpdateHandler(ctx, lifecycle.UpdateSubmit, func(workflow.Context) (lifecycle.Operation, error) { return st.Operation, nil }); err != nil {
			return st, err
		}
		signals := workflow.GetSignalChannel(ctx, lifecycle.SignalAgent)
		signals.Receive(ctx, nil)
		st.Operation.End(lifecycle.OperationCompleted, "drained", workflow.Now(ctx))
		signals.Receive(ctx, nil)
		return st, nil
	}, workflow.RegisterOptions{Name: plan.Workflow})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	in := lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: schema.NewID(), Host: "gpu-17", Action: lifecycle.ActionDrain, Actor: "alice"}
	submit := func() (lifecycle.Operation, error) {
		in.OperationID = schema.NewID()
		return c.Operations.Submit(t.Context(), in)
	}
	proceed := func() {
		require.NoError(t, c.NodeTasks.SignalAgent(t.Context(), workflowID(in), lifecycle.AgentEvent{}))
	}
	_, err := submit()
	require.NoError(t, err)
	_, err = submit()
	require.Equal(t, schema.KindOperationInProgress, schema.KindOf(err), "while the operation runs")

	proceed()
	require.Eventually(t, func() bool {
		st, err := c.Operations.Status(t.Context(), workflowID(in), "")
		return err == nil && st.Operation.EndedAt != nil
	}, 30*time.Second, 20*time.Millisecond)
	before, done := asked.Load(), make(chan error, 1)
	go func() {
		_, err := submit()
		done <- err
	}()
	require.Eventually(t, func() bool { return asked.Load() > before || len(done) > 0 }, 30*time.Second, time.Millisecond)
	proceed()
	require.NoError(t, <-done)
}

// TestEndLeftover ends the run of an operation whose end is recorded, as after Temporal was
// restored from a backup, and no other run.
func TestEndLeftover(t *testing.T) {
	c := connect(t)
	plan, ok := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	require.True(t, ok)
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context, _ lifecycle.OperationInput) (st lifecycle.OperationStatus, err error) {
		err = workflow.SetUpdateHandler(ctx, lifecycle.UpdateSubmit, func(workflow.Context) (lifecycle.Operation, error) { return st.Operation, nil })
		workflow.GetSignalChannel(ctx, lifecycle.SignalAgent).Receive(ctx, nil)
		return st, err
	}, workflow.RegisterOptions{Name: plan.Workflow})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	in := lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: schema.NewID(), Host: "gpu-17", Action: lifecycle.ActionDrain, Actor: "alice"}
	_, err := c.Operations.Submit(t.Context(), in)
	require.NoError(t, err)

	asked := ""
	end := func(over bool, failure error) (bool, error) {
		left, err := c.Operations.EndLeftover(t.Context(), workflowID(in), func(_ context.Context, id string) (st lifecycle.OperationStatus, _ error) {
			asked = id
			if over {
				st.Operation.EndedAt = new(time.Now())
			}
			return st, failure
		})
		return left.Done, err
	}
	done, err := end(false, nil)
	require.NoError(t, err)
	require.False(t, done, "the operation runs")
	require.Equal(t, in.OperationID, asked)
	done, err = end(false, schema.NewError(schema.KindServiceUnavailable, "the database is unavailable"))
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	require.False(t, done)
	info, err := c.Operations.describeRun(t.Context(), workflowID(in), "")
	require.NoError(t, err)
	require.False(t, closed(info.GetStatus()))

	for range 2 {
		done, err = end(true, nil)
		require.NoError(t, err)
		require.True(t, done)
	}
	in.OperationID = schema.NewID()
	_, err = c.Operations.Submit(t.Context(), in)
	require.NoError(t, err)
}

// TestEndForeignRun: a run that someone started by hand under the workflow ID of a node is no
// operation, so it is ended at once.
func TestEndForeignRun(t *testing.T) {
	c := connect(t)
	for name, start := range map[string]struct {
		workflow string
		input    lifecycle.OperationInput
	}{
		"unknown workflow":       {"Nonsense", lifecycle.OperationInput{}},
		"drain without an ID":    {"Drain", lifecycle.OperationInput{StartWithinSeconds: 3_153_600_000}},
		"drain with a far limit": {"Drain", lifecycle.OperationInput{StartWithinSeconds: 31_536_000_000}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := lifecycle.WorkflowID(lifecycle.ActionDrain, "gpu-17", schema.NewID())
			_, err := c.sdk.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: id, TaskQueue: "elsewhere"}, start.workflow, start.input)
			require.NoError(t, err)
			left, err := c.Operations.EndLeftover(t.Context(), id, func(context.Context, string) (st lifecycle.OperationStatus, _ error) {
				return st, schema.NewError(schema.KindNotFound, "no operation")
			})
			require.NoError(t, err)
			require.True(t, left.Terminated)
		})
	}
}

// TestEndRunOfANewerVersion: a run of a workflow that this version does not know, with an
// operation ID, is an operation of a newer version: it stays while its record is open, and
// while it may claim its node.
func TestEndRunOfANewerVersion(t *testing.T) {
	c := connect(t)
	for name, read := range map[string]error{
		"on record": nil, "not claimed yet": schema.NewError(schema.KindNotFound, "no operation"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: schema.NewID(), Host: "gpu-17", Action: "polish"}
			o := startOptions(in, lifecycle.Plan{Phases: make([]lifecycle.PhaseSpec, 1)})
			o.TaskQueue = "elsewhere"
			run, err := c.sdk.ExecuteWorkflow(t.Context(), o, "Polish", in)
			require.NoError(t, err)
			asked := ""
			left, err := c.Operations.EndLeftover(t.Context(), run.GetID(), func(_ context.Context, id string) (st lifecycle.OperationStatus, _ error) {
				asked = id
				return st, read
			})
			require.NoError(t, err)
			require.Equal(t, in.OperationID, asked)
			require.Equal(t, in.OperationID, left.OperationID)
			require.False(t, left.Done)
			require.Equal(t, read == nil, left.ClaimBy.IsZero())
			info, err := c.Operations.describeRun(t.Context(), run.GetID(), "")
			require.NoError(t, err)
			require.False(t, closed(info.GetStatus()))
		})
	}
}

// TestDecisionOfAFailingRun: a run whose workflow tasks fail takes no decision. The error names
// the way out.
func TestDecisionOfAFailingRun(t *testing.T) {
	c := connect(t)
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(func(workflow.Context, lifecycle.OperationInput) error { panic("a defect") },
		workflow.RegisterOptions{Name: "Drain"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	in := lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: schema.NewID(), Host: "gpu-17", Action: lifecycle.ActionDrain}
	o := startOptions(in, lifecycle.Plan{Phases: make([]lifecycle.PhaseSpec, 1)})
	run, err := c.sdk.ExecuteWorkflow(t.Context(), o, "Drain", in)
	require.NoError(t, err)
	harness.Eventually(t, "a workflow task fails", func() bool {
		d, err := c.sdk.DescribeWorkflowExecution(t.Context(), run.GetID(), "")
		return err == nil && d.GetPendingWorkflowTask().GetAttempt() >= failedTasks
	})
	for _, d := range []lifecycle.Decision{lifecycle.DecisionCancel, lifecycle.DecisionRetry} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err = c.Operations.Resolve(ctx, run.GetID(), lifecycle.ResolveRequest{OperationID: in.OperationID, Decision: d, Reason: "x", By: "alice"})
		cancel()
		e := schema.AsError(err)
		require.Equal(t, reasonTasksFail, e.Reason, "%v", err)
		require.Contains(t, e.Next, "gpuaas node rehydrate gpu-17")
	}
}
