package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func TestLedger(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	l := e.Store.Operations
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionProvision).Fence
	r := activities.Resource{ResourceID: lifecycle.ResourceID(f.OperationID, "instance"), NodeID: n.ID, Kind: "instance", Provider: "manual"}
	planned := r
	planned.State = activities.ResourcePlanned
	rows := e.changes(n.ID, func() {
		for _, err := range race(10, func(int) error {
			stands, err := l.Plan(ctx, f, r)
			if err == nil {
				require.Equal(t, planned, stands)
			}
			return err
		}) {
			require.NoError(t, err)
		}
		require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "adopt", Instance: lifecycle.InstancePending}))
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-1"))
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-1"))
		requireKind(t, l.Created(ctx, f, r.ResourceID, "machine-2"), schema.KindInvalidRequest, "resource_mismatch")
		requireKind(t, l.Created(ctx, f, schema.NewID(), "machine-2"), schema.KindNotFound, "")
	})
	require.Equal(t, []string{"resources.planned succeeded", "instances.state_changed succeeded", "resources.created succeeded"}, rows)
	require.Equal(t, "machine-1", e.node(n.ID).Instance.ExternalID)
	stands, err := l.Plan(ctx, f, r)
	require.NoError(t, err)
	require.Equal(t, activities.ResourceCreated, stands.State, "planning again finds what was made")
	disk, err := l.Plan(ctx, f, activities.Resource{ResourceID: lifecycle.ResourceID(f.OperationID, "disk"), Kind: "disk", Provider: "manual"})
	require.NoError(t, err)
	open, err := l.Open(ctx, n.ID)
	require.NoError(t, err)
	require.Equal(t, []activities.Resource{stands, disk}, open)

	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired, Instance: lifecycle.InstanceTerminated}))
	f = e.claim(n.ID, lifecycle.ActionRemove).Fence
	rows = e.changes(n.ID, func() {
		require.NoError(t, l.Released(ctx, f, r.ResourceID))
		require.NoError(t, l.Released(ctx, f, r.ResourceID))
	})
	require.Equal(t, []string{"resources.released succeeded"}, rows)
	open, err = l.Open(ctx, n.ID)
	require.NoError(t, err)
	require.Equal(t, []activities.Resource{disk}, open)
	rows = e.changes(n.ID, func() {
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-2"))
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-2"))
	})
	require.Equal(t, []string{"resources.created succeeded"}, rows)
	open, err = l.Open(ctx, n.ID)
	require.NoError(t, err)
	r.State, r.ExternalID = activities.ResourceCreated, "machine-2"
	require.ElementsMatch(t, []activities.Resource{disk, r}, open, "a machine that appeared after the release is open again")
}

func TestInstanceTakesExternalIDOfLedger(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionProvision).Fence
	r := activities.Resource{ResourceID: lifecycle.ResourceID(f.OperationID, "instance"), Kind: "instance", Provider: "manual"}
	_, err := e.Store.Operations.Plan(ctx, f, r)
	require.NoError(t, err)
	require.NoError(t, e.Store.Operations.Created(ctx, f, r.ResourceID, "machine-1"))
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Instance: lifecycle.InstanceBootstrapping}))
	require.Equal(t, "machine-1", e.node(n.ID).Instance.ExternalID)

	require.NoError(t, e.Advance(ctx, f, activities.Advance{Instance: lifecycle.InstanceTerminated}))
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Instance: lifecycle.InstanceTerminated}))
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Instance: lifecycle.InstancePending}))
	require.Equal(t, int64(2), e.number("SELECT count(*) FROM instances WHERE node_id = $1", n.ID), "a terminated instance stays terminated")
}
