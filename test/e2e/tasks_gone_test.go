package e2e

import (
	"fmt"
	"os"
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

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestTaskFaults pauses, cancels and resets running tasks in the Web UI and the CLI,
// and kills agents during a task, which the reclaimer detects. The cases use separate
// nodes and mostly wait, so they run in parallel.
func TestTaskFaults(t *testing.T) {
	cases := []struct {
		name string
		do   func(*testing.T)
	}{ // the longest first
		{"misbehaving fleet", misbehavingFleet},
		{"silent node with a destructive task", silentNode},
		{"restarted fleet", restartedFleet},
		{"paused in the Web UI", pausedDrain},
		{"harmless task is dispatched again", requeuedTask},
		{"lost task resumes when its agent returns", lostAndBack},
		{"lost task of a wiped node waits for an operator", lostAndWiped},
		{"canceled by an operator", canceledTask},
		{"canceled in the Web UI", canceledDrain},
		{"reset in the Web UI to before the drain", resetDrain("reset", drainStep)},
		{"reset in the Web UI to the beginning", resetDrain("rerun", "")},
	}
	t.Run("all", func(t *testing.T) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.do(t)
			})
		}
	})
	require.NotContains(t, ok(t, "stuck", "-o", "json").stdout, `"component": "`+lifecycle.ScheduleReclaim+`"`, "its schedule runs")
	recordRounds(t, lifecycle.WorkflowReclaim, string(activities.ReclaimLost), "sweep")
}

// requeuedTask: the agent is killed after a task was dispatched and before it is in the
// journal. The scheduled reclaimer detects it.
func requeuedTask(t *testing.T) {
	t.Helper()
	nodeHost, id := enrolled(t, "requeue")
	given := dispatchToKilledAgent(t, nodeHost)
	expireLease(t, given.TaskID)
	eventually(t, "requeued", func() bool { return nodeTask(t, given.TaskID).Status == task.Pending })
	require.Empty(t, stuckOf(t, id).Reason, "no operator is needed")
	ok(t, "dev", "agent", nodeHost, "--detach", "--dir", shared.Dir)
	eventually(t, "cordoned", func() bool { n := show(t, nodeHost); return n.Cordoned && n.Operation == nil })
	done := nodeTask(t, given.TaskID)
	require.Equal(t, task.Succeeded, done.Status)
	require.Equal(t, given.Attempts+1, done.Attempts)
	require.NotEqual(t, given.Holder, done.Holder)
	require.Equal(t, 1, taskEvents(t, id, given.TaskID, audit.TaskRequeued))
	requireOneEventPerChange(t, id)
	record(t, id, "requeue")
}

// dispatchedWithin bounds the dispatch to an open poll. It exceeds the sweep's interval.
const dispatchedWithin = 15 * time.Second

// dispatchToKilledAgent stops the agent during its poll, lets a cordon be dispatched
// and kills the agent. If the agent was not polling, it continues and tries again.
func dispatchToKilledAgent(t *testing.T, nodeHost string) (given wire.TaskView) {
	t.Helper()
	pid := parts(t)["agent/"+nodeHost].PID
	for range 5 {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		ok(t, "node", "drain", nodeHost, "--cordon-only", "--yes", "--no-wait")
		var pending time.Time
		eventually(t, "the task is enqueued", func() bool {
			all := tasksOf(t, nodeHost)
			if len(all) > 0 {
				given = all[0]
			}
			if given.Type != task.WorkloadCordon || given.Status.Terminal() {
				return false
			}
			if pending.IsZero() {
				pending = time.Now()
			}
			return given.Status == task.Dispatched || time.Since(pending) > dispatchedWithin
		})
		if given.Status == task.Dispatched {
			kill(t, "agent", nodeHost)
			return given
		}
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		eventually(t, "cordoned", func() bool { return show(t, nodeHost).Operation == nil })
	}
	require.FailNow(t, "the agent was never in its poll")
	return given
}

// lostDrain is a drain whose agent was killed and whose task was lost.
func lostDrain(t *testing.T, name string) draining {
	t.Helper()
	d := drainThatWaits(t, name)
	kill(t, "agent", d.host)
	expireLease(t, d.task.TaskID)
	triggerReclaim(t)
	next := waitParked(t, d.id, lifecycle.ReasonTaskLost)
	require.Contains(t, next, "gpuaas task resume "+d.task.TaskID)
	require.Equal(t, task.Lost, nodeTask(t, d.task.TaskID).Status)
	require.Equal(t, 1, taskEvents(t, d.id, d.task.TaskID, audit.TaskLost))
	return d
}

// triggerReclaim starts the reclaimer, which its schedule would do within 30 s.
func triggerReclaim(t *testing.T) {
	t.Helper()
	triggerSchedule(t, lifecycle.ScheduleReclaim)
}

// triggerSchedule starts a run of the schedule besides the open one.
func triggerSchedule(t *testing.T, id string) {
	t.Helper()
	h := dial(t).ScheduleClient().GetHandle(t.Context(), id)
	require.NoError(t, h.Trigger(t.Context(), client.ScheduleTriggerOptions{Overlap: enumspb.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL}))
}

// lostAndBack: a destructive task is marked lost, and continues when its agent
// returns.
func lostAndBack(t *testing.T) {
	t.Helper()
	d := lostDrain(t, "back")
	ok(t, "dev", "agent", d.host, "--detach", "--dir", shared.Dir)
	eventually(t, "no longer parked", func() bool { return stuckOf(t, d.id).Reason == "" })
	require.Equal(t, task.Running, nodeTask(t, d.task.TaskID).Status)
	d.finish(t)
	require.EqualValues(t, 1, nodeTask(t, d.task.TaskID).Attempts)
	require.Equal(t, 1, taskEvents(t, d.id, d.task.TaskID, audit.TaskReturned))
	record(t, d.id, "back")
}

// lostAndWiped: an agent that lost its journal does not return the task, and receives
// it again only after an operator's decision.
func lostAndWiped(t *testing.T) {
	t.Helper()
	d := lostDrain(t, "wiped")
	state := filepath.Join(agentDir(d.host), "state")
	require.NoError(t, os.RemoveAll(filepath.Join(state, "journal")))
	require.NoError(t, os.RemoveAll(filepath.Join(state, "seq-floor.json")))
	lastHeartbeat := show(t, d.host).LastHeartbeatAt
	ok(t, "dev", "agent", d.host, "--detach", "--dir", shared.Dir)
	eventually(t, "the agent is back", func() bool { return show(t, d.host).LastHeartbeatAt.After(*lastHeartbeat) })
	require.Equal(t, lifecycle.ReasonTaskLost, stuckOf(t, d.id).Reason)

	refused := run(t, "task", "resume", d.task.TaskID, "--yes")
	require.Equal(t, schema.ExitUsage, refused.code, "without a reason")
	ok(t, "task", "resume", d.task.TaskID, "--yes", "--reason", "checked: the job still runs")
	eventually(t, "no longer parked", func() bool { return stuckOf(t, d.id).Reason == "" })
	d.finish(t)
	require.EqualValues(t, 2, nodeTask(t, d.task.TaskID).Attempts)
	require.Equal(t, 1, taskEvents(t, d.id, d.task.TaskID, audit.TaskResume))
	record(t, d.id, "wiped")
}

// canceledTask: an operator's cancel of a task ends the work on the node and parks
// its operation.
func canceledTask(t *testing.T) {
	t.Helper()
	d := drainThatWaits(t, "ended")
	ok(t, "task", "cancel", d.task.TaskID, "--yes", "--reason", "wrong deadline")
	next := waitParked(t, d.id, lifecycle.ReasonTaskCanceled)
	require.True(t, strings.HasPrefix(next, "gpuaas op "), next)
	ended := nodeTask(t, d.task.TaskID)
	require.Equal(t, task.Canceled, ended.Status)
	require.NotNil(t, ended.Result, "the agent reported it")
	require.Len(t, show(t, d.host).Workloads, 1)
	ok(t, "op", "retry", d.host, "--reason", "now")
	again := newest(t, d.host, task.WorkloadDrain, task.Dispatched, task.Running)
	require.NotEqual(t, d.task.TaskID, again.TaskID)
	d.task = again
	d.finish(t)
	record(t, d.id, "ended")
}

// recordRounds stores a closed run of a scheduled workflow whose history contains a word as
// a replay fixture, if the flag is set.
func recordRounds(t *testing.T, workflow, word, name string) {
	t.Helper()
	if *recordTo == "" {
		return
	}
	c := dial(t)
	var found *commonpb.WorkflowExecution
	eventually(t, "a run of "+workflow+" with "+word+" is listed", func() bool {
		answer, err := c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{Query: fmt.Sprintf("WorkflowType = %q", workflow)})
		require.NoError(t, err)
		for _, e := range answer.GetExecutions() {
			if strings.Contains(history(t, c, e.GetExecution().GetWorkflowId(), e.GetExecution().GetRunId()).String(), word) {
				found = e.GetExecution()
			}
		}
		return found != nil
	})
	require.NoError(t, c.GetWorkflow(t.Context(), found.GetWorkflowId(), found.GetRunId()).Get(t.Context(), nil), "a run takes minutes")
	writeHistory(t, name, history(t, c, found.GetWorkflowId(), found.GetRunId()))
}
