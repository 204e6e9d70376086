package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestAbandoned ends the runs of operations in Temporal's Web UI. A command that gpuaas
// printed, typed literally, restores each node, and the same action then completes.
func TestAbandoned(t *testing.T) {
	cases := map[string]func(*testing.T){
		"a running drain is found by the run watcher": watchedDrain,
		"a parked drain":                       parkedDrain,
		"a deleted drain is started again":     deletedDrain,
		"an enrollment":                        abandonedEnroll,
		"a provision whose agent is silent":    abandonedProvision,
		"a parked provision":                   parkedProvision,
		"a parked remove and a running one":    abandonedRemove,
		"a release whose agent is silent":      abandonedRelease,
		"a reset continues what was abandoned": resetAbandoned,
	}
	t.Run("all", func(t *testing.T) {
		for name, do := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				do(t)
			})
		}
	})
	recordRounds(t, lifecycle.WorkflowWatch, string(lifecycle.RunTerminated), "watch")
}

// TestFailedRun: a defect fails the run of a drain, here a worker of the test. It runs
// alone, because it stops the worker.
func TestFailedRun(t *testing.T) {
	d := drainThatWaits(t, "abandon-failed")
	failRuns(t, dial(t), lifecycle.NodeWorkflowID(d.host, d.id))
	require.Equal(t, lifecycle.NodeActive, rehydrated(t, next(t, "op", "retry", d.host, "--reason", "test"), d.host))
	ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
	require.NoError(t, os.WriteFile(d.gate, nil, 0o600))
	act(t, "node", "drain", d.host, "--yes")
	require.Equal(t, lifecycle.NodeDrained, show(t, d.host).State)
	ended := decode[wire.OperationList](t, ok(t, "op", "list", "--node", d.host, "--status", string(lifecycle.OperationFailed), "-o", "json")).Operations
	require.Len(t, ended, 1)
	require.NotEmpty(t, ended[0].Outcome)
}

func (w webUI) terminate() {
	w.t.Helper()
	require.NoError(w.t, w.c.TerminateWorkflow(w.t.Context(), w.run.GetWorkflowId(), w.run.GetRunId(), "by a person"))
}

// deleteRun deletes the newest run of a workflow.
func deleteRun(t *testing.T, c client.Client, workflowID string) {
	t.Helper()
	_, err := c.WorkflowService().DeleteWorkflowExecution(t.Context(), &workflowservice.DeleteWorkflowExecutionRequest{
		Namespace: shared.Getenv("TEMPORAL_NAMESPACE"), WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: workflowID}})
	require.NoError(t, err, workflowID)
}

// typed types a printed command about a node, which must succeed.
func typed(t *testing.T, host, line string) result {
	t.Helper()
	r, refused := typeLine(t, host, line)
	require.Empty(t, refused, line)
	return r
}

// next is the next step of a refused command.
func next(t *testing.T, args ...string) string {
	t.Helper()
	r := run(t, append(args, "-o", "json")...)
	require.NotZero(t, r.code, r.stdout)
	return decode[schema.ErrorBody](t, r).Error.Next
}

// rehydrated is the node's state after the printed command.
func rehydrated(t *testing.T, line, node string) lifecycle.NodeState {
	t.Helper()
	require.Equal(t, "gpuaas node rehydrate "+node, line)
	typed(t, node, line)
	v := show(t, node)
	require.Nil(t, v.Operation)
	require.Empty(t, stuckOf(t, v.ID))
	require.Contains(t, typed(t, node, line).stdout, "no operation is abandoned", "a repeat changes nothing")
	return v.State
}

// passWatchGrace makes the node's operations old enough for the run watcher.
func passWatchGrace(t *testing.T, nodeID string) {
	t.Helper()
	query(t, nil, "UPDATE operations SET started_at = started_at - interval '1 minute' WHERE node_id = $1", nodeID)
}

// watchedDrain: the run watcher marks the drain, the agent stops its task, and every
// command that reads the operation says that it is abandoned.
func watchedDrain(t *testing.T) {
	t.Helper()
	d := drainThatWaits(t, "watched")
	watcher := startWatch(t, d.host)
	openWebUI(t, d.id).terminate()
	passWatchGrace(t, d.id)
	line := waitParked(t, d.id, string(lifecycle.RunTerminated))
	var exit *exec.ExitError
	require.ErrorAs(t, watcher.Wait(), &exit, "the watch ends")
	require.Equal(t, schema.ExitFailed, exit.ExitCode())
	require.Contains(t, ok(t, "op", "show", d.host).stdout, string(lifecycle.OperationAbandoned))
	require.Contains(t, ok(t, "node", "show", d.host).stdout, line)
	require.Equal(t, lifecycle.NodeDraining, show(t, d.host).State)
	require.Equal(t, line, next(t, "op", "cancel", d.host, "--reason", "test"))

	require.Equal(t, task.Canceled, nodeTask(t, d.task.TaskID).Status)
	makeHeartbeatDue(t, d.task.TaskID)
	eventually(t, "the agent stopped the task", func() bool { return taskEvents(t, d.id, d.task.TaskID, audit.TaskLate) == 1 })
	require.Len(t, show(t, d.host).Workloads, 1, "the workload still runs")

	require.Equal(t, lifecycle.NodeActive, rehydrated(t, line, d.host))
	require.NoError(t, os.WriteFile(d.gate, nil, 0o600))
	act(t, "node", "drain", d.host, "--yes")
	require.Equal(t, lifecycle.NodeDrained, show(t, d.host).State)
	ok(t, "audit", "--verify")
}

// parkedDrain: the printed command does not wait for the run watcher.
func parkedDrain(t *testing.T) {
	t.Helper()
	nodeHost, id := enrolled(t, "abandon-parked")
	startWorkload(t, nodeHost, "stubborn", "sh", "-c", `trap "" TERM; while :; do sleep 1; done`)
	drain := []string{"node", "drain", nodeHost, "--yes", "--deadline", "2s", "--wait"}
	require.Equal(t, schema.ExitPending, run(t, drain...).code)
	require.Equal(t, "gpuaas op show "+nodeHost, next(t, "node", "rehydrate", nodeHost), "the run is open")
	openWebUI(t, id).terminate()
	line := next(t, "op", "retry", nodeHost, "--reason", "test")
	require.Equal(t, lifecycle.NodeActive, rehydrated(t, line, nodeHost))
	require.Equal(t, schema.ExitPending, run(t, drain...).code)
	ok(t, "op", "force", nodeHost, "--reason", "test", "--yes", "--wait")
	require.Equal(t, lifecycle.NodeDrained, show(t, nodeHost).State)
}

// deletedDrain: the other printed command starts the action again.
func deletedDrain(t *testing.T) {
	t.Helper()
	d := drainThatWaits(t, "abandon-deleted")
	deleteRun(t, dial(t), lifecycle.NodeWorkflowID(d.host, d.id))
	passWatchGrace(t, d.id)
	waitParked(t, d.id, string(lifecycle.RunLost))
	stuck := decode[lifecycle.OperationStatus](t, ok(t, "op", "show", d.host, "-o", "json")).Operation.Stuck
	require.NotNil(t, stuck)
	options := stuck.Options
	i := slices.IndexFunc(options, func(o lifecycle.Option) bool { return o.Decision == lifecycle.DecisionRestart })
	require.GreaterOrEqual(t, i, 0)
	require.NoError(t, os.WriteFile(d.gate, nil, 0o600))
	typed(t, d.host, options[i].Command)
	require.Equal(t, lifecycle.NodeDrained, show(t, d.host).State)
	require.Empty(t, stuckOf(t, d.id))
}

// silentAgent is an active node whose agent was killed.
func silentAgent(t *testing.T, name string) (nodeHost, id string) {
	t.Helper()
	nodeHost, id = enrolled(t, name)
	kill(t, "agent", nodeHost)
	return nodeHost, id
}

// waitsForTask waits until the node's operation waits for a task.
func waitsForTask(t *testing.T, nodeHost string) {
	t.Helper()
	eventually(t, "a task waits for the agent", func() bool { return hasOpenTask(t, nodeHost) })
}

func hasOpenTask(t *testing.T, nodeHost string) bool {
	t.Helper()
	return slices.ContainsFunc(tasksOf(t, nodeHost), func(v wire.TaskView) bool { return !v.Status.Terminal() })
}

// abandonedProvision: the run of a provision that waits for the agent ends.
func abandonedProvision(t *testing.T) {
	t.Helper()
	nodeHost, id := silentAgent(t, "abandon-provision")
	ok(t, "node", "provision", nodeHost, "--no-wait")
	waitsForTask(t, nodeHost)
	openWebUI(t, id).terminate()
	require.Equal(t, lifecycle.NodeActive, rehydrated(t, next(t, "op", "retry", nodeHost, "--reason", "test"), nodeHost))
	require.False(t, hasOpenTask(t, nodeHost), "its tasks are void")
	ok(t, "dev", "agent", nodeHost, "--detach", "--dir", shared.Dir)
	require.Equal(t, lifecycle.OperationCompleted, act(t, "node", "provision", nodeHost).Operation.Status)
}

// abandonedEnroll: the run of an enrollment that waits for the node ends.
func abandonedEnroll(t *testing.T) {
	t.Helper()
	nodeHost, id := register(t, "abandon-enroll")
	var started wire.LifecycleResponse
	callAdminAPI(t, http.MethodPost, "/nodes/"+id+"/enroll", wire.LifecycleRequest{}, &started)
	openWebUI(t, id).terminate()
	rehydrated(t, next(t, "op", "retry", nodeHost, "--reason", "test"), nodeHost)
	ok(t, "dev", "agent", nodeHost, "--detach", "--dir", shared.Dir)
	eventually(t, "active", func() bool { return show(t, nodeHost).State == lifecycle.NodeActive })
}

func parkedProvision(t *testing.T) {
	t.Helper()
	nodeHost, id := enrolled(t, "abandon-unfit")
	gpus := show(t, nodeHost).GPUsTotal
	query(t, nil, "UPDATE nodes SET gpus_total = $1 WHERE node_id = $2", gpus+1, id)
	require.Equal(t, schema.ExitPending, run(t, "node", "provision", nodeHost, "--wait").code)
	openWebUI(t, id).terminate()
	require.Equal(t, lifecycle.NodeActive, rehydrated(t, next(t, "op", "retry", nodeHost, "--reason", "test"), nodeHost))
	query(t, nil, "UPDATE nodes SET gpus_total = $1 WHERE node_id = $2", gpus, id)
	require.Equal(t, lifecycle.OperationCompleted, act(t, "node", "provision", nodeHost).Operation.Status)
}

// abandonedRemove: the teardown parks for an unknown provider, and waits for a locked row.
func abandonedRemove(t *testing.T) {
	t.Helper()
	nodeHost, id := enrolled(t, "abandon-remove")
	act(t, "node", "provision", nodeHost)
	act(t, "node", "retire", nodeHost, "--yes")
	retry := []string{"op", "retry", nodeHost, "--reason", "test"}

	query(t, nil, "UPDATE resources SET provider = 'absent' WHERE node_id = $1", id)
	require.Equal(t, schema.ExitPending, run(t, "node", "remove", nodeHost, "--yes", "--wait").code)
	openWebUI(t, id).terminate()
	require.Equal(t, lifecycle.NodeRemoving, show(t, nodeHost).State)
	require.Equal(t, lifecycle.NodeRetired, rehydrated(t, next(t, retry...), nodeHost))

	query(t, nil, "UPDATE resources SET provider = 'manual' WHERE node_id = $1", id)
	unlock := lock(t, "SELECT FROM resources WHERE node_id = $1 FOR UPDATE", id)
	ok(t, "node", "remove", nodeHost, "--yes", "--no-wait")
	eventually(t, "the teardown runs", func() bool { return inPhase(t, nodeHost, lifecycle.PhaseTeardown) })
	openWebUI(t, id).terminate()
	unlock()
	require.Equal(t, lifecycle.NodeRetired, rehydrated(t, next(t, retry...), nodeHost))
	act(t, "node", "remove", nodeHost, "--yes")
	require.Equal(t, lifecycle.NodeRemoved, show(t, id).State)
}

func abandonedRelease(t *testing.T) {
	t.Helper()
	nodeHost, id := enrolled(t, "abandon-release")
	act(t, "node", "quarantine", nodeHost)
	kill(t, "agent", nodeHost)
	ok(t, "node", "release", nodeHost, "--no-wait")
	waitsForTask(t, nodeHost)
	openWebUI(t, id).terminate()
	require.Equal(t, lifecycle.NodeQuarantined, rehydrated(t, next(t, "op", "retry", nodeHost, "--reason", "test"), nodeHost))
	require.False(t, hasOpenTask(t, nodeHost), "its tasks are void")
	ok(t, "dev", "agent", nodeHost, "--detach", "--dir", shared.Dir)
	act(t, "node", "release", nodeHost)
	require.Equal(t, lifecycle.NodeActive, show(t, nodeHost).State)
}

// resetAbandoned: a reset of a terminated run opens another run of the operation, which
// then is no longer abandoned. The new run finds its task voided.
func resetAbandoned(t *testing.T) {
	t.Helper()
	d := drainThatWaits(t, "abandon-reset")
	web := openWebUI(t, d.id)
	web.terminate()
	passWatchGrace(t, d.id)
	waitParked(t, d.id, string(lifecycle.RunTerminated))
	web.reset(drainStep)
	waitParked(t, d.id, lifecycle.ReasonTaskCanceled)
	require.NoError(t, os.WriteFile(d.gate, nil, 0o600))
	ok(t, "op", "retry", d.host, "--reason", "test", "--wait")
	require.Equal(t, lifecycle.NodeDrained, show(t, d.host).State)
}
