package temporal

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// endings is a namespace whose one workflow waits for a signal to fail or to complete.
type endings struct {
	*Client
	t *testing.T
}

func newEndings(t *testing.T) endings {
	t.Helper()
	e := endings{connect(t), t}
	w := worker.New(e.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
		var fail bool
		signals := workflow.GetSignalChannel(ctx, lifecycle.SignalAgent)
		if err := workflow.Await(ctx, func() bool { return signals.ReceiveAsync(&fail) }); err != nil || !fail {
			return err
		}
		return errors.New("a bug")
	}, workflow.RegisterOptions{Name: "ends"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	return e
}

// begin starts a run of a new operation, under the workflow ID if it is not empty.
func (e endings) begin(workflowID string, change func(*client.StartWorkflowOptions)) lifecycle.Operation {
	e.t.Helper()
	op := lifecycle.Operation{OperationID: schema.NewID(), WorkflowID: workflowID}
	if workflowID == "" {
		op.WorkflowID = lifecycle.NodeWorkflowID("gpu-17", schema.NewID())
	}
	o := client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue, ID: op.WorkflowID, TypedSearchAttributes: sdk.NewSearchAttributes(
		sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrOperationID).ValueSet(op.OperationID))}
	if change != nil {
		change(&o)
	}
	run, err := e.sdk.ExecuteWorkflow(e.t.Context(), o, "ends")
	require.NoError(e.t, err)
	op.RunID = run.GetRunID()
	return op
}

func (e endings) is(op lifecycle.Operation, want lifecycle.RunEnd) {
	e.t.Helper()
	harness.Eventually(e.t, "the run's end is "+string(want), func() bool {
		got, err := e.Operations.RunEnd(e.t.Context(), op)
		require.NoError(e.t, err)
		return got == want
	})
}

func (e endings) terminate(op lifecycle.Operation) {
	e.t.Helper()
	require.NoError(e.t, e.sdk.TerminateWorkflow(e.t.Context(), op.WorkflowID, "", "by hand"))
}

// reset resets the operation's recorded run to its first workflow task.
func (e endings) reset(op lifecycle.Operation) {
	e.t.Helper()
	temporaltest.Reset(e.t, e.sdk, e.namespace, op.WorkflowID, op.RunID, 0)
}

func TestRunEnd(t *testing.T) {
	e := newEndings(t)
	ctx := t.Context()
	for name, c := range map[string]struct {
		end  func(op lifecycle.Operation) error
		want lifecycle.RunEnd
	}{
		"completes": {func(op lifecycle.Operation) error {
			return e.sdk.SignalWorkflow(ctx, op.WorkflowID, "", lifecycle.SignalAgent, false)
		}, lifecycle.RunClosed},
		"fails": {func(op lifecycle.Operation) error {
			return e.sdk.SignalWorkflow(ctx, op.WorkflowID, "", lifecycle.SignalAgent, true)
		}, lifecycle.RunFailed},
		"canceled":   {func(op lifecycle.Operation) error { return e.sdk.CancelWorkflow(ctx, op.WorkflowID, "") }, lifecycle.RunClosed},
		"terminated": {func(op lifecycle.Operation) error { return e.sdk.TerminateWorkflow(ctx, op.WorkflowID, "", "by hand") }, lifecycle.RunTerminated},
	} {
		op := e.begin("", nil)
		e.is(op, "")
		require.NoError(t, c.end(op), name)
		e.is(op, c.want)
	}
	e.is(e.begin("", func(o *client.StartWorkflowOptions) { o.WorkflowRunTimeout = time.Second }), lifecycle.RunTimedOut)
	e.is(lifecycle.Operation{OperationID: schema.NewID(), WorkflowID: "node:gpu-9:" + schema.NewID(), RunID: schema.NewID()}, lifecycle.RunLost)
}

// TestRunEndAfterReset: the run that a reset starts continues the operation.
func TestRunEndAfterReset(t *testing.T) {
	e := newEndings(t)
	op := e.begin("", nil)
	e.reset(op)
	info, err := e.Operations.describeRun(t.Context(), op.WorkflowID, op.RunID)
	require.NoError(t, err)
	require.Equal(t, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, info.GetStatus(), "the reset closes the recorded run")
	e.is(op, "")
	e.terminate(op)
	e.is(op, lifecycle.RunTerminated)
	e.reset(op)
	e.is(op, "")
}

// TestRunEndOfAnEarlierOperation: a later operation of the node has the newest run
// under the same workflow ID.
func TestRunEndOfAnEarlierOperation(t *testing.T) {
	e := newEndings(t)
	first := e.begin("", nil)
	e.terminate(first)
	second := e.begin(first.WorkflowID, nil)
	e.is(first, lifecycle.RunTerminated)
	e.is(second, "")
	e.terminate(second)
	byHand := e.begin(first.WorkflowID, func(o *client.StartWorkflowOptions) { o.TypedSearchAttributes = sdk.SearchAttributes{} })
	e.is(byHand, "")
	e.is(second, lifecycle.RunTerminated)
	unknown := second
	unknown.RunID = schema.NewID()
	e.is(unknown, lifecycle.RunLost)
}

func TestRunEndOfADeletedExecution(t *testing.T) {
	e := newEndings(t)
	op := e.begin("", nil)
	_, err := e.sdk.WorkflowService().DeleteWorkflowExecution(t.Context(), &workflowservice.DeleteWorkflowExecutionRequest{
		Namespace: e.namespace, WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: op.WorkflowID}})
	require.NoError(t, err)
	e.is(op, lifecycle.RunLost)
}

// TestRunEndIsUnknown: a run is not lost because Temporal does not respond.
func TestRunEndIsUnknown(t *testing.T) {
	op := lifecycle.Operation{OperationID: schema.NewID(), WorkflowID: "node:gpu-17:" + schema.NewID(), RunID: schema.NewID()}
	absent, err := Dial(Config{Address: server.Address(t), Namespace: "absent-" + schema.NewID()})
	require.NoError(t, err)
	defer absent.Close()
	_, err = absent.Operations.RunEnd(t.Context(), op)
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindServiceUnavailable, Reason: "namespace_missing"})

	unavailable, err := Dial(Config{Address: "127.0.0.1:1", Namespace: "gpuaas"})
	require.NoError(t, err)
	defer unavailable.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = unavailable.Operations.RunEnd(ctx, op)
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))

	_, err = runEnd(enumspb.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED)
	require.Error(t, err)
	open, err := runEnd(enumspb.WORKFLOW_EXECUTION_STATUS_PAUSED)
	require.NoError(t, err)
	require.Empty(t, open)
}

// openRuns starts n runs that wait, without a worker.
func openRuns(tb testing.TB, c *Client, n int) []lifecycle.Operation {
	tb.Helper()
	ops, errs := make([]lifecycle.Operation, n), make([]error, n)
	inParallel(n, func(i int) {
		id := schema.NewID()
		run, err := c.sdk.ExecuteWorkflow(tb.Context(), client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue, ID: lifecycle.NodeWorkflowID("gpu-17", schema.NewID()),
			TypedSearchAttributes: sdk.NewSearchAttributes(sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrOperationID).ValueSet(id))}, "ends")
		if errs[i] = err; err == nil {
			ops[i] = lifecycle.Operation{OperationID: id, WorkflowID: run.GetID(), RunID: run.GetRunID()}
		}
	})
	require.NoError(tb, errors.Join(errs...))
	return ops
}

// TestRunEnds: the ends are those of the operations, in their order, and an error is that of
// one operation.
func TestRunEnds(t *testing.T) {
	c := connect(t)
	ops := openRuns(t, c, 40)
	for i := range ops {
		if i%3 == 0 {
			require.NoError(t, c.sdk.TerminateWorkflow(t.Context(), ops[i].WorkflowID, "", "by hand"))
		}
		if i%3 == 1 {
			ops[i].WorkflowID += "0"
		}
	}
	ends, errs := c.Operations.RunEnds(t.Context(), ops)
	for i := range ops {
		require.NoError(t, errs[i])
		require.Equal(t, []lifecycle.RunEnd{lifecycle.RunTerminated, lifecycle.RunLost, ""}[i%3], ends[i], i)
	}
	ends, errs = c.Operations.RunEnds(t.Context(), nil)
	require.Empty(t, ends)
	require.Empty(t, errs)

	unavailable := dialUnusedAddress(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, errs = unavailable.Operations.RunEnds(ctx, ops)
	for _, err := range errs {
		require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	}
}

// TestRunEndsOfARound reads the runs of more open operations than are read at a time.
func TestRunEndsOfARound(t *testing.T) {
	c := connect(t)
	ops := openRuns(t, c, 5*describers)
	ends, errs := c.Operations.RunEnds(t.Context(), ops)
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, make([]lifecycle.RunEnd, len(ops)), ends, "all are open")
}

// BenchmarkRunEnds reads the runs of 10,000 open operations, as a round of the run watcher
// does: go test ./internal/temporal -run '^$' -bench RunEnds -benchtime 3x.
func BenchmarkRunEnds(b *testing.B) {
	c := connectBench(b)
	ops := openRuns(b, c, 10_000)
	for b.Loop() {
		_, errs := c.Operations.RunEnds(b.Context(), ops)
		require.NoError(b, errors.Join(errs...))
	}
	b.ReportMetric(float64(len(ops))*float64(b.N)/b.Elapsed().Seconds(), "runs/s")
}
