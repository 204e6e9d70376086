package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestRegister(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	r := wire.RegisterNodeRequest{Host: "gpu-17", Port: 2222, SSHUsername: "hpcadmin", SSHPublicKey: "ssh-ed25519 AAAA",
		SKU: "h100", GPUsTotal: 8, RegionCode: "region-1", OnboardingMode: "libvirt", LifecycleClass: inventory.ClassSpot}
	n, err := e.Register(ctx, schema.NewID(), r, operator)
	require.NoError(t, err)
	require.Equal(t, wire.NodeView{ID: n.ID, Host: "gpu-17", Port: 2222, SSHUsername: "hpcadmin", SSHPublicKey: "ssh-ed25519 AAAA",
		SKU: "h100", GPUsTotal: 8, RegionCode: "region-1", OnboardingMode: "libvirt", LifecycleClass: inventory.ClassSpot,
		WorkloadDriver: "systemd", State: lifecycle.NodeRegistered, StateSince: n.StateSince, Incarnation: 1, Workloads: []task.Workload{}, CreatedAt: n.CreatedAt}, n)
	require.Equal(t, time.UTC, n.CreatedAt.Location())
	require.Equal(t, "alice@ops", e.chain(n.ID)[0].Actor)

	plain := e.register()
	require.Equal(t, 22, plain.Port)
	require.Equal(t, "manual", plain.OnboardingMode)
	require.Equal(t, inventory.ClassPersistent, plain.LifecycleClass)

	e.exec("UPDATE skus SET active = false WHERE name = 'a100'")
	for reason, change := range map[string]func(*wire.RegisterNodeRequest){
		"sku_unknown":  func(r *wire.RegisterNodeRequest) { r.SKU = "b200" },
		"sku_inactive": func(r *wire.RegisterNodeRequest) { r.SKU = "a100" },
		"no_adapter":   func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "maas" },
		"sku_mismatch": func(r *wire.RegisterNodeRequest) { r.GPUsTotal = 9 },
		"host_taken":   func(r *wire.RegisterNodeRequest) { r.Host = "GPU-17" },
	} {
		bad := r
		bad.Host = "gpu-18"
		change(&bad)
		_, err := e.Register(ctx, schema.NewID(), bad, operator)
		requireKind(t, err, schema.KindInvalidRequest, reason)
		require.Contains(t, e.audit(audit.SystemStream), "nodes.register refused "+reason)
	}
	bad := r
	bad.Host, bad.Port = "gpu-19", 70000
	_, err = e.Register(ctx, schema.NewID(), bad, operator)
	requireKind(t, err, schema.KindInvalidRequest, "nodes_port_check")
	require.Len(t, e.nodes(), 2)
}

func TestOneOfManyRegistrationsOfAHostWins(t *testing.T) {
	e := setup(t)
	won := 0
	for _, err := range race(20, func(int) error {
		_, err := e.Register(t.Context(), schema.NewID(), wire.RegisterNodeRequest{Host: "gpu-1", SKU: "cpu-dev", RegionCode: "r"}, operator)
		return err
	}) {
		if err == nil {
			won++
			continue
		}
		requireKind(t, err, schema.KindInvalidRequest, "host_taken")
	}
	require.Equal(t, 1, won)
}

func TestFindingNodes(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	b := e.register(func(r *wire.RegisterNodeRequest) { r.Host = "b" })
	a := e.register(func(r *wire.RegisterNodeRequest) { r.Host = "a" })
	require.Equal(t, a, e.node(a.ID))
	require.Equal(t, b, e.node("B"))
	require.Equal(t, []wire.NodeView{a, b}, e.nodes())
	for _, missing := range []string{schema.NewID(), "c", "", "x\x00"} {
		_, err := e.Node(ctx, missing)
		requireKind(t, err, schema.KindNotFound, "")
	}
	_, _, err := e.ListOperations(ctx, adminapi.OperationQuery{NodeID: "nonsense"})
	requireKind(t, err, schema.KindNotFound, "")
	ops := e.operations("", false)
	require.Empty(t, ops)
}

func TestHeartbeats(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	report := wire.Heartbeat{AgentVersion: "v1", UptimeSeconds: 77, BootID: "boot-1", Cordoned: true, Phase: "ready",
		Workloads: []task.Workload{{Name: "a", Kind: "process", Since: time.Now().UTC().Truncate(time.Second)}}, At: time.Now()}
	rows := e.changes(caller.NodeID, func() { require.NoError(t, e.heartbeat(caller, report)) })
	require.Empty(t, rows)
	n := e.node(caller.NodeID)
	require.Equal(t, report.Workloads, n.Workloads)
	require.Equal(t, "v1 boot-1 77", n.AgentVersion+" "+n.BootID+" 77")
	require.True(t, n.Cordoned)
	age, err := e.HeartbeatAge(ctx, caller.NodeID)
	require.NoError(t, err)
	require.Less(t, age.Abs(), time.Minute)
	e.exec("UPDATE nodes SET last_heartbeat_at = now() - interval '2 minutes'")
	age, err = e.HeartbeatAge(ctx, caller.NodeID)
	require.NoError(t, err)
	require.InDelta(t, 120, age.Seconds(), 60, "by the database's clock")

	e.exec("UPDATE nodes SET state_since = now() - interval '10 minutes'")
	silent, err := e.MarkSilent(ctx)
	require.NoError(t, err)
	require.Empty(t, silent)
	e.exec("UPDATE nodes SET last_heartbeat_at = now() - interval '6 minutes'")
	rows = e.changes(caller.NodeID, func() {
		lost := make([][]string, 10)
		for _, err := range race(len(lost), func(i int) (err error) { lost[i], err = e.MarkSilent(ctx); return err }) {
			require.NoError(t, err)
		}
		require.Equal(t, []string{caller.NodeID}, slices.Concat(lost...), "one of them moves the node")
	})
	require.Equal(t, []string{"nodes.heartbeat-lost succeeded"}, rows)
	require.Equal(t, lifecycle.NodeOffline, e.node(caller.NodeID).State)

	rows = e.changes(caller.NodeID, func() {
		for _, err := range race(10, func(int) error { return e.heartbeat(caller, report) }) {
			require.NoError(t, err)
		}
	})
	require.Equal(t, []string{"nodes.heartbeat-back succeeded"}, rows)
	require.Equal(t, lifecycle.NodeActive, e.node(caller.NodeID).State)

	e.exec("UPDATE nodes SET last_heartbeat_at = now() - interval '6 minutes'")
	silent, err = e.MarkSilent(ctx)
	require.NoError(t, err)
	require.Empty(t, silent, "a node that has just become active is not silent yet")
	for _, s := range lifecycle.NodeStates() {
		if s == lifecycle.NodeActive || s == lifecycle.NodeOffline {
			continue
		}
		e.exec("UPDATE nodes SET state = $2, state_since = 'epoch' WHERE node_id = $1", caller.NodeID, s)
		if err := e.heartbeat(caller, report); s.Refusing() {
			requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
		} else {
			require.NoError(t, err)
		}
		e.exec("UPDATE nodes SET last_heartbeat_at = 'epoch'")
		silent, err := e.MarkSilent(ctx)
		require.NoError(t, err)
		require.Empty(t, silent)
		require.Equal(t, s, e.node(caller.NodeID).State)
	}
}

func TestNodeCounts(t *testing.T) {
	e := setup(t)
	old := e.inState(lifecycle.NodeDraining)
	e.inState(lifecycle.NodeDraining)
	e.inState(lifecycle.NodeRetired)
	e.exec("UPDATE nodes SET state_since = now() - interval '1 hour' WHERE node_id = $1", old.ID)
	counts, err := e.NodeCounts(t.Context())
	require.NoError(t, err)
	require.Len(t, counts, 2)
	require.Equal(t, metrics.NodeCount{State: lifecycle.NodeDraining, SKU: "cpu-dev", Region: "region-1", Nodes: 2,
		OldestSeconds: counts[0].OldestSeconds}, counts[0])
	require.InDelta(t, time.Hour.Seconds(), counts[0].OldestSeconds, 60)
	require.Equal(t, int64(1), counts[1].Nodes)

	e.exec("UPDATE nodes SET gpus_total = CASE WHEN node_id = $1 THEN 4 ELSE 8 END WHERE state = 'draining'", old.ID)
	counts, err = e.NodeCounts(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(12), counts[0].GPUs, "the sum of the nodes of a series")
	require.Zero(t, counts[1].GPUs)
}

// A node counts under the version of its last heartbeat, and not before its first one or once it is removed.
func TestAgentCounts(t *testing.T) {
	e := setup(t)
	e.inState(lifecycle.NodeRegistered)
	for _, version := range []string{"v2", "v1", "v2", "v3"} {
		c, _, _ := e.enroll()
		require.NoError(t, e.Heartbeat(t.Context(), c, wire.Heartbeat{AgentVersion: version, At: time.Now()}))
	}
	e.exec("UPDATE nodes SET state = 'removed' WHERE agent_version = 'v3'")
	counts, err := e.AgentCounts(t.Context())
	require.NoError(t, err)
	require.Equal(t, []metrics.AgentCount{{Version: "v2", Nodes: 2}, {Version: "v1", Nodes: 1}}, counts)
}
