package workflows

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// TestDecideRounds: a run has a round every lifecycle.RoundInterval, and its result has the rounds that
// changed something. A round that fails is followed by the next one.
func TestDecideRounds(t *testing.T) {
	t.Parallel()
	started := activities.RepairSummary{Nodes: 3, Decisions: 1, Started: []string{"op-1"}}
	env, rounds := scheduled(t, lifecycle.WorkflowDecide, "DecideRepairs", func(round int, _ string) (activities.RepairSummary, error) {
		switch round {
		case 1:
			return activities.RepairSummary{}, errRound
		case 2:
			return started, nil
		}
		return activities.RepairSummary{Nodes: 3, BreakerOpen: true}, nil
	})
	require.NoError(t, env.GetWorkflowError())
	var got Rounds[activities.RepairSummary]
	require.NoError(t, env.GetWorkflowResult(&got))
	require.Equal(t, Rounds[activities.RepairSummary]{Rounds: got.Rounds, Failed: 1, Failure: "the database is unavailable", Changes: []activities.RepairSummary{started}}, got)
	require.Len(t, rounds, got.Rounds)
	require.Greater(t, got.Rounds, 3)
}

// givenRounds is the port of a test whose rounds are given.
type givenRounds struct {
	rounds chan activities.RepairRound
}

func (d givenRounds) Round(context.Context, activities.DecideFunc) (activities.RepairRound, error) {
	select {
	case r := <-d.rounds:
		return r, nil
	default:
		return activities.RepairRound{}, nil
	}
}

func (givenRounds) Started(context.Context, string) error         { return nil }
func (givenRounds) Refused(context.Context, string, string) error { return nil }

// submitter keeps the operations that were started.
type submitter struct{ started chan string }

func (s submitter) Submit(_ context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	select {
	case s.started <- in.OperationID:
		return lifecycle.Operation{OperationID: in.OperationID}, nil
	default:
		return lifecycle.Operation{}, errors.New("an operation was started twice")
	}
}

// TestHistoriesOfDecide runs DecideRepairs on a real server: its first round starts a repair, and an
// operator cancels it in the wait for the next one. With -record it writes the replay fixture.
func TestHistoriesOfDecide(t *testing.T) {
	r, _ := onServer(t, newWorld(lifecycle.NodeActive))
	d, s := givenRounds{make(chan activities.RepairRound, 1)}, submitter{make(chan string, 1)}
	d.rounds <- activities.RepairRound{Nodes: 1, Starts: []lifecycle.OperationInput{{OperationID: "op-1", Host: "gpu-17"}}}
	w := r.world.worker(r.Client)
	w.RegisterActivityWithOptions((&activities.RepairRounds{Decisions: d, Starter: s}).DecideRepairs, activity.RegisterOptions{Name: "DecideRepairs"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	run, err := r.SDK().ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "fleet:decide", TaskQueue: lifecycle.TaskQueue,
		StaticSummary: "Decide about nodes with a fault"}, lifecycle.WorkflowDecide)
	require.NoError(t, err)
	harness.Eventually(t, "the timer of the second round", func() bool {
		events := r.SDK().GetWorkflowHistory(t.Context(), run.GetID(), run.GetRunID(), false, 0)
		for events.HasNext() {
			e, err := events.Next()
			require.NoError(t, err)
			if e.GetTimerStartedEventAttributes() != nil {
				return true
			}
		}
		return false
	})
	require.Equal(t, "op-1", <-s.started)
	require.NoError(t, r.SDK().CancelWorkflow(t.Context(), run.GetID(), run.GetRunID()))
	var got Rounds[activities.RepairSummary]
	require.NoError(t, run.Get(t.Context(), &got))
	require.Equal(t, []activities.RepairSummary{{Nodes: 1, Started: []string{"op-1"}}}, got.Changes)
	r.op = lifecycle.Operation{WorkflowID: run.GetID(), RunID: run.GetRunID()}
	require.NoError(t, replayer(t, Registry()).ReplayWorkflowHistory(nil, r.keep("decide")))
}
