package fleet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
)

// testExecutor returns an executor of the agent; its drain stops a workload.
func testExecutor(m *member, kind task.Type) func(context.Context, runner.Task) (any, error) {
	x := m.wrapExecutor(kind, runner.Executor{Folder: true, Resumable: true, Run: func(ctx context.Context, _ runner.Task) (any, error) {
		if kind == task.WorkloadDrain {
			return "drained", m.load.Stop(ctx, "workload-01")
		}
		return "own", nil
	}})
	return x.Run
}

func newTask(kind task.Type) runner.Task {
	return runner.Task{Payload: task.Payload{TaskID: "t-" + string(kind), Type: kind, MaxRuntime: 30}}
}

func TestSimulatedTypes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newTestMember("", nil)
		m.fleet.TaskTime, m.load.size = Span{time.Second, time.Second}, 1
		do := func(kind task.Type) any {
			out, err := testExecutor(m, kind)(t.Context(), newTask(kind))
			require.NoError(t, err)
			return out
		}
		running := func() int {
			list, err := m.load.List(t.Context())
			require.NoError(t, err)
			return len(list)
		}
		begun := time.Now()
		require.Equal(t, "own", do(task.WorkloadCordon))
		require.Equal(t, time.Second, time.Since(begun))
		require.IsType(t, inventory.Facts{}, do(task.FactsCollect))
		require.IsType(t, inventory.ProbeReport{}, do(task.NodeProbe))
		require.Equal(t, 1, running())
		require.Equal(t, "drained", do(task.WorkloadDrain))
		require.Zero(t, running())
		require.Equal(t, "own", do(task.WorkloadUncordon))
		require.Equal(t, 1, running(), "an uncordoned node accepts work again")
	})
}

func TestSlowTaskWithinLimit(t *testing.T) {
	t.Parallel()
	m, _, _ := newTestMember(Slow, nil)
	for range 100 {
		d := m.taskTime(newTask(task.WorkloadCordon))
		require.True(t, d >= 15*time.Second && d <= 27*time.Second, d)
	}
	long := newTask(task.WorkloadDrain)
	long.MaxRuntime = 3600
	require.Less(t, m.taskTime(long), slowest)
}

// TestRepeatedWork: a second destructive execution in an operation is counted, also one of
// another task.
func TestRepeatedWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newTestMember("", nil)
		do := func(kind task.Type, effect task.Effect, id, operation string) {
			x := newTask(kind)
			x.Effect, x.TaskID, x.OperationID = effect, id, operation
			_, err := testExecutor(m, kind)(t.Context(), x)
			require.NoError(t, err)
		}
		do(task.WorkloadCordon, task.EffectIdempotent, "t-1", "op-1")
		do(task.WorkloadCordon, task.EffectIdempotent, "t-1", "op-1")
		do(task.WorkloadDrain, task.EffectDestructive, "t-2", "op-1")
		do(task.WorkloadDrain, task.EffectDestructive, "t-3", "op-2")
		require.Zero(t, m.tally.repeated.Load())
		do(task.WorkloadDrain, task.EffectDestructive, "t-4", "op-1")
		require.EqualValues(t, 1, m.tally.repeated.Load())
	})
}

func TestDieOncePerTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newTestMember(Dies, nil)
		ctx, end := context.WithCancelCause(t.Context())
		m.end = end
		_, err := testExecutor(m, task.WorkloadCordon)(ctx, newTask(task.WorkloadCordon))
		require.ErrorIs(t, err, errDied)
		require.True(t, m.muted.Load(), "a dead agent sends nothing")
		out, err := testExecutor(m, task.WorkloadCordon)(t.Context(), newTask(task.WorkloadCordon))
		require.NoError(t, err, "the restarted one does the work")
		require.Equal(t, "own", out)
	})
}
