package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestUptimeOfNode: a node that reports any uptime that the wire accepts does not stop the decisions
// about the others.
func TestUptimeOfNode(t *testing.T) {
	e := setup(t)
	for _, uptime := range []int64{0, 1 << 33, 1 << 45, wire.MaxInteger} {
		n := e.faulty()
		require.NoError(t, e.Inventory.Heartbeat(t.Context(), nodeapi.Caller{NodeID: n.ID, Incarnation: 1}, wire.Heartbeat{UptimeSeconds: uptime, BootID: "b1"}))
	}
	var f recovery.Fleet
	e.round(reboots(&f))
	require.Len(t, f.Nodes, 4)
}

// TestRungThatNeverBegan: the reserved rung of an operation that never claimed its node, or ended before the rung,
// was not tried. One that began and has no outcome may have been done.
func TestRungThatNeverBegan(t *testing.T) {
	e := setup(t)
	e.faulty()
	var f recovery.Fleet
	ended := func(in lifecycle.OperationInput, outcome string) {
		t.Helper()
		e.round(reboots(&f))
		for _, a := range f.Nodes[0].Attempts {
			if a.OperationID == in.OperationID {
				require.Equal(t, outcome, a.Outcome)
				return
			}
		}
		require.Fail(t, "the attempt is gone")
	}
	lost := e.round(reboots(nil)).Starts[0]
	e.exec("UPDATE budget_reservations SET reserved_at = now() - interval '1 hour'")
	e.exec("UPDATE recovery_attempts SET started_at = now() - interval '1 hour'")
	ended(lost, recovery.OutcomeNotBegun)

	for _, boot := range []string{"", "b1"} {
		in := e.round(reboots(nil)).Starts[0]
		c := e.claims(in)
		want := recovery.OutcomeNotBegun
		if boot != "" {
			a := recovery.Attempt{OperationID: in.OperationID, NodeID: in.NodeID, SKU: "cpu-dev", Rung: recovery.RungReboot, StartedAt: time.Now(), BootBefore: boot}
			_, err := e.Store.Repairs.RecordAttempt(t.Context(), c.Fence, a)
			require.NoError(t, err)
			want = recovery.OutcomeUnknown
		}
		require.NoError(t, e.Finish(t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeActive}))
		ended(in, want)
	}
}

// TestDisarmed: a policy that is no longer armed starts no repair that was reserved before, whether the operation
// is already started or not.
func TestDisarmed(t *testing.T) {
	e := setup(t)
	e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	e.exec(`INSERT INTO recovery_policies (version, body, digest, actor, reason) VALUES (2, '{"mode": "monitor"}', 'd', 'a', 'r')`)
	_, err := e.Claim(t.Context(), claimOf(in))
	requireKind(t, err, schema.KindInvalidRequest, "repair_withdrawn")

	monitor := func(p record.Policy, f recovery.Fleet) (recovery.Result, recovery.Mode, error) {
		v, _, err := reboots(nil)(p, f)
		return v, recovery.ModeMonitor, err
	}
	require.Empty(t, e.round(monitor).Starts)
	require.EqualValues(t, 0, e.number("SELECT count(*) FROM budget_reservations"))
	require.EqualValues(t, 0, e.number("SELECT count(*) FROM recovery_attempts"))
	e.exec("DELETE FROM recovery_policies WHERE version = 2")
	_, err = e.Claim(t.Context(), claimOf(in))
	requireKind(t, err, schema.KindInvalidRequest, "repair_withdrawn")
}

// TestHeldSinceDecision: a repair that health recovery decided does not take a node that an operator took meanwhile.
// One that has claimed its node is repeated.
func TestHeldSinceDecision(t *testing.T) {
	e := setup(t)
	for _, change := range []string{"cordoned = true", "state = 'quarantined'", "identity_locked_at = now(), identity_lock_reason = 'clone'"} {
		n := e.faulty()
		starts := e.round(reboots(nil)).Starts
		in := starts[slices.IndexFunc(starts, func(s lifecycle.OperationInput) bool { return s.NodeID == n.ID })]
		e.exec("UPDATE nodes SET "+change+" WHERE node_id = $1", n.ID)
		_, err := e.Claim(t.Context(), claimOf(in))
		requireKind(t, err, schema.KindInvalidRequest, "")
	}
	e.faulty()
	in := e.round(reboots(nil)).Starts
	last := claimOf(in[len(in)-1])
	first, err := e.Claim(t.Context(), last)
	require.NoError(t, err)
	again, err := e.Claim(t.Context(), last)
	require.NoError(t, err)
	require.Equal(t, first, again)
}

// claimOf is the claim of a repair that a round starts.
func claimOf(in lifecycle.OperationInput) activities.ClaimRequest {
	r := request(in.NodeID, in.Action)
	r.OperationInput = in
	return r
}

// TestDeafNodeAPI: while the node API receives no heartbeats, their age says nothing about a node.
func TestDeafNodeAPI(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	e.exec("UPDATE nodes SET last_heartbeat_at = now() - interval '1 hour' WHERE node_id = $1", n.ID)
	require.NoError(t, e.Inventory.RecordReceiving(t.Context(), schema.NewID(), ""))
	boot, err := e.Store.Repairs.Boot(t.Context(), n.ID)
	require.NoError(t, err)
	require.True(t, boot.Deaf, "it receives since a moment ago")
	_, err = e.HeartbeatAge(t.Context(), n.ID)
	requireKind(t, err, schema.KindServiceUnavailable, "node_api_down")

	e.exec("UPDATE node_api SET receiving_since = now() - interval '1 hour'")
	boot, err = e.Store.Repairs.Boot(t.Context(), n.ID)
	require.NoError(t, err)
	require.False(t, boot.Deaf)
	age, err := e.HeartbeatAge(t.Context(), n.ID)
	require.NoError(t, err)
	require.Greater(t, age, 50*time.Minute)
}

// TestConditionsOfDump: a condition that was reported before the database was restored is unknown until its
// reporter reports again: no repair starts for it.
func TestConditionsOfDump(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	e.startRestoreMode()
	_, err := e.owner().Stop(t.Context(), operator)
	require.NoError(t, err)
	require.Empty(t, e.round(reboots(nil)).Starts)
	conditions, err := e.Store.Repairs.Conditions(t.Context(), n.ID)
	require.NoError(t, err)
	require.Equal(t, health.Unknown, conditions[0].Status)

	e.exec("UPDATE health_reports SET reported_at = now()")
	var f recovery.Fleet
	require.Len(t, e.round(reboots(&f)).Starts, 1)
	require.Equal(t, health.Unhealthy, f.Nodes[0].Conditions[0].Status)
	conditions, err = e.Store.Repairs.Conditions(t.Context(), n.ID)
	require.NoError(t, err)
	require.Equal(t, health.Unhealthy, conditions[0].Status)
}

// TestReporterThatLeft: the conditions of a cluster agent that has not reported for a day do not count, so that a
// node whose cluster agent was removed does not stay unhealthy. Those of the node's own agent stay unknown.
func TestReporterThatLeft(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	e.exec(`INSERT INTO health_reports (node_id, source, incarnation, boot_id, at, reported_at, digest) VALUES ($1, 'cluster-agent', 1, 'b1', now(), now(), '')`, n.ID)
	e.exec("INSERT INTO conditions SELECT node_id, 'cluster-agent', 'cluster_node', '', status, reason, code, repair, detail, since, samples, fault_since, fault_samples, unknown_seconds FROM conditions")
	conditions := func(age string) (found []string) {
		e.exec("UPDATE health_reports SET reported_at = now() - $1::interval", age)
		var f recovery.Fleet
		e.round(reboots(&f))
		for _, c := range f.Nodes[0].Conditions {
			found = append(found, c.Checker+" "+string(c.Status))
		}
		return found
	}
	require.Equal(t, []string{"gpu_xid unhealthy", "cluster_node unhealthy"}, conditions("1 minute"))
	require.Equal(t, []string{"gpu_xid unknown", "cluster_node unknown"}, conditions("23 hours"))
	require.Equal(t, []string{"gpu_xid unknown"}, conditions("25 hours"))
}

// TestContinuedRepair: a repair that was abandoned and continues after a reset of its run uses the budgets again.
func TestContinuedRepair(t *testing.T) {
	e := setup(t)
	e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	r := claimOf(in)
	_, err := e.Claim(t.Context(), r)
	require.NoError(t, err)
	var f recovery.Fleet
	for _, abandoned := range []bool{true, false} {
		used := 1
		if abandoned {
			used = 0
			require.NoError(t, e.Abandon(t.Context(), r.OperationID, r.RunID, lifecycle.RunTerminated))
		} else {
			require.NoError(t, e.Continue(t.Context(), r.OperationID, r.RunID))
		}
		require.Empty(t, e.round(reboots(&f)).Starts)
		require.Equal(t, used, busy(f)[recovery.ScopeFleet])
	}
	_, err = e.AcceptAbandoned(t.Context(), in.NodeID, "x", rehydrator)
	requireKind(t, err, schema.KindInvalidRequest, "not_abandoned")
}

// TestAbandonedProbe: the breaker does not wait for a repair that was abandoned. It stays open, and the time until
// the next repair starts again.
func TestAbandonedProbe(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	r := claimOf(e.round(reboots(nil)).Starts[0])
	c, err := e.Claim(t.Context(), r)
	require.NoError(t, err)
	a := recovery.Attempt{OperationID: r.OperationID, NodeID: n.ID, SKU: "cpu-dev", Rung: recovery.RungReboot, StartedAt: time.Now(), BootBefore: "b1"}
	_, err = e.Store.Repairs.RecordAttempt(t.Context(), c.Fence, a)
	require.NoError(t, err)
	probing := recovery.BreakerState{OpenSince: time.Now().Add(-time.Hour), Probing: n.ID, ProbingSince: time.Now().Add(-time.Minute)}
	breaker := func() recovery.BreakerState {
		t.Helper()
		return e.round(func(p record.Policy, f recovery.Fleet) (recovery.Result, recovery.Mode, error) {
			f.Breaker = probing
			return recovery.Decide(recovery.Default(), f), recovery.ModeArmed, nil
		}).Breaker
	}
	require.Equal(t, n.ID, breaker().Probing, "the repair runs")
	require.NoError(t, e.Abandon(t.Context(), r.OperationID, r.RunID, lifecycle.RunTerminated))
	b := breaker()
	require.Empty(t, b.Probing)
	require.WithinDuration(t, time.Now(), b.OpenSince, time.Minute)
	var f recovery.Fleet
	require.Empty(t, e.round(reboots(&f)).Starts)
	require.Equal(t, "an abandoned operation (recover) holds the node: gpuaas node rehydrate "+n.Host, f.Nodes[0].Held)
}

// TestChangingReasons: a node whose report has another reason each time does not fill the tables: a decision
// that only names another fault is stored once in a while. Its sentence is always that of the last round.
func TestChangingReasons(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	e.exec("UPDATE nodes SET cordoned = true WHERE node_id = $1", n.ID)
	changing := func(reason string) int {
		t.Helper()
		return len(e.round(func(p record.Policy, f recovery.Fleet) (recovery.Result, recovery.Mode, error) {
			v, m, err := reboots(nil)(p, f)
			v.Decisions[0].Fault.Reason, v.Decisions[0].Why = reason, reason+" is held"
			return v, m, err
		}).Decisions)
	}
	require.Equal(t, 1, changing("R0"))
	for _, reason := range []string{"R1", "R2", "R3"} {
		require.Zero(t, changing(reason))
		st, err := e.Recovery.RecoveryStatus(t.Context())
		require.NoError(t, err)
		require.Equal(t, reason+" is held", st.Nodes[0].Why)
	}
	e.exec("UPDATE recovery_decisions SET decided_at = now() - interval '6 minutes'")
	require.Equal(t, 1, changing("R4"))
	e.exec("UPDATE nodes SET cordoned = false WHERE node_id = $1", n.ID)
	require.Equal(t, 1, changing("R5"), "a repair starts")
}
