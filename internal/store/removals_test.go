package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// A removal is signed for a removal that completed, and not for a state in the node's row.
func TestDueRemovals(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	due := func(left time.Duration) []trust.Removal {
		t.Helper()
		list, err := e.DueRemovals(ctx, time.Now().Add(left), 10)
		require.NoError(t, err)
		return list
	}
	caller, id, cert := e.enroll()
	set := func(state lifecycle.NodeState) {
		e.exec("UPDATE nodes SET state = $1 WHERE node_id = $2", state, caller.NodeID)
	}
	set(lifecycle.NodeRemoved)
	require.Empty(t, due(0), "a state without an operation")
	document, err := e.Removal(ctx, caller.NodeID)
	require.NoError(t, err)
	require.Nil(t, document)
	set(lifecycle.NodeActive)

	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Instance: lifecycle.InstanceRunning}))
	f = e.claim(caller.NodeID, lifecycle.ActionRetire).Fence
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired}))
	f = e.claim(caller.NodeID, lifecycle.ActionRemove).Fence
	set(lifecycle.NodeRemoved)
	require.Empty(t, due(0), "the removal has not completed")
	set(lifecycle.NodeRemoving)
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationFailed, Node: lifecycle.NodeRetired}))
	set(lifecycle.NodeRemoved)
	require.Empty(t, due(0), "the removal failed")
	set(lifecycle.NodeRetired)
	f = e.claim(caller.NodeID, lifecycle.ActionRemove).Fence
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRemoved,
		Instance: lifecycle.InstanceTerminated, DenyIdentity: true}))
	want := trust.Removal{NodeID: caller.NodeID, Incarnation: id.Incarnation, OperationID: f.OperationID}
	require.Equal(t, []trust.Removal{want}, due(0))

	signed := want
	signed.ExpiresAt = time.Now().Add(time.Hour)
	require.NoError(t, e.PutRemoval(ctx, signed, []byte("document")))
	require.Empty(t, due(0))
	document, err = e.Removal(ctx, caller.NodeID)
	require.NoError(t, err)
	require.Equal(t, "document", string(document))

	// A document that ends soon is signed again only for a node that asks.
	require.Empty(t, due(2*time.Hour))
	_, err = e.Authenticate(ctx, id, cert)
	require.Error(t, err)
	require.Equal(t, []trust.Removal{want}, due(2*time.Hour))

	// The row was restored, or the node enrolled again: the document is not sent.
	set(lifecycle.NodeActive)
	document, err = e.Removal(ctx, caller.NodeID)
	require.NoError(t, err)
	require.Nil(t, document)
	set(lifecycle.NodeRemoved)
	e.exec("UPDATE nodes SET incarnation = incarnation + 1 WHERE node_id = $1", caller.NodeID)
	document, err = e.Removal(ctx, caller.NodeID)
	require.NoError(t, err)
	require.Nil(t, document)
	require.NoError(t, e.PutRemoval(ctx, signed, []byte("stale")))
	require.Zero(t, e.number("SELECT count(*) FROM node_removals WHERE document = 'stale'"))
	e.exec("UPDATE node_certificates SET issued_at = now() + interval '1 second' WHERE node_id = $1", caller.NodeID)
	require.Empty(t, due(0), "an identity was issued after the removal")
	document, err = e.Removal(ctx, "x")
	require.NoError(t, err)
	require.Nil(t, document)
}

// Without the audit event of the operation nothing is signed: rows that were written by
// hand have none.
func TestForgedRemoval(t *testing.T) {
	e := setup(t)
	caller, _, _ := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	require.NoError(t, e.Finish(t.Context(), f, activities.Finish{Status: lifecycle.OperationCompleted, Instance: lifecycle.InstanceRunning}))
	e.exec("UPDATE operations SET action = 'remove' WHERE operation_id = $1", f.OperationID)
	e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", caller.NodeID)
	list, err := e.DueRemovals(t.Context(), time.Now(), 10)
	require.NoError(t, err)
	require.Empty(t, list)
}
