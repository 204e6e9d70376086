package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// withNodes registers a node and copies it under other names with the changes of each.
func withNodes(e *env, changes map[string]string) {
	e.t.Helper()
	e.register()
	for host, change := range changes {
		e.exec(`INSERT INTO nodes SELECT (jsonb_populate_record(n, jsonb_build_object('node_id', gen_random_uuid(), 'host', $1::text, 'state', 'active',
			'last_heartbeat_at', now(), 'polled_incarnation', 1, 'state_since', now() - interval '1 day'))).* FROM nodes n ORDER BY created_at LIMIT 1`, host)
		e.exec(`UPDATE nodes SET `+change+` WHERE host = $1`, host)
	}
}

// stuckNodes returns the nodes that need attention, by host.
func (e *env) stuckNodes(q adminapi.OperationQuery) map[string]stuck.Node {
	e.t.Helper()
	nodes, more, err := e.ListStuckNodes(e.t.Context(), q)
	require.NoError(e.t, err)
	require.Zero(e.t, more)
	byHost := map[string]stuck.Node{}
	for _, n := range nodes {
		byHost[n.Host] = n
	}
	return byHost
}

func TestStuckNodes(t *testing.T) {
	e := setup(t)
	withNodes(e, map[string]string{
		"ok":            "cordoned = false",
		"silent":        "state = 'offline', last_heartbeat_at = now() - interval '7 minutes'",
		"silent-active": "last_heartbeat_at = now() - interval '6 minutes'",
		"drains-silent": "state = 'draining', state_since = now() - interval '10 minutes', last_heartbeat_at = now() - interval '8 minutes'",
		"held-silent":   "state = 'quarantined', last_heartbeat_at = now() - interval '9 minutes'",
		"retired":       "state = 'retired', last_heartbeat_at = now() - interval '9 days'",
		"drained":       "state = 'drained', last_heartbeat_at = now() - interval '9 days'",
		"locked":        "state = 'offline', last_heartbeat_at = now() - interval '9 days', identity_locked_at = now(), identity_lock_reason = 'operator'",
		"new":           "state = 'registered', last_heartbeat_at = NULL",
		"back":          "state_since = now() - interval '1 minute', last_heartbeat_at = now() - interval '9 days'",
		"drains":        "state = 'draining', state_since = now() - interval '31 minutes', workloads = '[{\"kind\":\"container\",\"name\":\"train-1\"}]'",
		"drains-short":  "state = 'draining', state_since = now() - interval '29 minutes'",
		"ending":        "state = 'terminating', state_since = now() - interval '6 minutes', last_heartbeat_at = NULL",
		"ending-short":  "state = 'terminating', state_since = now() - interval '4 minutes', last_heartbeat_at = NULL",
	})
	got := e.stuckNodes(adminapi.OperationQuery{})
	rows := map[string]string{}
	for host, n := range got {
		rows[host] = n.Row
	}
	require.Equal(t, map[string]string{"silent": stuck.RowSilent, "silent-active": stuck.RowSilent, "drains-silent": stuck.RowSilent,
		"held-silent": stuck.RowSilent, "drains": stuck.RowDraining, "ending": stuck.RowTerminating}, rows)

	s := got["silent"].Stuck
	require.Equal(t, stuck.ReasonNodeSilent, s.Reason)
	require.Equal(t, lifecycle.AttentionAgent, s.WaitingOn)
	require.Equal(t, "gpuaas doctor silent", s.Next)
	require.WithinDuration(t, time.Now().Add(-7*time.Minute), s.Since, time.Minute)
	require.Contains(t, s.Message, "has sent no heartbeat for 7m")
	require.Contains(t, s.Cause, "4 nodes of region", "silent together")

	d := got["drains"].Stuck
	require.Contains(t, d.Message, "the node has been draining for 31m; 1 workload left: container train-1")
	require.Contains(t, d.Cause, "although")
	require.Equal(t, "gpuaas op show drains", d.Next)

	require.Len(t, e.stuckNodes(adminapi.OperationQuery{Selector: adminapi.Selector{{Key: "host", Op: adminapi.OpIn, Values: []string{"drains*"}}}}), 2)

	counts, err := e.StuckNodeCounts(t.Context())
	require.NoError(t, err)
	require.Equal(t, []metrics.StuckNodeCount{{Row: "draining", Nodes: 1}, {Row: "silent", Nodes: 4}, {Row: "terminating", Nodes: 1}}, counts)
}

// TestDrainWithoutCapacity: if no other node of the SKU is free, the cause says so.
func TestDrainWithoutCapacity(t *testing.T) {
	e := setup(t)
	withNodes(e, map[string]string{"full": "workloads = '[{\"kind\":\"container\",\"name\":\"x\"}]'",
		"drains": "state = 'draining', state_since = now() - interval '40 minutes', workloads = '[{\"kind\":\"pod\",\"name\":\"train-1\"}]'"})
	require.Contains(t, e.stuckNodes(adminapi.OperationQuery{})["drains"].Stuck.Cause, "is free, so workloads that move have no capacity")
	e.exec("UPDATE nodes SET workloads = '[]' WHERE host = 'drains'")
	require.Equal(t, "the agent has not reported the end of the drain", e.stuckNodes(adminapi.OperationQuery{})["drains"].Stuck.Cause)
}

// TestSilenceNeedsTheNodeAPI: while the node API receives nothing, only nodes that were offline
// before are silent.
func TestSilenceNeedsTheNodeAPI(t *testing.T) {
	e := setup(t)
	withNodes(e, map[string]string{"a": "last_heartbeat_at = now() - interval '6 minutes'",
		"b": "state = 'offline', last_heartbeat_at = now() - interval '1 hour'"})
	e.exec("INSERT INTO node_api (receiving_since, seen_at) VALUES (now() - interval '1 minute', now())")
	require.NotContains(t, e.stuckNodes(adminapi.OperationQuery{}), "a")
	require.Contains(t, e.stuckNodes(adminapi.OperationQuery{}), "b")
	e.exec("UPDATE node_api SET receiving_since = now() - interval '1 hour'")
	require.Contains(t, e.stuckNodes(adminapi.OperationQuery{}), "a")
}

// TestSilentRack: nodes of one rack that are silent together have one cause.
func TestSilentRack(t *testing.T) {
	e := setup(t)
	change := `labels = '{"rack":"r7"}', state = 'offline', last_heartbeat_at = now() - interval '6 minutes'`
	withNodes(e, map[string]string{"r1": change, "r2": change, "r3": change})
	all := e.stuckNodes(adminapi.OperationQuery{})
	require.Contains(t, all["r1"].Stuck.Cause, "3 nodes of rack r7 are silent: their switch or their power")
	one := e.stuckNodes(adminapi.OperationQuery{NodeID: all["r1"].NodeID})
	require.Len(t, one, 1)
	require.Equal(t, all["r1"].Stuck.Cause, one["r1"].Stuck.Cause, "the cause does not depend on what was asked for")
}

// TestCertificateOverdue: a node that polls and does not renew is listed, with the time at which
// its certificate expires.
func TestCertificateOverdue(t *testing.T) {
	e := setup(t)
	withNodes(e, map[string]string{"late": "cordoned = false", "fresh": "cordoned = false"})
	for host, start := range map[string]string{"late": "60 hours", "fresh": "10 hours"} {
		e.exec(`INSERT INTO node_certificates (node_id, serial, incarnation, slot, subject, uri, issuer, fingerprint, spki, not_before, not_after, via, sequence)
			SELECT node_id, host, 1, 'current', 's', 'u', 'i', host, host, now() - $2::interval, now() - $2::interval + interval '72 hours', 'enroll', 1 FROM nodes WHERE host = $1`, host, start)
	}
	got := e.stuckNodes(adminapi.OperationQuery{})
	require.Len(t, got, 1)
	n := got["late"]
	require.Equal(t, stuck.RowCertificate, n.Row)
	require.Equal(t, "gpuaas doctor late", n.Stuck.Next)
	require.Contains(t, n.Stuck.Message, "the certificate should have been renewed 6h ago")
	e.exec("UPDATE nodes SET last_heartbeat_at = now() - interval '1 day', state = 'offline' WHERE host = 'late'")
	require.Equal(t, stuck.RowSilent, e.stuckNodes(adminapi.OperationQuery{})["late"].Row, "a silent node has one row")
}

// TestParkedSilence: a park that says the same is not repeated.
func TestParkedSilence(t *testing.T) {
	e := setup(t)
	withNodes(e, map[string]string{"parked": "state = 'draining', state_since = now() - interval '2 hours', last_heartbeat_at = now() - interval '1 hour'"})
	park := func(reason string) {
		e.exec(`INSERT INTO operations (operation_id, node_id, op_seq, action, status, stuck, actor, workflow_id, run_id, claim)
			SELECT gen_random_uuid(), node_id, 1, 'drain', 'parked', jsonb_build_object('reason', $1::text), 'ops', 'w', 'r', '{}' FROM nodes WHERE host = 'parked'`, reason)
	}
	park("agent_silent")
	require.Empty(t, e.stuckNodes(adminapi.OperationQuery{}))
	e.exec("DELETE FROM operations")
	park("drain_blocked")
	require.Equal(t, stuck.RowSilent, e.stuckNodes(adminapi.OperationQuery{})["parked"].Row)
	e.exec("UPDATE nodes SET last_heartbeat_at = now()")
	require.Empty(t, e.stuckNodes(adminapi.OperationQuery{}), "the drain is parked, which is listed")
}

// TestOnRecord separates operations on record from those that only Temporal has.
func TestOnRecord(t *testing.T) {
	e := setup(t)
	e.register()
	const known, unknown = "6d5c7f4e-0a1b-5c2d-9e3f-67707561617a", "6d5c7f4e-0a1b-5c2d-9e3f-67707561617b"
	e.exec(`INSERT INTO operations (operation_id, node_id, op_seq, action, status, actor, workflow_id, run_id, claim)
		SELECT $1::uuid, node_id, 1, 'drain', 'running', 'ops', 'w', 'r', '{}' FROM nodes LIMIT 1`, known)
	got, err := e.OnRecord(t.Context(), []string{unknown, known})
	require.NoError(t, err)
	require.Equal(t, []string{known}, got)
}

// nodeLabels sets a label of a node.
func nodeLabels(key, value string) wire.NodeChange {
	return wire.NodeChange{Labels: map[string]string{key: value}}
}
