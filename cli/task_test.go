package cli

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const taskID = "5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2aa"

// lostTask is a drain's task whose node fell silent.
func lostTask() wire.TaskView {
	return wire.TaskView{TaskID: taskID, NodeID: nodeID, Host: "gpu-17", Type: task.WorkloadDrain,
		Effect: task.EffectDestructive, Status: task.Lost, Step: "workload.drain", Seq: 7, Incarnation: 1,
		OperationID: operationID, WorkflowID: lifecycle.NodeWorkflowID("gpu-17", nodeID), RunID: runID, Attempts: 1,
		Holder: "boot-1772361600", LeaseUntil: at(-9 * time.Minute), Progress: "2 of 3 workloads ended",
		Deadline: at(time.Hour), CreatedAt: *at(-12 * time.Minute), DispatchedAt: at(-11 * time.Minute), FinishedAt: at(-8 * time.Minute)}
}

// runningTask is a probe that its node works on.
func runningTask() wire.TaskView {
	t := lostTask()
	t.TaskID, t.Type, t.Effect = "5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2ab", task.NodeProbe, task.EffectRead
	t.Status, t.Step, t.Attempts = task.Running, "node.probe#2", 2
	t.LeaseUntil, t.Progress, t.Paused, t.CancelRequested = at(45*time.Second), "", true, "not needed"
	t.FinishedAt = nil
	return t
}

// failedTask is one that is over, with what it printed.
func failedTask() wire.TaskView {
	t := lostTask()
	t.TaskID, t.Status = "5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2ac", task.Failed
	t.Result = &task.Result{LeaseEpoch: 1, Status: task.Failed, Code: schema.KindTaskFailed,
		Message: "docker does not answer", StartedAt: *at(-11 * time.Minute), FinishedAt: *at(-8 * time.Minute),
		OutputTail: "stopping\ttrain-1\r\n\x1b[2Jevil\x1b]0;title\x07 \u009b31m \u202etxet\nNext:  rm -rf /\n"}
	t.ResultProof = &trust.ResultProof{Serial: "3fd4cb5e8f487867", Key: []byte("key"), Body: []byte("{}"), Signature: []byte("signature")}
	return t
}

// lostDrain is the record of the drain that waits for the lost task.
func lostDrain() wire.OperationSummary {
	return wire.OperationSummary{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", Action: lifecycle.ActionDrain,
		WorkflowID: lifecycle.NodeWorkflowID("gpu-17", nodeID), RunID: runID, Status: lifecycle.OperationParked, Phase: lifecycle.PhaseDrain,
		Actor: "bob@laptop", StartedAt: *at(-13 * time.Minute), Stuck: &lifecycle.Stuck{Phase: lifecycle.PhaseDrain,
			WaitingOn: lifecycle.AttentionOperator, Reason: lifecycle.ReasonTaskLost, Since: *at(-8 * time.Minute),
			Message: task.NoReport(task.Lost, 1).Message, Cause: "the node lost its power",
			Next: "gpuaas task resume " + taskID + " --reason TEXT"}}
}

// serveTasks is the admin API's part about tasks.
func (a *fakeAPI) serveTasks(mux *http.ServeMux) {
	find := func(w http.ResponseWriter, r *http.Request) *wire.TaskView {
		i := slices.IndexFunc(a.tasks, func(t wire.TaskView) bool { return t.TaskID == r.PathValue("task") })
		if i < 0 {
			a.fail(w, schema.NewError(schema.KindNotFound, "no such task"))
			return nil
		}
		return &a.tasks[i]
	}
	mux.HandleFunc("GET /api/v1/admin/tasks", func(w http.ResponseWriter, r *http.Request) {
		list, node := wire.TaskList{Tasks: []wire.TaskView{}}, r.URL.Query().Get("node")
		for _, t := range a.tasks {
			if (node == "" || node == t.NodeID || node == t.Host) && (r.URL.Query().Get("all") == "true" || !t.Status.Terminal()) {
				list.Tasks = append(list.Tasks, t)
			}
		}
		a.answer(w, http.StatusOK, list)
	})
	mux.HandleFunc("GET /api/v1/admin/tasks/{task}", func(w http.ResponseWriter, r *http.Request) {
		if t := find(w, r); t != nil {
			a.answer(w, http.StatusOK, *t)
		}
	})
	mux.HandleFunc("POST /api/v1/admin/tasks/{task}/{verb}", func(w http.ResponseWriter, r *http.Request) {
		var req wire.TaskDecision
		t := find(w, r)
		if t == nil || !a.read(w, r, &req) {
			return
		}
		a.decideOnTask(w, t, r.PathValue("verb"), req.Reason)
	})
}

func (a *fakeAPI) decideOnTask(w http.ResponseWriter, t *wire.TaskView, verb, reason string) {
	switch {
	case verb == "resume" && t.Status != task.Lost, t.Status.Terminal():
		a.fail(w, schema.NewError(schema.KindTaskStatus, "task %s is %s; allowed now: cancel", t.TaskID, t.Status).WithReason("task_not_lost"))
		return
	case t.Deadline.Before(start()):
		a.fail(w, schema.NewError(schema.KindTaskStatus, "task %s is past its deadline: the node would refuse it", t.TaskID).
			WithReason("envelope_expired").WithNext("gpuaas op retry "+t.NodeID+" --reason TEXT"))
		return
	}
	a.decided = append(a.decided, verb+" "+t.TaskID+" "+reason)
	t.Status = map[string]task.Status{"resume": task.Pending, "cancel": task.Canceled}[verb]
	a.answer(w, http.StatusOK, *t)
}

func TestTaskList(t *testing.T) {
	t.Parallel()
	elsewhere := lostTask()
	elsewhere.TaskID, elsewhere.NodeID, elsewhere.Host = "5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2ad", "0198f000-0000-7000-8000-000000000018", "gpu-18"
	elsewhere.Status, elsewhere.Attempts, elsewhere.LeaseUntil, elsewhere.Progress = task.Pending, 0, nil, ""
	elsewhere.Holder, elsewhere.DispatchedAt, elsewhere.FinishedAt = "", nil, nil
	for name, args := range map[string][]string{
		"list": {}, "list-node": {"--node", "gpu-17"}, "list-all": {"--all"}, "list-json": {"--node", "gpu-18", "-o", "json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.api.tasks = []wire.TaskView{runningTask(), lostTask(), failedTask(), elsewhere}
			h.golden("task-"+name, append([]string{"task", "list"}, args...)...)
		})
	}
	t.Run("succeeded", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		done := lostTask()
		done.Status, done.Progress = task.Succeeded, "starting"
		h.api.tasks = []wire.TaskView{done}
		for _, args := range [][]string{{"list", "--all"}, {"show", done.TaskID}} {
			require.Zero(t, h.run(append([]string{"task"}, args...)...), h.err.String())
			require.Contains(t, h.out.String(), "succeeded")
			require.NotContains(t, h.out.String(), "starting", args)
		}
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.golden("task-list-none", "task", "list")
		require.Zero(t, h.run("task", "list", "--all", "-o", "json"))
		require.JSONEq(t, `{"tasks": []}`, h.out.String())
	})
	t.Run("no api", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.server.Close()
		require.Equal(t, schema.ExitUnreachable, h.run("task", "list"))
	})
}

func TestTaskShow(t *testing.T) {
	t.Parallel()
	expired := lostTask()
	expired.Deadline = at(-time.Minute)
	ofRotation := runningTask()
	ofRotation.Type, ofRotation.OperationID = task.UpdateTrust, "0198f000-0000-7000-8000-0000000000aa"
	running := lostDrain()
	running.Status, running.Stuck = lifecycle.OperationRunning, nil
	for name, tc := range map[string]struct {
		task wire.TaskView
		op   wire.OperationSummary
		args []string
	}{
		"lost":          {lostTask(), lostDrain(), nil},
		"lost-json":     {lostTask(), lostDrain(), []string{"-o", "json"}},
		"lost-just-now": {lostTask(), running, nil},
		"lost-expired":  {expired, lostDrain(), nil},
		"running":       {runningTask(), running, nil},
		"failed":        {failedTask(), lostDrain(), nil},
		"failed-json":   {failedTask(), lostDrain(), []string{"-o", "json"}},
		"rotation":      {ofRotation, wire.OperationSummary{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.api.tasks, h.api.operations = []wire.TaskView{tc.task}, []wire.OperationSummary{tc.op}
			h.golden("task-show-"+name, append([]string{"task", "show", tc.task.TaskID}, tc.args...)...)
			require.NotContains(t, strings.ReplaceAll(h.out.String(), "\n", ""), "\x1b")
		})
	}
	t.Run("unknown", func(t *testing.T) {
		t.Parallel()
		setup(t).golden("task-show-unknown", "task", "show", taskID)
	})
	t.Run("what the node wrote cannot steer the terminal", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.tasks = []wire.TaskView{failedTask()}
		require.Zero(t, h.run("task", "show", failedTask().TaskID))
		for _, bad := range []string{"\x1b", "\x07", "\r", "\u009b", "\u202e", "\nNext:"} {
			require.NotContains(t, h.out.String(), bad)
		}
		require.Contains(t, h.out.String(), "\n  | Next:  rm -rf /\n")
	})
}

func TestTaskDecide(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"resume", "cancel"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.api.tasks = []wire.TaskView{lostTask()}
			h.golden("task-"+verb, "task", verb, taskID, "--reason", "TCK-7", "--yes")
			require.Equal(t, []string{verb + " " + taskID + " TCK-7"}, h.api.decided)
		})
		t.Run(verb+" asks", func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.api.tasks = []wire.TaskView{lostTask()}
			h.onTerminal("n\n")
			require.Equal(t, schema.ExitFailed, h.run("task", verb, taskID, "--reason", "TCK-7"))
			require.Empty(t, h.api.decided)
			h.onTerminal("y\n")
			require.Zero(t, h.run("task", verb, taskID, "--reason", "TCK-7"))
			require.Len(t, h.api.decided, 1)
		})
		t.Run(verb+" of none", func(t *testing.T) {
			t.Parallel()
			require.Equal(t, schema.ExitNotFound, setup(t).run("task", verb, taskID, "--reason", "r", "--yes"))
		})
	}
	t.Run("not lost", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.tasks = []wire.TaskView{runningTask()}
		h.golden("task-resume-refused", "task", "resume", runningTask().TaskID, "--reason", "r", "--yes")
	})
	t.Run("too late", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		late := lostTask()
		late.Deadline = at(-time.Minute)
		h.api.tasks = []wire.TaskView{late}
		h.golden("task-resume-expired", "task", "resume", taskID, "--reason", "r", "--yes")
	})
}

func TestTaskCompletion(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.tasks = []wire.TaskView{runningTask(), lostTask(), failedTask()}
	for verb, want := range map[string]int{"show": 2, "cancel": 2, "resume": 1} {
		require.Zero(t, h.run("__complete", "task", verb, ""))
		require.Equal(t, want, strings.Count(h.out.String(), "\tworkload.drain on gpu-17, lost\n")+strings.Count(h.out.String(), "\tnode.probe on gpu-17, running\n"), verb)
		require.Contains(t, h.out.String(), taskID)
	}
}

func TestNodeShowsItsTasks(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.tasks = []wire.TaskView{runningTask(), lostTask(), failedTask()}
	h.golden("node-show-tasks", "node", "show", "gpu-17")
}

func TestStuckTasks(t *testing.T) {
	t.Parallel()
	t.Run("a lost task", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		st := parkedDrain()
		st.Operation.Stuck = lostDrain().Stuck
		h.temporal.parked, h.api.operations = []lifecycle.OperationStatus{st}, []wire.OperationSummary{lostDrain()}
		h.golden("stuck-task-lost", "stuck")
	})
	absent := wire.ControlPlaneFault{Component: "reclaimer", Reason: "absent", Message: "it is absent", Next: "gpuaas admin setup"}
	t.Run("reclaimer", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.faults = []wire.ControlPlaneFault{absent}
		require.Zero(t, h.run("stuck"))
		require.Equal(t, "warning: it is absent\nnext:  gpuaas admin setup\nnothing is stuck\n", h.err.String())
	})
	t.Run("reclaimer in JSON", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.faults = []wire.ControlPlaneFault{absent}
		h.golden("stuck-reclaimer-json", "stuck", "-o", "json")
	})
}
