package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// faulty adds an active node in rack r1 with an unhealthy condition of a fresh report. The policy is armed.
func (e *env) faulty() wire.NodeView {
	e.t.Helper()
	n := e.inState(lifecycle.NodeActive)
	e.exec(`INSERT INTO recovery_policies (version, body, digest, actor, reason) VALUES (1, '{"mode": "armed"}', 'd', 'a', 'r') ON CONFLICT DO NOTHING`)
	e.exec(`UPDATE nodes SET labels = '{"rack": "r1"}', last_heartbeat_at = now(), uptime_seconds = 7200 WHERE node_id = $1`, n.ID)
	e.exec(`INSERT INTO health_reports (node_id, source, incarnation, boot_id, at, reported_at, digest) VALUES ($1, 'agent', 1, 'b1', now(), now(), '')`, n.ID)
	e.exec(`INSERT INTO conditions (node_id, source, checker, component, status, reason, code, repair, detail, since, samples,
		fault_since, fault_samples, unknown_seconds) VALUES ($1, 'agent', 'gpu_xid', 'GPU-1', 'unhealthy', 'XID', 79, 'reboot', 'fell off the bus',
		now() - interval '1 hour', 9, '0001-01-01Z', 0, 0)`, n.ID)
	return n
}

// fault is the fault of a faulty node.
func fault() recovery.Fault {
	return recovery.Fault{Checker: "gpu_xid", Component: "GPU-1", Reason: "XID", Code: 79, Repair: health.RepairReboot}
}

// reboots reboots every node that nothing holds, and keeps the fleet.
func reboots(seen *recovery.Fleet) activities.DecideFunc {
	return func(_ record.Policy, f recovery.Fleet) (v recovery.Result, m recovery.Mode, err error) {
		if seen != nil {
			*seen = f
		}
		for _, n := range f.Nodes {
			d := recovery.Decision{NodeID: n.NodeID, Phase: health.PhaseUnhealthy, Fault: fault(), Rung: recovery.RungReboot, Why: "reboot",
				Request: recovery.Request{Fault: fault(), Rungs: []recovery.Rung{recovery.RungReboot}}}
			if n.Held != "" {
				d.Brake, d.Why = recovery.BrakeHeld, n.Held
			}
			v.Decisions = append(v.Decisions, d)
		}
		return v, recovery.ModeArmed, nil
	}
}

func (e *env) round(j activities.DecideFunc) activities.RepairRound {
	e.t.Helper()
	r, err := e.Recovery.Round(e.t.Context(), j)
	require.NoError(e.t, err)
	return r
}

// claims lets the operation of a start claim its node.
func (e *env) claims(in lifecycle.OperationInput) activities.Claim {
	e.t.Helper()
	r := request(in.NodeID, lifecycle.ActionQuarantine)
	r.OperationID = in.OperationID
	c, err := e.Claim(e.t.Context(), r)
	require.NoError(e.t, err)
	return c
}

func busy(f recovery.Fleet) map[recovery.Scope]int {
	n := map[recovery.Scope]int{}
	for _, s := range f.Sizes {
		n[s.Scope] += s.Busy
	}
	return n
}

// TestFleetOfRound: a round reads the nodes with a fault and the sizes of all scopes. A condition of an
// old report is unknown, and a healthy node is not read.
func TestFleetOfRound(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	e.inState(lifecycle.NodeActive)
	var f recovery.Fleet
	e.round(reboots(&f))
	require.Len(t, f.Nodes, 1)
	got := f.Nodes[0]
	require.Equal(t, []any{n.ID, n.Host, "cpu-dev", "region-1", "r1", "", "active"}, []any{got.NodeID, got.Host, got.SKU, got.Region, got.Rack, got.Held, got.State})
	require.WithinDuration(t, f.At.Add(-2*time.Hour), got.BootedAt, time.Minute)
	require.Len(t, got.Conditions, 1)
	require.Equal(t, health.Unhealthy, got.Conditions[0].Status)
	require.Equal(t, 79, got.Conditions[0].Code)
	require.Equal(t, []recovery.Size{{Scope: "fleet", Nodes: 2}, {Scope: "rack", Key: "r1", Nodes: 1},
		{Scope: "region", Key: "region-1", Nodes: 2}, {Scope: "sku", Key: "cpu-dev", Nodes: 2}}, f.Sizes)

	e.exec("UPDATE health_reports SET reported_at = now() - interval '20 minutes'")
	e.round(reboots(&f))
	require.Equal(t, health.Unknown, f.Nodes[0].Conditions[0].Status, "its report is old")
	require.Len(t, f.Nodes[0].Attempts, 1)
	require.Equal(t, map[recovery.Scope]int{"fleet": 1, "rack": 1, "region": 1, "sku": 1}, busy(f))
}

// TestSilentNode: a node without heartbeats has a fault that nothing on it can report.
func TestSilentNode(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeOffline)
	e.exec("UPDATE nodes SET silent_at = now() - interval '1 hour' WHERE node_id = $1", n.ID)
	drained := e.inState(lifecycle.NodeDrained)
	e.exec("UPDATE nodes SET silent_at = now() WHERE node_id = $1", drained.ID)
	var f recovery.Fleet
	e.round(reboots(&f))
	require.Len(t, f.Nodes, 1)
	require.Equal(t, n.ID, f.Nodes[0].NodeID)
	require.Equal(t, "Silent", f.Nodes[0].Conditions[0].Reason)
	require.Equal(t, time.Hour, f.At.Sub(f.Nodes[0].Conditions[0].Since).Round(time.Minute))
}

// TestHeldNodes: a round sees why an operator or an operation holds a node.
func TestHeldNodes(t *testing.T) {
	e := setup(t)
	for want, change := range map[string]string{
		"the node is cordoned":               "cordoned = true",
		"the node is quarantined":            "state = 'quarantined'",
		"the identity of the node is locked": "identity_locked_at = now(), identity_lock_reason = 'clone'",
	} {
		n := e.faulty()
		e.exec("UPDATE nodes SET "+change+" WHERE node_id = $1", n.ID)
		var f recovery.Fleet
		r := e.round(reboots(&f))
		require.Empty(t, r.Starts)
		require.Equal(t, want, f.Nodes[len(f.Nodes)-1].Held)
	}
	n := e.faulty()
	c := e.claim(n.ID, lifecycle.ActionDrain)
	r := e.round(reboots(nil))
	require.Empty(t, r.Starts)
	require.Contains(t, r.Decisions[0].Why, c.Fence.OperationID)
}

// TestReservedBeforeStart: a round stores the decision, the attempt and the reservation of a repair
// before it is started. A round after a crash returns the same operation, until it has claimed the
// node; its end releases the budget.
func TestReservedBeforeStart(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	first := e.round(reboots(nil))
	require.Len(t, first.Starts, 1)
	in := first.Starts[0]
	require.Equal(t, first.Decisions[0].OperationID, in.OperationID)
	require.Equal(t, first.Decisions[0].DecisionID, in.Options.Recovery.DecisionID)
	require.Equal(t, []any{lifecycle.Action("recover"), n.ID, n.Host, "system"}, []any{in.Action, in.NodeID, in.Host, in.Actor})

	again := e.round(reboots(nil))
	require.Empty(t, again.Decisions, "the node has one repair at a time")
	require.Equal(t, first.Starts, again.Starts)
	require.EqualValues(t, 1, e.number("SELECT count(*) FROM budget_reservations"))

	require.NoError(t, e.Recovery.Started(t.Context(), in.OperationID))
	require.Empty(t, e.round(reboots(nil)).Starts)
	c := e.claims(in)
	var f recovery.Fleet
	e.round(reboots(&f))
	require.Equal(t, 1, busy(f)["fleet"])
	require.Empty(t, f.Nodes[0].Held, "the node's own repair does not hold it")

	require.NoError(t, e.Finish(t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationFailed, Node: lifecycle.NodeQuarantined}))
	e.round(reboots(&f))
	require.Zero(t, busy(f)["fleet"])
	require.Equal(t, recovery.OutcomeNotBegun, f.Nodes[0].Attempts[0].Outcome, "the operation did not begin the rung")
	require.Equal(t, "the node is quarantined", f.Nodes[0].Held)
	require.EqualValues(t, 0, e.number("SELECT count(*) FROM budget_reservations"))
}

// TestRepairByAPerson: a repair that a person started uses the budgets until it ends.
func TestRepairByAPerson(t *testing.T) {
	e := setup(t)
	first, second := e.faulty(), e.faulty()
	c := e.claim(first.ID, lifecycle.ActionRecover)
	var f recovery.Fleet
	r := e.round(reboots(&f))
	require.Len(t, r.Starts, 1)
	require.Equal(t, second.ID, r.Starts[0].NodeID, "a claimed repair is not started again")
	require.Equal(t, map[recovery.Scope]int{"fleet": 1, "rack": 1, "region": 1, "sku": 1}, busy(f))
	require.NoError(t, e.Finish(t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))
	e.round(reboots(&f))
	require.Equal(t, 1, busy(f)["rack"], "that of the other node")
}

// TestReservedForAnotherPurpose: a node that another operation has reserved, and not claimed yet, is held.
func TestReservedForAnotherPurpose(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	id := schema.NewID()
	e.exec(`INSERT INTO budget_reservations (operation_id, purpose, node_id, sku, rack, region, input) VALUES ($1, 'rollout', $2, 'cpu-dev', 'r1', 'region-1', '{}')`, id, n.ID)
	var f recovery.Fleet
	r := e.round(reboots(&f))
	require.Empty(t, r.Starts)
	require.Equal(t, "operation "+id+" has reserved the node", f.Nodes[0].Held)
	require.Equal(t, recovery.BrakeHeld, r.Decisions[0].Brake)
	require.Equal(t, 1, busy(f)["rack"])
}

// TestRungThatEndedUnrecorded: whether a rung was done that its operation began, and whose end it did
// not record, is not known.
func TestRungThatEndedUnrecorded(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	c := e.claims(in)
	_, err := e.Repairs.RecordAttempt(t.Context(), c.Fence, recovery.Attempt{OperationID: in.OperationID, NodeID: n.ID, SKU: n.SKU, Rung: recovery.RungReboot,
		Fault: fault(), StartedAt: time.Now()})
	require.NoError(t, err)
	require.NoError(t, e.Finish(t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationFailed, Node: lifecycle.NodeQuarantined}))
	var f recovery.Fleet
	e.round(reboots(&f))
	require.Equal(t, recovery.OutcomeUnknown, f.Nodes[0].Attempts[0].Outcome)
}

// TestAbandonedRepair: an abandoned operation uses no budget.
func TestAbandonedRepair(t *testing.T) {
	e := setup(t)
	e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	e.claims(in)
	marked, err := e.Store.Operations.Abandon(t.Context(), in.OperationID, e.text("SELECT run_id FROM operations"), lifecycle.RunTerminated)
	require.NoError(t, err)
	require.True(t, marked)
	var f recovery.Fleet
	e.round(reboots(&f))
	require.Zero(t, busy(f)["fleet"])
	require.Contains(t, f.Nodes[0].Held, "an abandoned operation")
}

// TestRefusedStart: a rejected start releases the budget and the attempt, and the node is left alone
// for a while with the reason. A repeat changes nothing, and neither does a rejection of an operation
// that claimed its node.
func TestRefusedStart(t *testing.T) {
	e := setup(t)
	e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	for range 2 {
		require.NoError(t, e.Recovery.Refused(t.Context(), in.OperationID, "operation x holds the node"))
	}
	var f recovery.Fleet
	r := e.round(reboots(&f))
	require.Empty(t, r.Starts)
	require.Zero(t, busy(f)["fleet"])
	require.Empty(t, f.Nodes[0].Attempts)
	require.Equal(t, "the start of the repair was rejected: operation x holds the node", f.Nodes[0].Held)
	require.EqualValues(t, 2, e.number("SELECT count(*) FROM recovery_decisions"))

	e.exec("UPDATE recovery_states SET refused_at = now() - interval '6 minutes'")
	second := e.round(reboots(nil)).Starts[0]
	require.NotEqual(t, in.OperationID, second.OperationID)
	e.claims(second)
	require.NoError(t, e.Recovery.Refused(t.Context(), second.OperationID, "late"))
	require.EqualValues(t, 1, e.number("SELECT count(*) FROM budget_reservations"))
}

// TestLostOperation: after a restore of the database, a reservation whose operation it does not have
// is started again with its ID, and stops to count when the operation can no longer claim its node.
func TestLostOperation(t *testing.T) {
	e := setup(t)
	e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	e.exec("UPDATE budget_reservations SET reserved_at = now() - interval '6 minutes'")
	var f recovery.Fleet
	require.Empty(t, e.round(reboots(&f)).Starts, "the next start may be too late")
	require.Equal(t, 1, busy(f)["fleet"], "the last start may still claim the node")
	e.exec("UPDATE budget_reservations SET reserved_at = now() - interval '1 hour'")
	e.exec("UPDATE recovery_attempts SET started_at = now() - interval '1 hour'")
	r := e.round(reboots(&f))
	require.Zero(t, busy(f)["fleet"])
	require.Equal(t, recovery.OutcomeNotBegun, f.Nodes[0].Attempts[0].Outcome)
	require.NotEqual(t, in.OperationID, r.Starts[0].OperationID)
}

// TestRestoreMode: nothing is decided while a restore mode is on. A repair that the dump has only reserved may have
// run in the lost time, so it does not start.
func TestRestoreMode(t *testing.T) {
	e := setup(t)
	e.faulty()
	reserved := e.round(reboots(nil)).Starts[0]
	e.exec("INSERT INTO restore_modes (actor, reason, ends_at) VALUES ('a', 'r', now() + interval '1 hour')")
	r := e.round(func(record.Policy, recovery.Fleet) (v recovery.Result, m recovery.Mode, err error) {
		t.Error("a restored fleet was decided about")
		return v, m, nil
	})
	require.True(t, r.Restoring)
	e.exec("UPDATE restore_modes SET ended_at = now()")
	require.NotEqual(t, reserved.OperationID, e.round(reboots(nil)).Starts[0].OperationID)
	_, err := e.Claim(t.Context(), claimOf(reserved))
	requireKind(t, err, schema.KindInvalidRequest, "repair_withdrawn")
	require.EqualValues(t, 0, e.number("SELECT count(*) FROM recovery_attempts WHERE operation_id = $1", reserved.OperationID))
}

// TestUnchangedDecision: a decision is stored when it changes, not in each round; the state has the
// newest figures. A healthy node ends its state.
func TestUnchangedDecision(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	decide := func(phase health.Phase, why string) activities.RepairRound {
		return e.round(func(record.Policy, recovery.Fleet) (recovery.Result, recovery.Mode, error) {
			return recovery.Result{Decisions: []recovery.Decision{{NodeID: n.ID, Phase: phase, Fault: fault(), Brake: recovery.BrakeThreshold, Why: why}}},
				recovery.ModeMonitor, nil
		})
	}
	require.Len(t, decide(health.PhaseUnhealthy, "1 of 5 minutes").Decisions, 1)
	require.Empty(t, decide(health.PhaseUnhealthy, "2 of 5 minutes").Decisions)
	require.Equal(t, "2 of 5 minutes", e.text("SELECT why FROM recovery_states"))
	require.Len(t, decide(health.PhaseHealthy, "healthy again").Decisions, 1)
	require.Empty(t, decide(health.PhaseHealthy, "healthy again").Decisions)
	require.EqualValues(t, 0, e.number("SELECT count(*) FROM recovery_states"))
	require.EqualValues(t, 2, e.number("SELECT count(*) FROM recovery_decisions"))
}

// TestMonitorStartsNothing: in monitor mode nothing is reserved, whatever is decided.
func TestMonitorStartsNothing(t *testing.T) {
	e := setup(t)
	e.faulty()
	r := e.round(func(p record.Policy, f recovery.Fleet) (recovery.Result, recovery.Mode, error) {
		v, _, err := reboots(nil)(p, f)
		return v, recovery.ModeMonitor, err
	})
	require.Empty(t, r.Starts)
	require.Empty(t, r.Decisions[0].OperationID)
	require.EqualValues(t, 0, e.number("SELECT count(*) FROM budget_reservations"))
}

// TestFailedDecision: a round that cannot decide, for example because it cannot read the policy, changes nothing.
func TestFailedDecision(t *testing.T) {
	e := setup(t)
	e.faulty()
	_, err := e.Recovery.Round(t.Context(), func(record.Policy, recovery.Fleet) (v recovery.Result, m recovery.Mode, err error) {
		return v, m, schema.NewError(schema.KindInternal, "unreadable").WithReason("policy_unreadable")
	})
	requireKind(t, err, schema.KindInternal, "policy_unreadable")
	require.EqualValues(t, 0, e.number("SELECT round FROM recovery_breaker"))
}

// TestConcurrentRounds: of workers that decide at once, one after the other does, so that a node has one
// repair and the budget of one.
func TestConcurrentRounds(t *testing.T) {
	e := setup(t)
	e.faulty()
	limited := func(p record.Policy, f recovery.Fleet) (recovery.Result, recovery.Mode, error) {
		v, m, err := reboots(nil)(p, f)
		if busy(f)["fleet"] > 0 {
			v.Decisions[0].Brake = recovery.BrakeBudget
		}
		return v, m, err
	}
	require.NoError(t, errors.Join(race(8, func(int) error {
		_, err := e.Recovery.Round(t.Context(), limited)
		return err
	})...))
	require.EqualValues(t, 1, e.number("SELECT count(*) FROM budget_reservations"))
	require.EqualValues(t, 1, e.number("SELECT count(*) FROM recovery_attempts"))
	require.EqualValues(t, 8, e.number("SELECT round FROM recovery_breaker"))
}
