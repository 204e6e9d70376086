package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestTasksInTrouble does to running tasks what people do in the Web UI and at
// the command line, and lets agents vanish in the middle of one, which the
// reclaimer finds.
func TestTasksInTrouble(t *testing.T) {
	cases := []struct {
		name string
		do   func(*testing.T)
	}{ // the longest first
		{"paused in the Web UI", pausedDrain},
		{"a harmless one is offered again", harmlessTask},
		{"a lost one heals when its agent is back", lostAndBack},
		{"a lost one of a wiped node waits for a person", lostAndWiped},
		{"cancelled by itself", endedTask},
		{"cancelled in the Web UI", cancelledDrain},
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
	require.NotContains(t, ok(t, "stuck", "-o", "json").stdout, `"component": "reclaimer"`, "its schedule runs")
	recordReclaim(t)
}

// harmlessTask: the agent dies with a task that it was handed and has not put
// into its journal. The reclaimer's own schedule finds it.
func harmlessTask(t *testing.T) {
	t.Helper()
	nodeHost, id := enrolled(t, "requeue")
	given := handedToTheDead(t, nodeHost)
	minuteLater(t, given.TaskID)
	eventually(t, "offered again", func() bool { return nodeTask(t, given.TaskID).Status == task.Pending })
	require.Empty(t, stuckOf(t, id).Reason, "nobody is asked")
	ok(t, "dev", "agent", nodeHost, "--detach", "--dir", shared.dir)
	eventually(t, "cordoned", func() bool { n := show(t, nodeHost); return n.Cordoned && n.Operation == nil })
	done := nodeTask(t, given.TaskID)
	require.Equal(t, task.Succeeded, done.Status)
	require.Equal(t, given.Attempts+1, done.Attempts)
	require.NotEqual(t, given.Holder, done.Holder)
	require.Equal(t, 1, said(t, id, given.TaskID, audit.TaskRequeued))
	requireOneRowPerChange(t, id)
	record(t, id, "requeue")
}

// handedToTheDead stops the agent in its poll, lets a cordon be handed to it and
// kills it. An agent that was not in its poll is let go on, and it tries again.
func handedToTheDead(t *testing.T, nodeHost string) (given wire.TaskView) {
	t.Helper()
	pid := parts(t)["agent/"+nodeHost].PID
	for range 5 {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		ok(t, "node", "drain", nodeHost, "--cordon-only", "--yes", "--no-wait")
		eventually(t, "the task stands", func() bool {
			all := tasksOf(t, nodeHost)
			if len(all) > 0 {
				given = all[0]
			}
			return given.Type == task.WorkloadCordon && !given.Status.Terminal()
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

// lostDrain is a drain whose agent was killed and that was given up.
func lostDrain(t *testing.T, name string) draining {
	t.Helper()
	d := drainThatWaits(t, name)
	kill(t, "agent", d.host)
	minuteLater(t, d.task.TaskID)
	// What the schedule would do within half a minute.
	require.NoError(t, dial(t).ScheduleClient().GetHandle(t.Context(), lifecycle.ScheduleReclaim).Trigger(t.Context(), client.ScheduleTriggerOptions{}))
	next := parked(t, d.id, task.ReasonLost)
	require.Contains(t, next, "gpuaas task resume "+d.task.TaskID)
	require.Equal(t, task.Lost, nodeTask(t, d.task.TaskID).Status)
	require.Equal(t, 1, said(t, d.id, d.task.TaskID, audit.TaskLost))
	return d
}

// lostAndBack: a task that must not be run again unasked is given up, and goes
// on when the agent that has it is heard of.
func lostAndBack(t *testing.T) {
	t.Helper()
	d := lostDrain(t, "back")
	ok(t, "dev", "agent", d.host, "--detach", "--dir", shared.dir)
	eventually(t, "nothing waits any more", func() bool { return stuckOf(t, d.id).Reason == "" })
	require.Equal(t, task.Running, nodeTask(t, d.task.TaskID).Status)
	d.ends(t)
	require.EqualValues(t, 1, nodeTask(t, d.task.TaskID).Attempts)
	require.Equal(t, 1, said(t, d.id, d.task.TaskID, audit.TaskReturned))
	record(t, d.id, "back")
}

// lostAndWiped: an agent whose journal is gone does not bring the task back, and
// is not given it until a person says so.
func lostAndWiped(t *testing.T) {
	t.Helper()
	d := lostDrain(t, "wiped")
	state := filepath.Join(agentDir(d.host), "state")
	require.NoError(t, os.RemoveAll(filepath.Join(state, "journal")))
	require.NoError(t, os.RemoveAll(filepath.Join(state, "seq-floor.json")))
	heard := show(t, d.host).LastHeartbeatAt
	ok(t, "dev", "agent", d.host, "--detach", "--dir", shared.dir)
	eventually(t, "the agent is back", func() bool { return show(t, d.host).LastHeartbeatAt.After(*heard) })
	require.Equal(t, task.ReasonLost, stuckOf(t, d.id).Reason)

	refused := run(t, "task", "resume", d.task.TaskID, "--yes")
	require.Equal(t, schema.ExitUsage, refused.code, "without a reason")
	ok(t, "task", "resume", d.task.TaskID, "--yes", "--reason", "looked: the job still runs")
	eventually(t, "nothing waits any more", func() bool { return stuckOf(t, d.id).Reason == "" })
	d.ends(t)
	require.EqualValues(t, 2, nodeTask(t, d.task.TaskID).Attempts)
	require.Equal(t, 1, said(t, d.id, d.task.TaskID, audit.TaskResume))
	record(t, d.id, "wiped")
}

// endedTask: an operator's cancel of a task ends the work on the node and parks
// its operation.
func endedTask(t *testing.T) {
	t.Helper()
	d := drainThatWaits(t, "ended")
	ok(t, "task", "cancel", d.task.TaskID, "--yes", "--reason", "wrong deadline")
	next := parked(t, d.id, task.ReasonCanceled)
	require.True(t, strings.HasPrefix(next, "gpuaas op "), next)
	ended := nodeTask(t, d.task.TaskID)
	require.Equal(t, task.Canceled, ended.Status)
	require.NotNil(t, ended.Result, "the agent reported it")
	require.Len(t, show(t, d.host).Workloads, 1)
	ok(t, "op", "retry", d.host, "--reason", "now")
	again := newest(t, d.host, task.WorkloadDrain, task.Dispatched, task.Running)
	require.NotEqual(t, d.task.TaskID, again.TaskID)
	d.task = again
	d.ends(t)
	record(t, d.id, "ended")
}

// recordReclaim keeps a sweep that gave a task up as a replay fixture when asked
// to.
func recordReclaim(t *testing.T) {
	t.Helper()
	if *recordTo == "" {
		return
	}
	c := dial(t)
	eventually(t, "a sweep that gave a task up is listed", func() bool {
		answer, err := c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{
			Query: fmt.Sprintf("WorkflowType = %q AND ExecutionStatus = 'Completed'", lifecycle.WorkflowReclaim)})
		require.NoError(t, err)
		for _, e := range answer.GetExecutions() {
			h := history(t, c, e.GetExecution().GetWorkflowId(), e.GetExecution().GetRunId())
			if strings.Contains(h.String(), string(activities.ReclaimLost)) {
				keep(t, "sweep", h)
				return true
			}
		}
		return false
	})
}
