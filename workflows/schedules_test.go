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
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// scheduled runs a scheduled workflow with its activity, and returns the starts of the
// rounds after the run's own.
func scheduled[S any](t *testing.T, workflowType, activityType string, act func(round int, after string) (S, error)) (*testsuite.TestWorkflowEnvironment, []time.Duration) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	for _, e := range Registry() {
		env.RegisterWorkflowWithOptions(e.Run, workflow.RegisterOptions{Name: e.Type})
	}
	began, last := env.Now(), -1
	var rounds []time.Duration
	env.RegisterActivityWithOptions(func(ctx context.Context, after string) (S, error) {
		if activity.GetInfo(ctx).Attempt == 1 {
			last++
			rounds = append(rounds, env.Now().Sub(began).Round(time.Second))
		}
		return act(last, after)
	}, activity.RegisterOptions{Name: activityType})
	env.ExecuteWorkflow(workflowType)
	require.True(t, env.IsWorkflowCompleted())
	return env, rounds
}

var errRound = temporal.NewApplicationError("the database is unavailable", string(schema.KindServiceUnavailable))

func TestScheduledRunHasRounds(t *testing.T) {
	t.Parallel()
	lost := activities.ReclaimSummary{Counts: map[activities.ReclaimResult]int{activities.ReclaimLost: 1},
		Decisions: []activities.ReclaimDecision{{TaskID: "t", Result: activities.ReclaimLost}}}
	env, rounds := scheduled(t, lifecycle.WorkflowReclaim, "ReclaimTasks", func(round int, _ string) (activities.ReclaimSummary, error) {
		if round == 3 {
			return lost, nil
		}
		return activities.ReclaimSummary{}, nil
	})
	require.NoError(t, env.GetWorkflowError())
	var got Rounds[activities.ReclaimSummary]
	require.NoError(t, env.GetWorkflowResult(&got))
	require.Equal(t, Rounds[activities.ReclaimSummary]{Rounds: lifecycle.Rounds, Changes: []activities.ReclaimSummary{lost}}, got)
	for i, at := range rounds {
		require.Equal(t, time.Duration(i)*lifecycle.RoundInterval, at)
	}
}

// TestExplainRounds: a run explains the parks of each round, and its result lists the rounds that
// found some.
func TestExplainRounds(t *testing.T) {
	t.Parallel()
	found := activities.ExplainSummary{Explained: 2, Causes: map[string]int{"node_silent": 2}}
	env, rounds := scheduled(t, lifecycle.WorkflowExplain, "ExplainParks", func(round int, _ string) (activities.ExplainSummary, error) {
		if round == 1 {
			return found, nil
		}
		return activities.ExplainSummary{}, nil
	})
	require.NoError(t, env.GetWorkflowError())
	var got Rounds[activities.ExplainSummary]
	require.NoError(t, env.GetWorkflowResult(&got))
	require.Equal(t, Rounds[activities.ExplainSummary]{Rounds: lifecycle.Rounds, Changes: []activities.ExplainSummary{found}}, got)
	require.Len(t, rounds, lifecycle.Rounds)
}

// TestFailedRound: a round that fails does not end the run, and its result says so.
func TestFailedRound(t *testing.T) {
	t.Parallel()
	found := activities.WatchSummary{Abandoned: []activities.AbandonedOperation{{OperationID: "o", End: lifecycle.RunTerminated}}}
	env, rounds := scheduled(t, lifecycle.WorkflowWatch, "AbandonOperations", func(round int, _ string) (activities.WatchSummary, error) {
		if round < 2 {
			return activities.WatchSummary{}, errRound
		}
		return found, nil
	})
	require.NoError(t, env.GetWorkflowError())
	var got Rounds[activities.WatchSummary]
	require.NoError(t, env.GetWorkflowResult(&got))
	require.Equal(t, 2, got.Failed)
	require.Equal(t, "the database is unavailable", got.Failure)
	require.Len(t, got.Changes, got.Rounds-2)
	require.Len(t, rounds, got.Rounds)
}

// TestFailingRuns: a run whose last round fails is a failed run, which is the fault
// that gpuaas stuck reports.
func TestFailingRuns(t *testing.T) {
	t.Parallel()
	env, rounds := scheduled(t, lifecycle.WorkflowReclaim, "ReclaimTasks", func(int, string) (activities.ReclaimSummary, error) {
		return activities.ReclaimSummary{}, errRound
	})
	failure := activities.Typed(env.GetWorkflowError())
	require.NotNil(t, failure)
	require.Equal(t, schema.KindServiceUnavailable, failure.Kind)
	require.Contains(t, failure.Message, "rounds failed, the last one: the database is unavailable")
	require.Greater(t, len(rounds), 1)
}

// TestCanceledRun: an operator who cancels a run ends it, and its schedule does not count
// as failing.
func TestCanceledRun(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterActivityWithOptions(func(context.Context) (activities.ReclaimSummary, error) {
		return activities.ReclaimSummary{}, nil
	}, activity.RegisterOptions{Name: "ReclaimTasks"})
	env.RegisterDelayedCallback(env.CancelWorkflow, lifecycle.RoundInterval+time.Second)
	env.ExecuteWorkflow(ReclaimStaleDispatch)
	require.NoError(t, env.GetWorkflowError())
	var got Rounds[activities.ReclaimSummary]
	require.NoError(t, env.GetWorkflowResult(&got))
	require.Equal(t, Rounds[activities.ReclaimSummary]{Rounds: 2}, got)
}

// TestSlowRoundsEndInTime: no round of a run begins so late that the run timeout ends it.
func TestSlowRoundsEndInTime(t *testing.T) {
	t.Parallel()
	for _, s := range lifecycle.Schedules() {
		require.Greater(t, s.RunTimeout, lifecycle.Rounds*lifecycle.RoundInterval+callRound.ScheduleToCloseTimeout, s.ID)
		require.Greater(t, s.StalledAfter(), s.RunTimeout+s.Every, s.ID)
		require.NotEmpty(t, s.Does)
	}
	require.Less(t, callRound.HeartbeatTimeout, callRound.StartToCloseTimeout)
	require.Less(t, callRound.StartToCloseTimeout, callRound.ScheduleToCloseTimeout)
}

// TestRoundContinues: a round that did not read all operations is continued by the next one,
// which is followed by a round from the start.
func TestRoundContinues(t *testing.T) {
	t.Parallel()
	var starts []string
	_, _ = scheduled(t, lifecycle.WorkflowWatch, "AbandonOperations", func(round int, after string) (activities.WatchSummary, error) {
		starts = append(starts, after)
		return activities.WatchSummary{After: "op-9", More: round == 0 || round == 2}, nil
	})
	require.Equal(t, []string{"", "op-9", "", "op-9"}, starts[:4])
}

// TestDeletionContinues: rounds follow each other as long as there is more to delete, and a
// failed one fails the run, which gpuaas stuck reports.
func TestDeletionContinues(t *testing.T) {
	t.Parallel()
	env, rounds := scheduled(t, lifecycle.WorkflowDelete, "DeleteOldRecords", func(round int, _ string) (activities.RetentionSummary, error) {
		return activities.RetentionSummary{Deleted: map[string]int64{"tasks": 500}, More: round < 2}, nil
	})
	require.NoError(t, env.GetWorkflowError())
	require.Len(t, rounds, 3)
	var got Rounds[activities.RetentionSummary]
	require.NoError(t, env.GetWorkflowResult(&got))
	require.Equal(t, 3, got.Rounds)
	require.Len(t, got.Changes, 3)

	env, _ = scheduled(t, lifecycle.WorkflowDelete, "DeleteOldRecords", func(int, string) (activities.RetentionSummary, error) {
		return activities.RetentionSummary{}, activities.Failure(schema.NewError(schema.KindInternal, "full").WithReason("archive_unwritable"), true)
	})
	require.Equal(t, "archive_unwritable", activities.Typed(env.GetWorkflowError()).Reason)
}

// TestHistoriesOfDeletion runs DeleteOldRecords on a real server: a run of two rounds, the
// first of which is tried twice, and a run that an operator cancels. With -record it writes
// the replay fixtures.
func TestHistoriesOfDeletion(t *testing.T) {
	r, _ := onServer(t, newWorld(lifecycle.NodeActive))
	var tries atomic.Int64
	canceled := make(chan struct{})
	w := r.world.worker(r.Client)
	w.RegisterActivityWithOptions(func(context.Context) (activities.RetentionSummary, error) {
		switch tries.Add(1) {
		case 1:
			return activities.RetentionSummary{}, errRound
		case 2:
			return activities.RetentionSummary{Deleted: map[string]int64{"tasks": 500}, Archived: []string{"audit-1.jsonl"}, More: true}, nil
		case 4:
			<-canceled
		}
		return activities.RetentionSummary{Deleted: map[string]int64{"tasks": 7}}, nil
	}, activity.RegisterOptions{Name: "DeleteOldRecords"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	start := func() client.WorkflowRun {
		t.Helper()
		run, err := r.SDK().ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "fleet:delete", TaskQueue: lifecycle.TaskQueue,
			StaticSummary: "Delete old records"}, lifecycle.WorkflowDelete)
		require.NoError(t, err)
		return run
	}
	ends := func(run client.WorkflowRun, name string, rounds int) {
		t.Helper()
		var got Rounds[activities.RetentionSummary]
		require.NoError(t, run.Get(t.Context(), &got))
		require.Equal(t, rounds, got.Rounds)
		require.Len(t, got.Changes, rounds)
		r.op = lifecycle.Operation{WorkflowID: run.GetID(), RunID: run.GetRunID()}
		require.NoError(t, replayer(t, Registry()).ReplayWorkflowHistory(nil, r.keep(name)))
	}
	ends(start(), "delete", 2)

	run := start()
	harness.Eventually(t, "the round of the second run", func() bool { return tries.Load() == 4 })
	require.NoError(t, r.SDK().CancelWorkflow(t.Context(), run.GetID(), run.GetRunID()))
	ends(run, "delete-canceled", 0)
	close(canceled)
}
