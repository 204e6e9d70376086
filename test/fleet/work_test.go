package fleet

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/schema"
)

// did is an executor of the agent in which the drain ends all workloads.
func did(m *member, kind schema.TaskType) func(context.Context, agent.Task) (any, error) {
	x := m.dress(kind, agent.Executor{Folder: true, Resumable: true, Run: func(ctx context.Context, _ agent.Task) (any, error) {
		if kind == schema.TaskWorkloadDrain {
			return "drained", m.load.Stop(ctx, "pretended-01")
		}
		return "own", nil
	}})
	return x.Run
}

func task(kind schema.TaskType) agent.Task {
	return agent.Task{TaskPayload: schema.TaskPayload{TaskID: "t-" + string(kind), Type: kind, MaxRuntime: 30}}
}

func TestOnlyTheMachineIsPretended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := bench("", nil)
		m.fleet.TaskTime, m.load.size = Span{time.Second, time.Second}, 1
		do := func(kind schema.TaskType) any {
			out, err := did(m, kind)(t.Context(), task(kind))
			require.NoError(t, err)
			return out
		}
		running := func() int {
			list, err := m.load.List(t.Context())
			require.NoError(t, err)
			return len(list)
		}
		begun := time.Now()
		require.Equal(t, "own", do(schema.TaskWorkloadCordon))
		require.Equal(t, time.Second, time.Since(begun))
		require.IsType(t, schema.Facts{}, do(schema.TaskFactsCollect))
		require.IsType(t, schema.ProbeReport{}, do(schema.TaskNodeProbe))
		require.Equal(t, 1, running())
		require.Equal(t, "drained", do(schema.TaskWorkloadDrain))
		require.Zero(t, running())
		require.Equal(t, "own", do(schema.TaskWorkloadUncordon))
		require.Equal(t, 1, running(), "an uncordoned node takes work again")
	})
}

func TestSlowStaysWithinTheTimeLimit(t *testing.T) {
	t.Parallel()
	m, _, _ := bench(Slow, nil)
	for range 100 {
		d := m.taskTime(task(schema.TaskWorkloadCordon))
		require.True(t, d >= 15*time.Second && d <= 27*time.Second, d)
	}
	long := task(schema.TaskWorkloadDrain)
	long.MaxRuntime = 3600
	require.Less(t, m.taskTime(long), slowest)
}

func TestDiesOnceForATask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := bench(Dies, nil)
		ctx, end := context.WithCancelCause(t.Context())
		m.end = end
		_, err := did(m, schema.TaskWorkloadCordon)(ctx, task(schema.TaskWorkloadCordon))
		require.ErrorIs(t, err, errDied)
		require.True(t, m.hushed.Load(), "a dead agent says nothing")
		out, err := did(m, schema.TaskWorkloadCordon)(t.Context(), task(schema.TaskWorkloadCordon))
		require.NoError(t, err, "the restarted one does the work")
		require.Equal(t, "own", out)
	})
}
