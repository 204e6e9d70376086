package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestDrainAfterADeadDrain: the run of a drain ended without an outcome, and its node is
// still draining. Temporal admits one run per node, so the next drain's claim succeeds
// in the state before the dead one, which its own cancel restores.
func TestDrainAfterADeadDrain(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	dead := e.claim(n.ID, lifecycle.ActionDrain)
	left := e.dispatch(dead.Fence, "drain", task.WorkloadDrain)

	second, err := e.Claim(ctx, request(n.ID, lifecycle.ActionDrain))
	require.NoError(t, err)
	require.Equal(t, lifecycle.NodeActive, second.Prior)
	require.Equal(t, lifecycle.NodeDraining, second.State)
	requireKind(t, e.Advance(ctx, dead.Fence, activities.Advance{Phase: "drain"}), schema.KindFenced, "")
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM node_tasks WHERE task_id = $1 AND status = 'cancelled'", left.TaskID))
	require.NoError(t, e.Finish(ctx, second.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Node: second.Prior}))
	require.Equal(t, lifecycle.NodeActive, e.node(n.ID).State)
}
