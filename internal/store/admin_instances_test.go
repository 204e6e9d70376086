package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// instancesOf reads every page of a query and returns the IDs.
func (e *env) instancesOf(q adminapi.InstanceQuery) []string {
	e.t.Helper()
	ids := []string{}
	for q.Limit = 2; ; {
		views, next, err := e.Store.Machines.ListInstances(e.t.Context(), q)
		require.NoError(e.t, err)
		require.LessOrEqual(e.t, len(views), q.Limit)
		for _, v := range views {
			ids = append(ids, v.InstanceID)
		}
		if next == nil {
			return ids
		}
		q.After = next
	}
}

func (e *env) instance(id string) instance.View {
	e.t.Helper()
	v, err := e.Store.Machines.Instance(e.t.Context(), id)
	require.NoError(e.t, err)
	return v
}

// provisioned claims a provisioning of a node of libvirt and returns the claim.
func (e *env) provisioned(nodeID string) activities.Claim {
	e.t.Helper()
	r := request(nodeID, lifecycle.ActionProvision)
	r.Options.Machine = machines.Options{Region: "here", Type: "small", SSHKeys: []string{"ssh-ed25519 AAAA me"}}
	c, err := e.Claim(e.t.Context(), r)
	require.NoError(e.t, err)
	return c
}

// TestInstances: the list has the ended instances of a node as well as the live one, newest first,
// also after the node was removed, and only the live one has the node's operation.
func TestInstances(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "libvirt" })
	var ids []string
	for range 3 {
		c := e.provisioned(n.ID)
		ids = append([]string{c.Instance.InstanceID}, ids...)
		open := e.instance(c.Instance.InstanceID)
		require.Equal(t, c.Fence.OperationID, open.Operation.OperationID)
		require.Nil(t, open.EndedAt)
		require.NoError(t, e.Finish(ctx, c.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeRegistered, Instance: lifecycle.InstanceTerminated}))
	}
	live := e.provisioned(n.ID)
	manual := e.provisionedByHand()
	ended := ids
	ids = append([]string{manual.Instance.InstanceID, live.Instance.InstanceID}, ids...)

	for _, c := range []struct {
		q    adminapi.InstanceQuery
		want []string
	}{
		{adminapi.InstanceQuery{}, ids},
		{adminapi.InstanceQuery{NodeID: n.ID}, ids[1:]},
		{adminapi.InstanceQuery{States: []lifecycle.InstanceState{lifecycle.InstancePending}}, ids[:2]},
		{adminapi.InstanceQuery{States: []lifecycle.InstanceState{lifecycle.InstanceTerminated}, Providers: []string{"libvirt"}}, ended},
		{adminapi.InstanceQuery{Providers: []string{"manual", "maas"}}, ids[:1]},
		{adminapi.InstanceQuery{NodeID: schema.NewID()}, []string{}},
	} {
		require.Equal(t, c.want, e.instancesOf(c.q), "%+v", c.q)
	}

	v := e.instance(live.Instance.InstanceID)
	require.Equal(t, []any{n.ID, n.Host, "libvirt", lifecycle.InstancePending}, []any{v.NodeID, v.Host, v.Provider, v.State})
	require.Equal(t, machines.Options{Region: "here", Type: "small", SSHKeys: []string{"ssh-ed25519 AAAA me"}}, v.Options)
	require.False(t, v.StartedAt.IsZero())
	views, _, err := e.Store.Machines.ListInstances(ctx, adminapi.InstanceQuery{Page: all, NodeID: n.ID})
	require.NoError(t, err)
	require.Equal(t, v, views[0])

	e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", n.ID)
	e.exec("UPDATE instances SET ended_at = NULL WHERE instance_id = $1", ended[0])
	v = e.instance(ended[0])
	require.Nil(t, v.Operation, "the open operation is not about this machine")
	require.Equal(t, v.StateSince, *v.EndedAt, "a terminated instance ended when it entered the state")
	require.Equal(t, ids[1:], e.instancesOf(adminapi.InstanceQuery{NodeID: n.ID}))
}

// provisionedByHand claims a provisioning of an enrolled node of the provider manual.
func (e *env) provisionedByHand() activities.Claim {
	e.t.Helper()
	return e.claim(e.inState(lifecycle.NodeActive).ID, lifecycle.ActionProvision)
}

func TestInstanceRefusals(t *testing.T) {
	e := setup(t)
	for _, id := range []string{"", "7", schema.NewID()} {
		_, err := e.Store.Machines.Instance(t.Context(), id)
		requireKind(t, err, schema.KindNotFound, "")
		require.Equal(t, "gpuaas instance list", schema.AsError(err).Next)
	}
	for _, q := range []adminapi.InstanceQuery{{NodeID: "7"}, {Page: adminapi.Page{After: []string{"x", "y"}}}} {
		_, _, err := e.Store.Machines.ListInstances(t.Context(), q)
		require.Error(t, err)
	}
}
