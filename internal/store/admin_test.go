package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// hostsOf reads every page of a query and returns the host names.
func (e *env) hostsOf(q adminapi.NodeQuery) []string {
	e.t.Helper()
	hosts := []string{}
	if q.Limit == 0 {
		q.Limit = 2
	}
	for {
		nodes, next, err := e.Admin.ListNodes(e.t.Context(), q)
		require.NoError(e.t, err)
		require.LessOrEqual(e.t, len(nodes), q.Limit)
		for _, n := range nodes {
			hosts = append(hosts, n.Host)
		}
		if next == nil {
			return hosts
		}
		q.After = next
	}
}

func TestAdminListNodes(t *testing.T) {
	e := setup(t)
	labels := []map[string]string{{"rack": "r1", "tier": "prod"}, {"rack": "r2"}, {"rack": "r1", "gone.example/x": ""}, nil, {"rack": "r3"}}
	var nodes []wire.NodeView
	for i, l := range labels {
		nodes = append(nodes, e.register(func(r *wire.RegisterNodeRequest) {
			r.Labels, r.RegionCode = l, fmt.Sprintf("region-%d", i%2)
		}))
	}
	e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", nodes[4].ID)
	all := []string{"gpu-1", "gpu-2", "gpu-3", "gpu-4"}
	assert.Equal(t, all, e.hostsOf(adminapi.NodeQuery{}))
	assert.Equal(t, append(all, "gpu-5"), e.hostsOf(adminapi.NodeQuery{Removed: true}))
	assert.Equal(t, []string{"gpu-5"}, e.hostsOf(adminapi.NodeQuery{States: []lifecycle.NodeState{lifecycle.NodeRemoved}}))
	assert.Equal(t, []string{"gpu-2", "gpu-4"}, e.hostsOf(adminapi.NodeQuery{Regions: []string{"region-1"}}))
	assert.Equal(t, all, e.hostsOf(adminapi.NodeQuery{SKUs: []string{"cpu-dev"}, Providers: []string{"manual"}, HostPrefix: "GPU-"}))
	assert.Empty(t, e.hostsOf(adminapi.NodeQuery{HostPrefix: "gpu_"}), "_ is no wildcard")
	assert.Equal(t, []string{"gpu-3"}, e.hostsOf(adminapi.NodeQuery{HostPattern: "*-3"}))
	assert.Empty(t, e.hostsOf(adminapi.NodeQuery{Issuers: []string{"CN=x"}}))
	for selector, want := range map[string][]string{
		"rack=r1": {"gpu-1", "gpu-3"}, "rack!=r1": {"gpu-2", "gpu-4"}, "rack": {"gpu-1", "gpu-2", "gpu-3"}, "!rack": {"gpu-4"},
		"rack in (r1, r2)": {"gpu-1", "gpu-2", "gpu-3"}, "rack notin (r1,r2)": {"gpu-4"}, "rack==r1,tier=prod": {"gpu-1"},
		"gone.example/x=": {"gpu-3"}, "region=region-1,rack": {"gpu-2"}, "host=gpu-?,host!=*-1": {"gpu-2", "gpu-3", "gpu-4"},
		"state in (active,registered),region!=region-1": {"gpu-1", "gpu-3"},
	} {
		s, err := adminapi.ParseSelector(selector)
		require.NoError(t, err, selector)
		assert.Equal(t, want, e.hostsOf(adminapi.NodeQuery{Selector: s}), selector)
	}
	views, _, err := e.Admin.ListNodes(t.Context(), adminapi.NodeQuery{Page: adminapi.Page{Limit: 1}, View: adminapi.ViewFull})
	require.NoError(t, err)
	full := e.node(nodes[0].ID)
	full.Labels = labels[0]
	assert.Equal(t, full, views[0])
	_, _, err = e.Admin.ListNodes(t.Context(), adminapi.NodeQuery{Page: adminapi.Page{Limit: 1, After: []string{"x", "y"}}})
	assert.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
}

func TestAdminSetNode(t *testing.T) {
	e := setup(t)
	n := e.register(func(r *wire.RegisterNodeRequest) {
		r.SKU, r.Labels = "h100", map[string]string{"rack": "r1", "old": "x"}
	})
	assert.Equal(t, 8, n.GPUsTotal, "the SKU's number")
	four := 4
	rows := e.changes(n.ID, func() {
		changed, err := e.Admin.SetNode(t.Context(), n.ID, wire.NodeChange{GPUsTotal: &four, Labels: map[string]string{"rack": "r2", "new": ""},
			RemoveLabels: []string{"old"}, Reason: "moved"}, audit.Subject{Actor: "alice", Via: "api"})
		require.NoError(t, err)
		assert.Equal(t, 4, changed.GPUsTotal)
		assert.Equal(t, map[string]string{"rack": "r2", "new": ""}, changed.Labels)
	})
	assert.Equal(t, []string{"nodes.set succeeded moved"}, rows)
	nine := 9
	_, err := e.Admin.SetNode(t.Context(), n.ID, wire.NodeChange{GPUsTotal: &nine}, operator)
	assert.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
	_, err = e.Admin.SetNode(t.Context(), schema.NewID(), wire.NodeChange{GPUsTotal: &four}, operator)
	assert.Equal(t, schema.KindNotFound, schema.KindOf(err))
	_, err = e.Admin.Node(t.Context(), "gpu-9")
	require.ErrorContains(t, err, `did you mean gpu-1?`)
}

// TestCorrectRegistration: SKU and region can be corrected until the node has enrolled.
func TestCorrectRegistration(t *testing.T) {
	e := setup(t)
	for _, state := range lifecycle.NodeStates() {
		n := e.inState(state)
		set := func(c wire.NodeChange) (wire.NodeView, error) {
			return e.Admin.SetNode(t.Context(), n.ID, c, operator)
		}
		if state.Enrolled() {
			for _, c := range []wire.NodeChange{{SKU: "h100"}, {RegionCode: "fra1"}} {
				_, err := set(c)
				requireKind(t, err, schema.KindInvalidRequest, "enrolled")
				require.ErrorContains(t, err, string(state))
				if state == lifecycle.NodeTerminating { // registered again after it
					require.Equal(t, "gpuaas op show "+n.Host+"; after the termination, repeat the change", schema.AsError(err).Next)
					continue
				}
				require.Contains(t, schema.AsError(err).Next, "register the host again")
				require.Equal(t, state == lifecycle.NodeDraining, strings.HasPrefix(schema.AsError(err).Next, "gpuaas op show "+n.Host), state)
				require.Equal(t, state != lifecycle.NodeRemoved, strings.Contains(schema.AsError(err).Next, "gpuaas node remove "+n.Host), state)
				require.Equal(t, !slices.Contains([]lifecycle.NodeState{lifecycle.NodeRetired, lifecycle.NodeRemoving, lifecycle.NodeRemoved}, state),
					strings.Contains(schema.AsError(err).Next, "gpuaas node retire "+n.Host), state)
			}
			continue
		}
		e.changes(n.ID, func() {
			changed, err := set(wire.NodeChange{SKU: "h100", RegionCode: "fra1", Reason: "typo"})
			require.NoError(t, err)
			require.Equal(t, "h100 8 fra1", fmt.Sprint(changed.SKU, " ", changed.GPUsTotal, " ", changed.RegionCode), "the GPUs are the new SKU's")
		})
		events := e.chain(n.ID)
		last := events[len(events)-1]
		require.Equal(t, map[string]string{"sku": "cpu-dev to h100", "gpus_total": "0 to 8", "region": "region-1 to fra1", "workload_driver": "unset to systemd"}, last.Detail)
		changed, err := set(wire.NodeChange{SKU: "a100", GPUsTotal: new(2)})
		require.NoError(t, err)
		require.Equal(t, "a100 2 fra1", fmt.Sprint(changed.SKU, " ", changed.GPUsTotal, " ", changed.RegionCode))
		changed, err = set(wire.NodeChange{SKU: "a100", RegionCode: "fra2"})
		require.NoError(t, err)
		require.Equal(t, "a100 2 fra2", fmt.Sprint(changed.SKU, " ", changed.GPUsTotal, " ", changed.RegionCode), "the same SKU keeps the GPUs")
		require.Equal(t, "systemd", changed.WorkloadDriver)
		changed, err = set(wire.NodeChange{UnsetWorkloadDriver: true})
		require.NoError(t, err)
		require.Empty(t, changed.WorkloadDriver)
		events = e.chain(n.ID)
		require.Equal(t, map[string]string{"workload_driver": "systemd to unset"}, events[len(events)-1].Detail)
		changed, err = set(wire.NodeChange{SKU: "h100", UnsetWorkloadDriver: true})
		require.NoError(t, err)
		require.Equal(t, "h100", changed.SKU+changed.WorkloadDriver, "the driver of the new SKU is unset as well")
		_, err = set(wire.NodeChange{SKU: "none"})
		requireKind(t, err, schema.KindInvalidRequest, "sku_unknown")
	}
	e.exec("UPDATE skus SET active = false WHERE name = 'h100'")
	_, err := e.Admin.SetNode(t.Context(), e.register().ID, wire.NodeChange{SKU: "h100"}, operator)
	requireKind(t, err, schema.KindInvalidRequest, "sku_inactive")
}

func TestAdminOperations(t *testing.T) {
	e := setup(t)
	ctx, admin := t.Context(), e.Admin
	var ids []string
	for range 3 {
		n := e.inState(lifecycle.NodeActive)
		c := e.claim(n.ID, lifecycle.ActionDrain)
		ids = append(ids, c.Fence.OperationID)
	}
	list := func(q adminapi.OperationQuery) []string {
		out := []string{}
		for q.Limit = 2; ; {
			ops, next, err := admin.ListOperations(ctx, q)
			require.NoError(t, err)
			for _, o := range ops {
				out = append(out, o.OperationID)
			}
			if q.After = next; next == nil {
				return out
			}
		}
	}
	newest := slices.Clone(ids)
	slices.Reverse(newest)
	assert.Equal(t, newest, list(adminapi.OperationQuery{}))
	assert.Equal(t, newest, list(adminapi.OperationQuery{Open: true, Actions: []lifecycle.Action{lifecycle.ActionDrain}, Selector: adminapi.Selector{{Key: "sku", Op: adminapi.OpIn, Values: []string{"cpu-dev"}}}}))
	holds := false
	assert.Empty(t, list(adminapi.OperationQuery{Holds: &holds}))
	assert.Empty(t, list(adminapi.OperationQuery{Since: time.Now().Add(time.Hour)}))

	e.exec(`UPDATE operations SET document = jsonb_build_object('operation', jsonb_build_object('operation_id', operation_id, 'status', 'running',
		'phases', jsonb_build_array(jsonb_build_object('name', 'cordon', 'state', 'completed')), 'deadline_at', now() - interval '1 hour')) WHERE operation_id = $1`, ids[0])
	e.exec(`UPDATE operations SET status = 'parked', phase = 'drain', stuck = '{"phase":"drain","waiting_on":"operator","reason":"drain_blocked","since":"2026-01-01T00:00:00Z"}' WHERE operation_id = $1`, ids[1])
	st, err := admin.Operation(ctx, ids[0])
	require.NoError(t, err)
	assert.Equal(t, "cordon", st.Operation.Phases[0].Name)
	assert.Equal(t, lifecycle.OperationAccepted, st.Operation.Status, "the row wins")
	assert.Equal(t, lifecycle.NodeDraining, st.Node.State)
	_, err = admin.Operation(ctx, schema.NewID())
	assert.Equal(t, schema.KindNotFound, schema.KindOf(err))

	stuck, next, err := admin.ListStuck(ctx, adminapi.OperationQuery{Page: adminapi.Page{Limit: 1}})
	require.NoError(t, err)
	require.Len(t, stuck, 1)
	assert.Equal(t, ids[1], stuck[0].OperationID, "oldest first")
	assert.Equal(t, "drain_blocked", stuck[0].Stuck.Reason)
	stuck, next, err = admin.ListStuck(ctx, adminapi.OperationQuery{Page: adminapi.Page{Limit: 5, After: next}})
	require.NoError(t, err)
	assert.Nil(t, next)
	require.Len(t, stuck, 1)
	assert.Equal(t, ids[0], stuck[0].OperationID)
	assert.Equal(t, "overdue", stuck[0].Stuck.Reason)
	assert.Equal(t, []string{ids[1]}, list(adminapi.OperationQuery{Reasons: []string{"drain_blocked"}, WaitingOn: []lifecycle.Attention{lifecycle.AttentionOperator}}))
}

func TestAdminTrail(t *testing.T) {
	e := setup(t)
	ctx, admin := t.Context(), e.Admin
	start := time.Now().Add(-time.Second)
	n := e.inState(lifecycle.NodeActive)
	e.claim(n.ID, lifecycle.ActionDrain)
	e.register()
	var all []string
	for q := (adminapi.AuditQuery{Page: adminapi.Page{Limit: 1}}); ; {
		events, next, err := admin.ListAudit(ctx, q)
		require.NoError(t, err)
		for _, v := range events {
			all = append(all, v.Action)
		}
		if q.After = next; next == nil {
			break
		}
	}
	assert.Equal(t, []string{"nodes.register", "nodes.drain", "nodes.register"}, all)
	events, _, err := admin.ListAudit(ctx, adminapi.AuditQuery{Page: adminapi.Page{Limit: 9}, Stream: n.ID, Actions: []string{"nodes.drain"},
		Actors: []string{"alice@ops"}, Results: []string{"accepted"}, Since: start})
	require.NoError(t, err)
	assert.Len(t, events, 1)

	one := adminapi.Selector{{Key: "host", Op: adminapi.OpIn, Values: []string{n.Host}}}
	events, _, err = admin.ListAudit(ctx, adminapi.AuditQuery{Page: adminapi.Page{Limit: 9}, Selector: one})
	require.NoError(t, err)
	assert.Len(t, events, 2, "those of the node only")
	assert.Equal(t, n.Host, events[0].Host)
	changes, err := admin.Changes(ctx, adminapi.Position{}, 100)
	require.NoError(t, err)
	require.Len(t, changes, 4)
	assert.True(t, slices.IsSortedFunc(changes, func(a, b adminapi.Change) int { return a.At.Compare(b.At) }))
	var paged []adminapi.Change
	for after := (adminapi.Position{At: changes[0].At}); ; after = paged[len(paged)-1].Position {
		page, err := admin.Changes(ctx, after, 1)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		paged = append(paged, page...)
	}
	assert.Equal(t, changes, paged, "each change is on one page")

	tasks, _, err := e.Tasks.ListTasks(ctx, adminapi.TaskQuery{Page: adminapi.Page{Limit: 5}, NodeID: n.ID, Statuses: []task.Status{task.Lost}})
	require.NoError(t, err)
	assert.Empty(t, tasks)
}
