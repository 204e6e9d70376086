package workflows

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/harness"
)

// swept is the result of a round that found a machine and deleted it.
func swept() activities.SweepSummary {
	return activities.SweepSummary{Machines: 7, Found: map[machines.SurplusClass]int{machines.ClassLeftover: 1}, Deleted: []string{"i-1"}}
}

// TestSweepRun: a run is one round, which is retried without the database. A round in which a
// provider fails is a failed run with the reason of the provider, which gpuaas stuck reports.
func TestSweepRun(t *testing.T) {
	t.Parallel()
	tries := 0
	env, rounds := scheduled(t, lifecycle.WorkflowSweep, "SweepMachines", func(int, string) (activities.SweepSummary, error) {
		if tries++; tries == 1 {
			return activities.SweepSummary{}, errRound
		}
		return swept(), nil
	})
	require.NoError(t, env.GetWorkflowError())
	var got activities.SweepSummary
	require.NoError(t, env.GetWorkflowResult(&got))
	require.Equal(t, swept(), got)
	require.Len(t, rounds, 1)

	env, _ = scheduled(t, lifecycle.WorkflowSweep, "SweepMachines", func(int, string) (activities.SweepSummary, error) {
		return activities.SweepSummary{}, activities.Failure(machines.Errorf(machines.ReasonAuth, "listing the machines of provider acme: the key has expired"), true)
	})
	failure := activities.Typed(env.GetWorkflowError())
	require.Equal(t, machines.ReasonAuth, failure.Reason)
	require.Equal(t, schema.KindProviderRefused, failure.Kind)
	require.NotEmpty(t, failure.Next)
}

// TestCanceledSweep: a cancel waits for the call of the provider, and the run ends as completed.
func TestCanceledSweep(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterActivityWithOptions(func(context.Context) (activities.SweepSummary, error) {
		return activities.SweepSummary{}, context.Canceled
	}, activity.RegisterOptions{Name: "SweepMachines"})
	env.RegisterDelayedCallback(env.CancelWorkflow, 0)
	env.ExecuteWorkflow(SweepMachines)
	require.True(t, env.IsWorkflowCompleted())
	require.NoError(t, env.GetWorkflowError())
}

// TestSweepBudgets: the run outlives its round, the round its tries, and a try the deletion that
// it begins last.
func TestSweepBudgets(t *testing.T) {
	t.Parallel()
	for _, s := range lifecycle.Schedules() {
		if s.ID == lifecycle.ScheduleSweep {
			require.Greater(t, s.RunTimeout, callSweep.ScheduleToCloseTimeout+time.Minute)
			require.Less(t, s.RunTimeout, s.Every, "a run does not delay the next one")
		}
	}
	require.Greater(t, callSweep.ScheduleToCloseTimeout, callSweep.StartToCloseTimeout)
	require.Greater(t, callSweep.StartToCloseTimeout/3, activities.ProviderTimeout)
	require.Greater(t, callSweep.HeartbeatTimeout, activities.ProviderHeartbeat)
}

// TestHistoriesOfSweep runs SweepMachines on a real server: a run whose round is tried twice, and
// one that an operator cancels. With -record it writes the replay fixtures.
func TestHistoriesOfSweep(t *testing.T) {
	r, _ := onServer(t, newWorld(lifecycle.NodeActive))
	var tries atomic.Int64
	canceled := make(chan struct{})
	w := r.world.worker(r.Client)
	w.RegisterActivityWithOptions(func(context.Context) (activities.SweepSummary, error) {
		switch tries.Add(1) {
		case 1:
			return activities.SweepSummary{}, errRound
		case 3:
			<-canceled // the call of the provider ends
		}
		return swept(), nil
	}, activity.RegisterOptions{Name: "SweepMachines"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	start := func() client.WorkflowRun {
		t.Helper()
		run, err := r.SDK().ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "fleet:sweep", TaskQueue: lifecycle.TaskQueue,
			StaticSummary: "Find machines that no instance owns"}, lifecycle.WorkflowSweep)
		require.NoError(t, err)
		return run
	}
	ends := func(run client.WorkflowRun, name string) {
		t.Helper()
		var got activities.SweepSummary
		require.NoError(t, run.Get(t.Context(), &got))
		require.Equal(t, swept(), got)
		r.op = lifecycle.Operation{WorkflowID: run.GetID(), RunID: run.GetRunID()}
		require.NoError(t, replayer(t, Registry()).ReplayWorkflowHistory(nil, r.keep(name)))
	}
	ends(start(), "sweep")

	run := start()
	harness.Eventually(t, "the round of the second run", func() bool { return tries.Load() == 3 })
	require.NoError(t, r.SDK().CancelWorkflow(t.Context(), run.GetID(), run.GetRunID()))
	close(canceled)
	ends(run, "sweep-canceled")
}
