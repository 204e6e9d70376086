package store_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// starts accepts operations once by ID, unless it fails.
type starts struct {
	mu   sync.Mutex
	fail error
	// calls are the IDs of all calls, accepted those that were accepted.
	calls    []string
	accepted map[string]lifecycle.OperationInput
}

func (s *starts) Submit(_ context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, in.OperationID)
	if s.fail != nil {
		return lifecycle.Operation{}, s.fail
	}
	s.accepted[in.OperationID] = in
	return lifecycle.Operation{OperationID: in.OperationID, Status: lifecycle.OperationAccepted}, nil
}

// decides runs a round of the activity.
func (e *env) decides(s *starts) (got activities.RepairSummary, err error) {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	rounds := &activities.RepairRounds{Decisions: e.Recovery, Starter: s, Decide: reboots(nil)}
	env.RegisterActivity(rounds)
	result, err := env.ExecuteActivity(rounds.DecideRepairs)
	if err == nil {
		err = result.Get(&got)
	}
	return got, err
}

// TestRoundStartsRepair: a round starts the operation once, and the next ones do not.
func TestRoundStartsRepair(t *testing.T) {
	e := setup(t)
	e.faulty()
	s := &starts{accepted: map[string]lifecycle.OperationInput{}}
	got, err := e.decides(s)
	require.NoError(t, err)
	require.Equal(t, s.calls, got.Started)
	require.Equal(t, activities.RepairSummary{Nodes: 1, Decisions: 1, Started: got.Started}, got)
	got, err = e.decides(s)
	require.NoError(t, err)
	require.Equal(t, activities.RepairSummary{Nodes: 1}, got)
	require.Len(t, s.calls, 1)
}

// TestStartAfterCrash: a worker that ended between the reservation and the start, or whose start was
// not answered, leaves a reservation. The next round starts the operation with the same ID.
func TestStartAfterCrash(t *testing.T) {
	e := setup(t)
	e.faulty()
	reserved := e.round(reboots(nil)).Starts[0].OperationID // the worker ends here
	s := &starts{accepted: map[string]lifecycle.OperationInput{}, fail: schema.NewError(schema.KindServiceUnavailable, "no answer").WithReason("response_lost")}
	_, err := e.decides(s)
	failure := activities.Typed(err)
	require.NotNil(t, failure)
	require.Equal(t, []string{"service_unavailable", "response_lost"}, []string{string(failure.Kind), failure.Reason})
	s.fail = nil
	_, err = e.decides(s)
	require.NoError(t, err)
	require.Equal(t, []string{reserved, reserved}, s.calls)
	require.EqualValues(t, 1, e.number("SELECT count(*) FROM budget_reservations WHERE started_at IS NOT NULL"))
}

// TestRejectedStart: a start that is rejected releases the budget, and the decision says why.
func TestRejectedStart(t *testing.T) {
	e := setup(t)
	e.faulty()
	s := &starts{fail: schema.NewError(schema.KindOperationInProgress, "a drain holds the node")}
	got, err := e.decides(s)
	require.NoError(t, err)
	require.Equal(t, s.calls, got.Refused)
	require.EqualValues(t, 0, e.number("SELECT count(*) FROM budget_reservations"))
	require.Equal(t, "held the start of the repair was rejected: a drain holds the node",
		e.text("SELECT d.brake || ' ' || d.why FROM recovery_decisions d JOIN recovery_states s USING (decision_id)"))
	_, err = e.decides(s)
	require.NoError(t, err)
	require.Len(t, s.calls, 1, "the node is left alone for a while")
}

// TestWorkersDecideAtOnce: of several workers, all may call for the same operation, and no two
// operations are started.
func TestWorkersDecideAtOnce(t *testing.T) {
	e := setup(t)
	for range 3 {
		e.faulty()
	}
	s := &starts{accepted: map[string]lifecycle.OperationInput{}}
	for _, err := range race(4, func(int) error { _, err := e.decides(s); return err }) {
		require.NoError(t, err)
	}
	require.Len(t, s.accepted, 3)
	nodes := map[string]bool{}
	for _, in := range s.accepted {
		nodes[in.NodeID] = true
	}
	require.Len(t, nodes, 3)
}
