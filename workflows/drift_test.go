package workflows

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// scanned is the result of a scan that found a drift and started an upgrade.
func scanned() activities.DriftSummary {
	return activities.DriftSummary{DriftBatch: activities.DriftBatch{Nodes: 7, Drifted: 2, Changed: 1}, Started: []string{"op-1"}}
}

// TestDriftRun: a run is one round, which is retried without the database.
func TestDriftRun(t *testing.T) {
	t.Parallel()
	tries := 0
	env, rounds := scheduled(t, lifecycle.WorkflowDrift, "ScanDrift", func(int, string) (activities.DriftSummary, error) {
		if tries++; tries == 1 {
			return activities.DriftSummary{}, errRound
		}
		return scanned(), nil
	})
	require.NoError(t, env.GetWorkflowError())
	var got activities.DriftSummary
	require.NoError(t, env.GetWorkflowResult(&got))
	require.Equal(t, scanned(), got)
	require.Len(t, rounds, 1)
}

// TestDriftBudgets: a run does not delay the next one, and outlives its round.
func TestDriftBudgets(t *testing.T) {
	t.Parallel()
	for _, s := range lifecycle.Schedules() {
		if s.ID == lifecycle.ScheduleDrift {
			require.Greater(t, s.RunTimeout, callSweep.ScheduleToCloseTimeout)
			require.Less(t, s.RunTimeout, s.Every)
			return
		}
	}
	t.Fatal("no schedule")
}

// TestHistoriesOfDrift runs ScanDrift on a real server: a run whose round is tried twice, and one that an
// operator cancels. With -record it writes the replay fixtures.
func TestHistoriesOfDrift(t *testing.T) {
	r, _ := onServer(t, newWorld(lifecycle.NodeActive))
	var tries atomic.Int64
	canceled := make(chan struct{})
	w := r.world.worker(r.Client)
	w.RegisterActivityWithOptions(func(context.Context) (activities.DriftSummary, error) {
		switch tries.Add(1) {
		case 1:
			return activities.DriftSummary{}, errRound
		case 3:
			<-canceled
		}
		return scanned(), nil
	}, activity.RegisterOptions{Name: "ScanDrift"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	start := func() client.WorkflowRun {
		t.Helper()
		run, err := r.SDK().ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "fleet:drift", TaskQueue: lifecycle.TaskQueue,
			StaticSummary: "Compare nodes with their templates"}, lifecycle.WorkflowDrift)
		require.NoError(t, err)
		return run
	}
	ends := func(run client.WorkflowRun, name string) {
		t.Helper()
		var got activities.DriftSummary
		require.NoError(t, run.Get(t.Context(), &got))
		require.Equal(t, scanned(), got)
		r.op = lifecycle.Operation{WorkflowID: run.GetID(), RunID: run.GetRunID()}
		require.NoError(t, replayer(t, Registry()).ReplayWorkflowHistory(nil, r.keep(name)))
	}
	ends(start(), "drift")

	run := start()
	harness.Eventually(t, "the round of the second run", func() bool { return tries.Load() == 3 })
	require.NoError(t, r.SDK().CancelWorkflow(t.Context(), run.GetID(), run.GetRunID()))
	close(canceled)
	ends(run, "drift-canceled")
}
