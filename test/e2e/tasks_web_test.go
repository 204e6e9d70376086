package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// webUI makes the calls of Temporal's Web UI for a node's run.
type webUI struct {
	t         *testing.T
	c         client.Client
	namespace string
	run       *commonpb.WorkflowExecution
}

func openWebUI(t *testing.T, nodeID string) webUI {
	t.Helper()
	c := dial(t)
	d, err := c.DescribeWorkflowExecution(t.Context(), lifecycle.NodeWorkflowID(show(t, nodeID).Host, nodeID), "")
	require.NoError(t, err)
	return webUI{t, c, shared.Getenv("TEMPORAL_NAMESPACE"), d.GetWorkflowExecutionInfo().GetExecution()}
}

func (w webUI) pause(activity string) {
	w.t.Helper()
	_, err := w.c.WorkflowService().PauseActivity(w.t.Context(), &workflowservice.PauseActivityRequest{Namespace: w.namespace, Execution: w.run,
		Activity: &workflowservice.PauseActivityRequest_Id{Id: activity}, Identity: "a person", Reason: "test"})
	require.NoError(w.t, err)
}

func (w webUI) unpause(activity string) {
	w.t.Helper()
	_, err := w.c.WorkflowService().UnpauseActivity(w.t.Context(), &workflowservice.UnpauseActivityRequest{Namespace: w.namespace, Execution: w.run,
		Activity: &workflowservice.UnpauseActivityRequest_Id{Id: activity}, Identity: "a person"})
	require.NoError(w.t, err)
}

func (w webUI) cancel() {
	w.t.Helper()
	_, err := w.c.WorkflowService().RequestCancelWorkflowExecution(w.t.Context(), &workflowservice.RequestCancelWorkflowExecutionRequest{
		Namespace: w.namespace, WorkflowExecution: w.run, RequestId: schema.NewID(), Identity: "a person", Reason: "test"})
	require.NoError(w.t, err)
}

// reset restarts the run from the workflow task before the given activity, or from the
// first one for "".
func (w webUI) reset(activity string) (runID string) {
	w.t.Helper()
	to, found := int64(0), activity == ""
	for _, e := range history(w.t, w.c, w.run.GetWorkflowId(), w.run.GetRunId()).GetEvents() {
		if found = found || e.GetActivityTaskScheduledEventAttributes().GetActivityId() == activity; found {
			break
		}
		if e.GetEventType() == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED {
			to = e.GetEventId()
		}
	}
	require.True(w.t, found, activity)
	return temporaltest.Reset(w.t, w.c, w.namespace, w.run.GetWorkflowId(), w.run.GetRunId(), to)
}

func (w webUI) status(runID string) enumspb.WorkflowExecutionStatus {
	w.t.Helper()
	d, err := w.c.DescribeWorkflowExecution(w.t.Context(), w.run.GetWorkflowId(), runID)
	require.NoError(w.t, err)
	return d.GetWorkflowExecutionInfo().GetStatus()
}

// draining is a node whose agent waits for a workload, which stops once the gate is
// open.
type draining struct {
	host, id string
	task     wire.TaskView
	gate     string
}

const drainStep = string(task.WorkloadDrain)

func drainThatWaits(t *testing.T, name string) draining {
	t.Helper()
	d := draining{gate: filepath.Join(t.TempDir(), "go")}
	d.host, d.id = enrolled(t, name)
	startWorkload(t, d.host, "job-1", "sh", "-c", `trap "while [ ! -e `+d.gate+` ]; do sleep 0.1; done; exit 0" TERM; while :; do sleep 0.1; done`)
	ok(t, "node", "drain", d.host, "--yes", "--no-wait")
	eventually(t, "the workload is asked to stop", func() bool { return len(stops(t, d.host, "job-1")) == 1 })
	d.task = newest(t, d.host, task.WorkloadDrain, task.Dispatched, task.Running)
	return d
}

// finish lets the workload stop and the drain complete. The workload was asked to stop
// once, and the audit contains each change once.
func (d draining) finish(t *testing.T) {
	t.Helper()
	require.NoError(t, os.WriteFile(d.gate, nil, 0o600))
	eventually(t, "drained", func() bool { return show(t, d.host).State == lifecycle.NodeDrained })
	require.Len(t, stops(t, d.host, "job-1"), 1, "the workload was asked to stop more than once")
	require.Equal(t, task.Succeeded, nodeTask(t, d.task.TaskID).Status)
	require.Equal(t, 1, taskEvents(t, d.id, d.task.TaskID, audit.TaskFinished))
	requireOneEventPerChange(t, d.id)
}

// pausedDrain: a workload that appears while the drain is paused is not asked to stop
// until the drain is unpaused, even by an agent that was down when it was paused.
func pausedDrain(t *testing.T) {
	t.Helper()
	d := drainThatWaits(t, "pause")
	web := openWebUI(t, d.id)
	kill(t, "agent", d.host)
	web.pause(drainStep)
	makeHeartbeatDue(t, d.task.TaskID)
	other := startOutside(t, d.host, "job-2")
	ok(t, "dev", "agent", d.host, "--detach", "--dir", shared.Dir)
	eventually(t, "the agent reports the pause and both workloads", func() bool {
		return nodeTask(t, d.task.TaskID).Progress == "paused: 2 of 2 workloads still running"
	})
	require.Empty(t, stops(t, d.host, "job-2"), "the paused drain stopped a workload")
	require.Contains(t, ok(t, "task", "show", d.task.TaskID).stdout, "running (paused)")

	web.unpause(drainStep)
	makeHeartbeatDue(t, d.task.TaskID)
	// The driver forgets a process without a spec soon after it ends, with its stops.
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	require.EqualError(t, harness.Receive(t, "the drain continues and stops job-2", ended), "signal: terminated")
	require.False(t, nodeTask(t, d.task.TaskID).Paused)
	d.finish(t)
	record(t, d.id, "pause")
}

// startOutside starts a process that a stopped agent adopts as a workload when it
// restarts.
func startOutside(t *testing.T, nodeHost, name string) *exec.Cmd {
	t.Helper()
	c := exec.Command("sleep", "3600")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() }) // it has exited unless the test failed
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(stat), ") ")
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	state, err := json.Marshal(map[string]any{"name": name, "phase": "running", "pid": c.Process.Pid, "start_id": schema.NewID(),
		"start_time": strings.Fields(after)[19], "boot_id": strings.TrimSpace(string(boot)), "started_at": time.Now().UTC(), "starts": 1})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(agentDir(nodeHost), "workloads", name+".state"), state, 0o600))
	return c
}

// canceledDrain: the agent stops the task, the drain is undone, and the run closes as
// canceled.
func canceledDrain(t *testing.T) {
	t.Helper()
	d := drainThatWaits(t, "webcancel")
	web := openWebUI(t, d.id)
	web.cancel()
	eventually(t, "canceled", func() bool {
		return web.status(web.run.GetRunId()) == enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED
	})
	node := show(t, d.host)
	require.Equal(t, lifecycle.NodeActive, node.State)
	require.False(t, node.Cordoned)
	require.Nil(t, node.Operation)
	require.Equal(t, task.Canceled, nodeTask(t, d.task.TaskID).Status)
	eventually(t, "the agent stopped the task", func() bool { return taskEvents(t, d.id, d.task.TaskID, audit.TaskLate) == 1 })
	require.Len(t, show(t, d.host).Workloads, 1, "the workload still runs")
	requireOneEventPerChange(t, d.id)
	record(t, d.id, "webcancel")
}

// startWatch starts a command that watches the node's operation and has printed its
// state.
func startWatch(t *testing.T, host string) *exec.Cmd {
	t.Helper()
	seen, err := os.Create(filepath.Join(t.TempDir(), "seen"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = seen.Close() }) // the output is no longer needed
	c := shared.command("op", "watch", host)
	c.Stdout, c.Stderr = seen, seen
	require.NoError(t, c.Start())
	eventually(t, "the watcher sees the operation", func() bool {
		fi, err := seen.Stat()
		return err == nil && fi.Size() > 0
	})
	return c
}

// resetDrain: the new run finds the completed steps and the running task of the old one.
// The task's result completes the new run.
func resetDrain(name, to string) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		d := drainThatWaits(t, name)
		web := openWebUI(t, d.id)
		watcher := startWatch(t, d.host)
		runID := web.reset(to)
		eventually(t, "the new run waits for the task", func() bool { return nodeTask(t, d.task.TaskID).RunID == runID })
		require.Equal(t, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, web.status(web.run.GetRunId()))
		require.Equal(t, runID, show(t, d.host).Operation.RunID, "the node shows the terminated run")
		d.finish(t)
		require.NoError(t, watcher.Wait(), "the watch follows the new run")
		eventually(t, "the new run completes", func() bool { return web.status(runID) == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED })
		all := tasksOf(t, d.host)
		require.Len(t, all, 2, "a cordon and a drain")
		for _, v := range all {
			require.EqualValues(t, 1, v.Attempts, "%s was dispatched again", v.Type)
		}
		record(t, d.id, name)
	}
}
