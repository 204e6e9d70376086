package server

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// waits is a workflow that ends when it takes a decision.
func waits(ctx workflow.Context, in lifecycle.OperationInput) error {
	done := false
	if err := workflow.SetUpdateHandler(ctx, lifecycle.UpdateSubmit, func(workflow.Context) (lifecycle.Operation, error) {
		return lifecycle.Operation{OperationID: in.OperationID, Action: in.Action, Status: lifecycle.OperationRunning}, nil
	}); err != nil {
		return err
	}
	if err := workflow.SetUpdateHandler(ctx, lifecycle.UpdateResolve,
		func(_ workflow.Context, r lifecycle.ResolveRequest) (lifecycle.Resolution, error) {
			done = true
			return lifecycle.Resolution{Request: r}, nil
		}); err != nil {
		return err
	}
	return workflow.Await(ctx, func() bool { return done })
}

// run is the run of an operation in a Temporal of its own.
type run struct {
	t      *testing.T
	client client.Client
	name   string // the namespace
	id     string // the workflow ID
}

// newRun creates a namespace of its own, and a client that the API uses.
func newRun(t *testing.T) (*run, *temporal.Client) {
	t.Helper()
	w := &run{t: t, name: "t-" + schema.NewID()}
	address := sharedTemporal.Address(t)
	own, err := temporal.Dial(temporal.Config{Address: address, Namespace: w.name})
	require.NoError(t, err)
	t.Cleanup(own.Close)
	require.NoError(t, own.Installation.Setup(t.Context()))
	w.client, err = client.Dial(client.Options{HostPort: address, Namespace: w.name})
	require.NoError(t, err)
	t.Cleanup(w.client.Close)
	return w, own
}

// serve starts a worker that runs drains with the function.
func (w *run) serve(drain func(workflow.Context, lifecycle.OperationInput) error) {
	w.t.Helper()
	pool := worker.New(w.client, lifecycle.TaskQueue, worker.Options{})
	pool.RegisterWorkflowWithOptions(drain, workflow.RegisterOptions{Name: "Drain"})
	require.NoError(w.t, pool.Start())
	w.t.Cleanup(pool.Stop)
}

// start starts the operation's run with a worker, and returns the run's ID. It waits for the
// first workflow task, without which a terminated run cannot be reset.
func (w *run) start(in lifecycle.OperationInput) (runID string) {
	w.t.Helper()
	w.serve(waits)
	started, err := w.client.ExecuteWorkflow(w.t.Context(), client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue, ID: w.id,
		TypedSearchAttributes: sdk.NewSearchAttributes(sdk.NewSearchAttributeKeyKeyword(lifecycle.AttrOperationID).ValueSet(in.OperationID))}, "Drain", in)
	require.NoError(w.t, err)
	temporaltest.FirstTask(w.t, w.client, w.id, started.GetRunID())
	return started.GetRunID()
}

// reset resets the run to its first workflow task.
func (w *run) reset(runID string) {
	w.t.Helper()
	temporaltest.Reset(w.t, w.client, w.name, w.id, runID, 0)
}

// TestResetRun: an operator resets the run of an operation that is abandoned. The
// rehydration reads that the operation continues. The operator resets it again after the
// operation ended: a cancel reaches the run and ends it.
func TestResetRun(t *testing.T) {
	ctx := t.Context()
	w, own := newRun(t)
	c := newCluster(t)
	c.runs, c.lifecycle = own.Operations, own.Operations
	r := c.replica()
	n := r.register()
	c.exec("UPDATE nodes SET state = 'active' WHERE node_id = $1", n.ID)

	in := lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: n.ID, Host: n.Host, Action: lifecycle.ActionDrain, Actor: "alice"}
	w.id = lifecycle.WorkflowID(in.Action, in.Host, in.NodeID)
	runID := w.start(in)
	_, err := r.store.Operations.Claim(ctx, activities.ClaimRequest{OperationInput: in, WorkflowID: w.id, RunID: runID})
	require.NoError(t, err)
	status := func() lifecycle.OperationState {
		var v wire.OperationView
		r.ask(http.MethodGet, "/operations/"+in.OperationID, nil).into(t, &v)
		return v.Operation.Status
	}
	require.NoError(t, w.client.TerminateWorkflow(ctx, w.id, "", "by mistake"))
	marked, err := r.store.Operations.Abandon(ctx, in.OperationID, runID, lifecycle.RunTerminated) // as the run watcher does
	require.NoError(t, err)
	require.True(t, marked)
	w.reset(runID)
	require.Equal(t, schema.KindOperationInProgress, r.ask(http.MethodPost, "/nodes/"+n.ID+"/rehydrate", nil).refusal(t).Code)
	require.Equal(t, lifecycle.OperationRunning, status())

	require.NoError(t, w.client.TerminateWorkflow(ctx, w.id, "", "by mistake"))
	var done lifecycle.Rehydration
	r.ask(http.MethodPost, "/nodes/"+n.ID+"/rehydrate", nil).into(t, &done)
	require.Len(t, done.Ended, 1)
	cancel := func() reply { return r.ask(http.MethodPost, "/operations/"+in.OperationID+"/cancel", `{"reason":"x"}`) }
	require.Equal(t, "operation_over", cancel().refusal(t).Reason)
	w.reset(runID)
	require.Equal(t, http.StatusOK, cancel().status)
	require.NoError(t, w.client.GetWorkflow(ctx, w.id, "").Get(ctx, nil), "the run took the cancel")
	require.Equal(t, lifecycle.OperationFailed, status())
}
