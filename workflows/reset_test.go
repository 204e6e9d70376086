package workflows

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// TestResetBeforeTheCordon: a run that was canceled is reset to before its cordon, and the
// server applies the cancel again. The new run removes the cordon of the run before.
func TestResetBeforeTheCordon(t *testing.T) {
	w := newWorld(lifecycle.NodeActive)
	w.open[task.WorkloadDrain] = true
	fails(task.WorkloadUncordon)(w)
	r, _ := onServer(t, w)
	defer r.startWorker()()
	r.submit(lifecycle.ActionDrain)
	r.untilCall("task workload.drain")
	r.decide(lifecycle.DecisionCancel)
	r.until(lifecycle.OperationParked) // the undo
	w.mu.Lock()
	delete(w.on, task.WorkloadUncordon)
	w.mu.Unlock()
	r.reset()
	require.Equal(t, "rolled back", r.until(lifecycle.OperationCanceled).Outcome)
	require.Equal(t, 1, w.count("task workload.cordon"))
	require.Equal(t, 2, w.count("task workload.uncordon"), "the new run leaves the cordon")
}

// TestResetToBeforeTheUndo: a run whose undo has begun is reset to before it, and the server
// does not apply the cancel again, because it names the park. The new run undoes, too: its
// phases rely on what the undo removes.
func TestResetToBeforeTheUndo(t *testing.T) {
	w := newWorld(lifecycle.NodeActive)
	fails(task.WorkloadDrain)(w)
	w.open[task.WorkloadUncordon] = true
	r, _ := onServer(t, w)
	defer r.startWorker()()
	r.submit(lifecycle.ActionDrain)
	r.until(lifecycle.OperationParked)
	r.decide(lifecycle.DecisionCancel)
	r.untilCall("task workload.uncordon")
	w.mu.Lock()
	w.open[task.WorkloadUncordon] = false
	delete(w.on, task.WorkloadDrain)
	w.mu.Unlock()
	r.reset()
	require.Equal(t, "rolled back", r.until(lifecycle.OperationCanceled).Outcome)
	require.Equal(t, 1, w.count("task workload.cordon"))
	require.Equal(t, 1, w.count("task workload.drain"))
	require.Equal(t, 2, w.count("task workload.uncordon"))
}

// TestResetInTheUndo: a run that is reset to after its undo began asks about the task of
// that undo. Only a decision runs it again.
func TestResetInTheUndo(t *testing.T) {
	w := newWorld(lifecycle.NodeActive)
	w.open[task.WorkloadDrain] = true
	fails(task.WorkloadUncordon)(w)
	r, _ := onServer(t, w)
	defer r.startWorker()()
	r.submit(lifecycle.ActionDrain)
	r.untilCall("task workload.drain")
	r.decide(lifecycle.DecisionCancel)
	r.until(lifecycle.OperationParked)
	var to int64 // the workflow task that enqueued the undo's task
	for _, e := range r.save("", "").GetEvents() {
		if a := e.GetActivityTaskScheduledEventAttributes(); strings.HasPrefix(a.GetActivityId(), string(task.WorkloadUncordon)) {
			to = a.GetWorkflowTaskCompletedEventId()
		}
	}
	require.NotZero(t, to)
	r.op.RunID = temporaltest.Reset(t, r.SDK(), r.Namespace(), r.op.WorkflowID, r.op.RunID, to)
	r.until(lifecycle.OperationParked)
	require.Equal(t, 1, w.count("task workload.uncordon"))
	w.mu.Lock()
	delete(w.on, task.WorkloadUncordon)
	w.mu.Unlock()
	r.decide(lifecycle.DecisionRetry)
	r.until(lifecycle.OperationCanceled)
	require.Equal(t, 1, w.count("task workload.uncordon#2"))
}

// TestRetryAfterAReset: the first retry after a reset enqueues a task of its own. It does not
// find the one of the retry before the reset.
func TestRetryAfterAReset(t *testing.T) {
	w := newWorld(lifecycle.NodeActive)
	var steps []string
	w.on[task.WorkloadCordon] = func(spec activities.TaskSpec) (task.Result, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		steps = append(steps, spec.Step)
		return task.Result{}, final(schema.KindTaskFailed, "no luck")
	}
	r, _ := onServer(t, w)
	defer r.startWorker()()
	r.submit(lifecycle.ActionDrain)
	r.until(lifecycle.OperationParked)
	r.decide(lifecycle.DecisionRetry)
	harness.Eventually(t, "the retry fails", func() bool { return w.count("park cordon") == 2 })
	r.reset()
	r.until(lifecycle.OperationParked)
	w.mu.Lock()
	before := len(steps)
	w.mu.Unlock()
	r.decide(lifecycle.DecisionRetry)
	harness.Eventually(t, "the next retry fails", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(steps) > before
	})
	r.decide(lifecycle.DecisionCancel)
	require.NotContains(t, steps[:before], steps[before])
}
