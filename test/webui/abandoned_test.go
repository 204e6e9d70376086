package webui

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// abandonedScenes are those of operations whose run has ended in Temporal.
func abandonedScenes() map[string]scene {
	terminated := scene{host: "gpu-17", park: parkTerminated, timer: "Drain", resolve: resolveByRehydrate,
		details: func(p *page, stuck lifecycle.Stuck) { p.requireEnd(stuck, "TERMINATED") }}
	timedOut, closed := terminated, terminated
	timedOut.host, timedOut.park = "gpu-18", parkTimedOut
	timedOut.details = func(p *page, _ lifecycle.Stuck) { p.sees("TIMED OUT") } // the person who started it gave no details
	closed.host, closed.park = "gpu-19", parkClosed
	closed.details = func(p *page, stuck lifecycle.Stuck) { p.requireEnd(stuck, "COMPLETED") }
	return map[string]scene{string(lifecycle.RunTerminated): terminated, string(lifecycle.RunTimedOut): timedOut, string(lifecycle.RunClosed): closed}
}

// operationOf is the node's newest operation.
func operationOf(t *testing.T, host string) lifecycle.Operation {
	t.Helper()
	var v wire.OperationView
	require.True(t, stack.Read(t, &v, "op", "show", host))
	return v.Operation
}

// outlast makes an operation old enough for the run watcher, which skips those of the last
// minute.
func outlast(t *testing.T, operationID string) {
	t.Helper()
	exec(t, "UPDATE operations SET started_at = started_at - interval '5 minutes' WHERE operation_id = $1", operationID)
}

// Someone presses Terminate on the page of the run.
func parkTerminated(t *testing.T, host string) {
	t.Helper()
	drainBusy(t, host)
	op := operationOf(t, host)
	p := open(t, webURL(op.WorkflowID, op.RunID))
	defer p.Close()
	p.Click(`button[aria-controls=workflow-actions]`, "")
	p.Click(`[data-testid=terminate-button]`, "")
	p.Click(`#terminate-confirmation-modal [data-testid=confirm-modal-button]`, "")
	p.sees("TERMINATED")
	outlast(t, op.OperationID)
}

// Someone starts the workflow by hand, with a run timeout.
func parkTimedOut(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	stack.Occupy(t, host)
	in := lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: stack.Node(t, host).ID, Action: lifecycle.ActionDrain,
		Actor: "alice", Via: "temporal", CorrelationID: schema.NewID(), Host: host}
	run, err := temporal.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: lifecycle.NodeWorkflowID(host, in.NodeID),
		TaskQueue: lifecycle.TaskQueue, WorkflowRunTimeout: 10 * time.Second}, workflowType(t, in.Action), in)
	require.NoError(t, err)
	require.ErrorContains(t, run.Get(t.Context(), nil), "timeout")
	require.Equal(t, in.OperationID, operationOf(t, host).OperationID)
	outlast(t, in.OperationID)
}

// The database is restored to a time before the operation ended.
func parkClosed(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	stack.Run(t, "node", "drain", host, "--yes")
	op := operationOf(t, host)
	exec(t, "UPDATE operations SET status = 'running', ended_at = NULL, outcome = '' WHERE operation_id = $1", op.OperationID)
	exec(t, "UPDATE nodes SET state = $2 WHERE node_id = $1", stack.Node(t, host).ID, lifecycle.NodeDraining)
	outlast(t, op.OperationID)
}

// resolveByRehydrate types the command of the first option.
func resolveByRehydrate(t *testing.T, _ *page, op wire.StuckOperation) {
	t.Helper()
	stack.Run(t, strings.Fields(op.Stuck.Options[0].Command)[1:]...)
	require.Equal(t, lifecycle.NodeActive, stack.Node(t, op.Host).State)
}
