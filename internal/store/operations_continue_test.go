package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
)

// TestContinue: a run that ended was reset, and waits without a write of its own. The
// operation has the park, the deadline and the phases again that it had before.
func TestContinue(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	r, c := e.opened(n.ID, lifecycle.ActionDrain, lifecycle.Options{})
	unchanged := func(operationID, runID string) {
		t.Helper()
		before := e.status(r.OperationID)
		require.NoError(t, e.Continue(ctx, operationID, runID))
		require.Equal(t, before, e.status(r.OperationID))
	}
	continued := func() {
		t.Helper()
		before, listed := e.document(r.OperationID), e.stuckList()
		require.NoError(t, e.Abandon(ctx, r.OperationID, r.RunID, lifecycle.RunTerminated))
		unchanged(r.OperationID, "another")
		require.NoError(t, e.Continue(ctx, r.OperationID, r.RunID))
		require.Equal(t, before, e.document(r.OperationID))
		require.Equal(t, listed, e.stuckList())
		unchanged(r.OperationID, r.RunID)
	}
	require.NotNil(t, e.status(r.OperationID).DeadlineAt)
	continued()

	doc := e.document(r.OperationID)
	doc.Operation.Status, doc.Operation.DeadlineAt = lifecycle.OperationParked, nil
	doc.Operation.Phases[0].State, doc.Operation.Phases[0].Reason = lifecycle.PhaseParked, "agent_silent"
	doc.Operation.Stuck = &lifecycle.Stuck{Phase: "cordon", Reason: "agent_silent", Since: time.Now().UTC(),
		Options: []lifecycle.Option{{Decision: lifecycle.DecisionRetry, Command: "gpuaas op retry"}}}
	require.NoError(t, e.Advance(ctx, c.Fence, activities.Advance{Stuck: doc.Operation.Stuck, Document: &doc}))
	require.Len(t, e.stuckList(), 1)
	continued()

	_, err := e.AcceptAbandoned(ctx, n.ID, "x", rehydrator)
	requireKind(t, err, schema.KindInvalidRequest, "not_abandoned")
	require.NoError(t, e.Finish(ctx, c.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeDrained}))
	unchanged(r.OperationID, r.RunID)
	requireKind(t, e.Continue(ctx, schema.NewID(), r.RunID), schema.KindNotFound, "")
}

// TestEnqueueAfterAbandon: an enqueue that waits for the transaction that abandons its
// operation stores nothing.
func TestEnqueueAfterAbandon(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	_, f := e.drain()
	s := spec(f, "drain", task.WorkloadDrain)
	row, err := e.Prepare(ctx, s, taskOwner(s.Step))
	require.NoError(t, err)
	abandons, err := e.raw.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = abandons.Rollback(ctx) }()
	_, err = abandons.Exec(ctx, "SELECT 1 FROM nodes WHERE node_id = $1 FOR NO KEY UPDATE", f.NodeID)
	require.NoError(t, err)
	_, err = abandons.Exec(ctx, "UPDATE operations SET status = 'abandoned', stuck = '{}' WHERE operation_id = $1", f.OperationID)
	require.NoError(t, err)
	stored := make(chan error, 1)
	go func() { stored <- e.Enqueue(ctx, s, taskOwner(s.Step), row, []byte(`{}`)) }()
	harness.Eventually(t, "the enqueue waits", func() bool {
		return e.number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
	})
	require.NoError(t, abandons.Commit(ctx))
	requireKind(t, <-stored, schema.KindServiceUnavailable, "operation_abandoned")
	require.Empty(t, e.tasks(f.NodeID, false))
}

// document returns the operation's status document as its readers get it.
func (e *env) document(operationID string) lifecycle.OperationStatus {
	e.t.Helper()
	st, err := e.Operation(e.t.Context(), operationID)
	require.NoError(e.t, err)
	return st
}
