package store

import (
	"context"
	"maps"
	"slices"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// An instance that was terminated before ended_at existed ended when it entered its state.
const (
	instanceColumns = `i.instance_id, i.node_id, n.host, i.provider, i.external_id, i.state, i.state_since, i.region,
		i.machine_type AS type, i.image, i.spot, i.ssh_keys, i.created_at AS started_at,
		coalesce(i.ended_at, CASE WHEN i.state = 'terminated' THEN i.state_since END) AS ended_at`
	fromInstances  = " FROM instances i JOIN nodes n USING (node_id)"
	selectInstance = "SELECT " + instanceColumns + ", a.artifacts, a.reported_at AS artifacts_at" + fromInstances +
		" LEFT JOIN node_artifacts a ON a.node_id = i.node_id AND a.incarnation = n.incarnation AND a.reported_at >= i.created_at AND i.state <> 'terminated'" +
		" WHERE i.instance_id = $1"
	instanceOrder = "i.created_at DESC, i.instance_id DESC"
)

// ListInstances implements adminapi.Machines.
func (s *Machines) ListInstances(ctx context.Context, q adminapi.InstanceQuery) (views []instance.View, next []string, err error) {
	views, next, err = page(ctx, s.db, listQuery{"listing instances", "SELECT " + instanceColumns + fromInstances, instanceOrder, q.Limit},
		instanceFilter(q), func(v instance.View) []string { return timeKey(v.StartedAt, v.InstanceID) })
	if err != nil {
		return nil, nil, err
	}
	return views, next, s.addOperations(ctx, views)
}

func instanceFilter(q adminapi.InstanceQuery) *filter {
	f := &filter{}
	f.id("i.node_id", q.NodeID, errNoNode)
	anyOf(f, "i.state", q.States)
	anyOf(f, "i.provider", q.Providers)
	f.afterTime("i.created_at, i.instance_id", "<", q.After)
	return f
}

// Instance implements adminapi.Machines.
func (s *Machines) Instance(ctx context.Context, instanceID string) (instance.View, error) {
	missing := schema.NewError(schema.KindNotFound, "no instance %q", instanceID).WithNext("gpuaas instance list")
	if !schema.IsID(instanceID) {
		return instance.View{}, missing
	}
	views, err := query(ctx, s.db, "reading instance "+instanceID, func(ctx context.Context) ([]instance.View, error) {
		return list[instance.View](ctx, s.db, selectInstance, instanceID)
	})
	switch {
	case err != nil:
		return instance.View{}, err
	case len(views) == 0:
		return instance.View{}, missing
	}
	err = s.addOperations(ctx, views)
	return views[0], err
}

// addOperations adds the open operation of its node to each instance that is not terminated. A
// node has at most one such instance.
func (s *Machines) addOperations(ctx context.Context, views []instance.View) error {
	live := map[string]*instance.View{} // by node
	for i := range views {
		if views[i].State.Live() {
			live[views[i].NodeID] = &views[i]
		}
	}
	if len(live) == 0 {
		return nil
	}
	ops, err := query(ctx, s.db, "reading the operations of instances", func(ctx context.Context) ([]wire.OperationSummary, error) {
		return list[wire.OperationSummary](ctx, s.db, openOperations, slices.Collect(maps.Keys(live)))
	})
	for i := range ops {
		if v := live[ops[i].NodeID]; v.Operation == nil { // the one that holds the node is first
			v.Operation = &ops[i]
		}
	}
	return err
}
