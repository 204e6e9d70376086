package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func TestLedger(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	l := e.Ledger()
	n := e.inState(schema.NodeActive)
	f := e.claim(n.ID, schema.ActionProvision).Fence
	r := schema.Resource{ResourceID: schema.ResourceID(f.OperationID, "instance"), NodeID: n.ID, Kind: "instance", Provider: "manual"}
	planned := r
	planned.State = schema.ResourcePlanned
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
		require.NoError(t, e.Advance(ctx, f, schema.Advance{Phase: "adopt", Instance: schema.InstancePending}))
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-1"))
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-1"))
		requireKind(t, l.Created(ctx, f, r.ResourceID, "machine-2"), schema.KindInvalidRequest, "resource_mismatch")
		requireKind(t, l.Created(ctx, f, schema.NewID(), "machine-2"), schema.KindNotFound, "")
	})
	require.Equal(t, []string{"resources.planned succeeded", "instances.state_changed succeeded", "resources.created succeeded"}, rows)
	require.Equal(t, "machine-1", e.node(n.ID).Instance.ExternalID)
	stands, err := l.Plan(ctx, f, r)
	require.NoError(t, err)
	require.Equal(t, schema.ResourceCreated, stands.State, "planning again finds what was made")
	disk, err := l.Plan(ctx, f, schema.Resource{ResourceID: schema.ResourceID(f.OperationID, "disk"), Kind: "disk", Provider: "manual"})
	require.NoError(t, err)
	open, err := l.Open(ctx, n.ID)
	require.NoError(t, err)
	require.Equal(t, []schema.Resource{stands, disk}, open)

	require.NoError(t, e.Finish(ctx, f, schema.Finish{Status: schema.OperationCompleted, Node: schema.NodeRetired, Instance: schema.InstanceTerminated}))
	f = e.claim(n.ID, schema.ActionRemove).Fence
	rows = e.changes(n.ID, func() {
		require.NoError(t, l.Released(ctx, f, r.ResourceID))
		require.NoError(t, l.Released(ctx, f, r.ResourceID))
		requireKind(t, l.Created(ctx, f, r.ResourceID, "machine-1"), schema.KindInvalidRequest, "resource_mismatch")
	})
	require.Equal(t, []string{"resources.released succeeded"}, rows)
	open, err = l.Open(ctx, n.ID)
	require.NoError(t, err)
	require.Equal(t, []schema.Resource{disk}, open)
}

func TestAMachineMadeBeforeItsInstanceWasRecorded(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(schema.NodeActive)
	f := e.claim(n.ID, schema.ActionProvision).Fence
	r := schema.Resource{ResourceID: schema.ResourceID(f.OperationID, "instance"), Kind: "instance", Provider: "manual"}
	_, err := e.Ledger().Plan(ctx, f, r)
	require.NoError(t, err)
	require.NoError(t, e.Ledger().Created(ctx, f, r.ResourceID, "machine-1"))
	require.NoError(t, e.Advance(ctx, f, schema.Advance{Instance: schema.InstanceBootstrapping}))
	require.Equal(t, "machine-1", e.node(n.ID).Instance.ExternalID)

	require.NoError(t, e.Advance(ctx, f, schema.Advance{Instance: schema.InstanceTerminated}))
	require.NoError(t, e.Advance(ctx, f, schema.Advance{Instance: schema.InstanceTerminated}))
	require.NoError(t, e.Advance(ctx, f, schema.Advance{Instance: schema.InstancePending}))
	require.Equal(t, int64(2), e.number("SELECT count(*) FROM instances WHERE node_id = $1", n.ID), "a terminated instance stays terminated")
}
