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

// TestHistoriesOfExplain runs ExplainParks on a real server until an operator cancels it after its
// first round, which was tried twice. With -record it writes the replay fixture.
func TestHistoriesOfExplain(t *testing.T) {
	r, _ := onServer(t, newWorld(lifecycle.NodeActive))
	found := activities.ExplainSummary{Explained: 1, Causes: map[string]int{"node_silent": 1}}
	var tries atomic.Int64
	w := r.world.worker(r.Client)
	w.RegisterActivityWithOptions(func(context.Context) (activities.ExplainSummary, error) {
		if tries.Add(1) == 1 {
			return activities.ExplainSummary{}, errRound
		}
		return found, nil
	}, activity.RegisterOptions{Name: "ExplainParks"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	run, err := r.SDK().ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: "fleet:explain", TaskQueue: lifecycle.TaskQueue, StaticSummary: "Find why operations and nodes are stuck"}, lifecycle.WorkflowExplain)
	require.NoError(t, err)
	harness.Eventually(t, "the second try of the round", func() bool { return tries.Load() == 2 })
	require.NoError(t, r.SDK().CancelWorkflow(t.Context(), run.GetID(), run.GetRunID()))
	var got Rounds[activities.ExplainSummary]
	require.NoError(t, run.Get(t.Context(), &got))
	require.LessOrEqual(t, got.Rounds, 1, "the cancel may overtake the end of the round")
	r.op = lifecycle.Operation{WorkflowID: run.GetID(), RunID: run.GetRunID()}
	require.NoError(t, replayer(t, Registry()).ReplayWorkflowHistory(nil, r.keep("explain")))
}
