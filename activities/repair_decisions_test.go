package activities_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// startPort is a store with operations to start, and Temporal.
type startPort struct {
	starts           []lifecycle.OperationInput
	answers          map[string]error // of Submit, by operation ID
	started, refused []string
}

func (p *startPort) Round(context.Context, activities.DecideFunc) (activities.RepairRound, error) {
	return activities.RepairRound{Nodes: len(p.starts), Starts: p.starts}, nil
}

func (p *startPort) Started(_ context.Context, operationID string) error {
	p.started = append(p.started, operationID)
	return nil
}

func (p *startPort) Refused(_ context.Context, operationID, _ string) error {
	p.refused = append(p.refused, operationID)
	return nil
}

func (p *startPort) Submit(_ context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	return lifecycle.Operation{}, p.answers[in.OperationID]
}

// TestStartsOfARound: a start that was rejected releases its reservation. One without an answer keeps it, because it
// may have happened: the round starts the others, fails, and a later round tries it again.
func TestStartsOfARound(t *testing.T) {
	t.Parallel()
	p := &startPort{answers: map[string]error{
		"op-2": schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond").WithReason("temporal_unreachable").WithNext("gpuaas stuck"),
		"op-3": schema.NewError(schema.KindOperationInProgress, "a drain is in progress"),
	}}
	for _, id := range []string{"op-1", "op-2", "op-3", "op-4"} {
		p.starts = append(p.starts, lifecycle.OperationInput{OperationID: id, Host: "gpu-" + id})
	}
	env := new(testsuite.WorkflowTestSuite).NewTestActivityEnvironment()
	rounds := &activities.RepairRounds{Decisions: p, Starter: p}
	env.RegisterActivity(rounds)
	_, err := env.ExecuteActivity(rounds.DecideRepairs)
	e := activities.Typed(err)
	require.Equal(t, []any{schema.KindServiceUnavailable, "temporal_unreachable", "gpuaas stuck"}, []any{e.Kind, e.Reason, e.Next})
	require.Contains(t, e.Message, "the repair of node gpu-op-2: Temporal does not respond")
	require.Equal(t, []string{"op-1", "op-4"}, p.started)
	require.Equal(t, []string{"op-3"}, p.refused)

	p.answers["op-2"], p.started, p.refused = nil, nil, nil
	value, err := env.ExecuteActivity(rounds.DecideRepairs)
	require.NoError(t, err)
	var s activities.RepairSummary
	require.NoError(t, value.Get(&s))
	require.Equal(t, []string{"op-1", "op-2", "op-4"}, s.Started)
	require.Equal(t, []string{"op-3"}, s.Refused)
	require.Equal(t, 4, s.Nodes)
}
