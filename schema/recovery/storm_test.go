package recovery_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// TestSwitchOutage is the outage of 15 of 50 racks: 300 of 1,000 nodes fail within a minute.
func TestSwitchOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, armed(), 1000)
	w.round(time.Minute)
	for i := range 300 {
		if i%100 == 0 {
			w.round(20 * time.Second)
		}
		w.fail(i, reason("NodeStatusUnknown"))
	}
	for range 120 {
		w.round(30 * time.Second)
	}
	assert.Empty(t, w.begun, "a repair of a node does not repair a switch")
	require.Len(t, w.last.Incidents, 1, "one incident for one cause")
	in := w.last.Incidents[0]
	assert.Equal(t, recovery.ScopeFleet, scopeOf(in), "all nodes of the region and of the fleet")
	assert.Len(t, in.Nodes, 300)
	assert.Contains(t, in.Why, "300 of 300 nodes of 15 racks (r00, r01, r02, r03, r04, ...) have a fault, mostly node_ready NodeStatusUnknown")
	assert.Contains(t, in.Why, "check the switch and the power")
	assert.Equal(t, map[recovery.Brake]int{recovery.BrakeRack: 300}, brakes(w.last))

	assert.Contains(t, w.last.Breaker.Why, "300 of 1000 nodes became unhealthy within 10m, and the limit is 20: 300 have node_ready NodeStatusUnknown, they are in 15 racks")
	assert.Contains(t, w.last.Breaker.Why, "gpuaas recovery breaker close --reason")

	for i := range 300 { // the switch is repaired
		w.heal(i)
	}
	w.round(time.Minute)
	assert.Equal(t, map[recovery.Brake]int{"": 300}, brakes(w.last))
	for _, n := range w.nodes {
		require.Equal(t, health.PhaseHealthy, n.Phase, "the breaker stops repairs, not the return of nodes")
	}
	w.round(time.Hour)
	assert.Zero(t, w.breaker.OpenSince)
	assert.Contains(t, w.breaker.Why, "no node has a fault")
}

// scopeOf treats the only region of a fleet as the fleet.
func scopeOf(in recovery.Incident) recovery.Scope {
	if in.Scope == recovery.ScopeRegion {
		return recovery.ScopeFleet
	}
	return in.Scope
}

// TestScatteredStorm is a storm that no rack explains.
func TestScatteredStorm(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Suspect.Percent = 50
	w := newWorld(t, p, 1000)
	for i := range 300 {
		w.fail(i*3, reason("KubeletNotReady")) // six or seven of each rack
	}
	for range 40 {
		w.round(30 * time.Second)
	}
	assert.Empty(t, w.begun)
	assert.Equal(t, map[recovery.Brake]int{recovery.BrakeBreaker: 300}, brakes(w.last))
	require.NotZero(t, w.last.Breaker.OpenSince)
	assert.Contains(t, w.last.Breaker.Why, "300 of 1000 nodes became unhealthy within 10m")
}

// TestFastStorm is a storm of events, which have no threshold: the first nodes are repaired before the
// others fail, and no more than the budget.
func TestFastStorm(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Suspect.Percent = 100
	w := newWorld(t, p, 1000)
	for i := range 300 {
		xid := condition("gpu_xid", "Xid", health.RepairReboot, time.Time{})
		xid.Component, xid.Code = "GPU-1", 79
		w.fail(i*3, xid)
		if i%10 == 9 {
			w.round(20 * time.Second)
		}
	}
	for range 20 {
		w.round(time.Minute)
	}
	assert.NotEmpty(t, w.begun)
	assert.LessOrEqual(t, len(w.begun), 3, "the budget of the SKU")
	assert.NotZero(t, w.breaker.OpenSince)
	assert.Contains(t, w.breaker.Why, "have gpu_xid Xid 79")
}

// TestSlowStorm stays below the breaker: the budget is the limit.
func TestSlowStorm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, armed(), 1000)
	w.repair = func(recovery.Node, recovery.Request) (time.Duration, string) {
		return 100 * hour, recovery.OutcomeUnknown
	}
	for i := range 40 {
		w.fail(i*rackNodes, reason(fmt.Sprintf("Reason%d", i)))
		w.round(2 * time.Minute)
	}
	assert.Len(t, w.begun, 3, "the budget of the SKU")
	w.round(10 * time.Minute)
	assert.Equal(t, 37, brakes(w.round(time.Minute))[recovery.BrakeBudget])
	assert.Contains(t, decision(w.last, "gpu-0400").Why, "the budget of sku hgx-h100 is used up: 3 of 3 repairs run")
	assert.Empty(t, w.last.Incidents)
}

// TestBootTransient is a check that fails on each boot until the drivers are loaded.
func TestBootTransient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, armed(), 288)
	for i := range 18 {
		w.nodes[i].BootedAt = w.at
		w.fail(i, condition("gpu_nvlink", "LinksDown", health.RepairReboot, time.Time{}))
	}
	for range 10 {
		w.round(30 * time.Second)
		require.Empty(t, w.last.Incidents)
		require.Equal(t, map[recovery.Brake]int{recovery.BrakeBootGrace: 18}, brakes(w.last))
	}
	for i := range 18 {
		w.heal(i)
	}
	for range 60 {
		w.round(30 * time.Second)
	}
	assert.Empty(t, w.begun)
	assert.Zero(t, w.breaker.OpenSince)
}

// TestTransient is a fault that one check sees.
func TestTransient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, armed(), 288)
	for i := range 18 {
		w.fail(i*rackNodes/2, reason("Timeout"))
	}
	w.round(30 * time.Second)
	for i := range 18 {
		w.heal(i * rackNodes / 2)
	}
	for range 60 {
		w.round(30 * time.Second)
	}
	assert.Empty(t, w.begun)
	assert.Zero(t, w.breaker.OpenSince)
}

// TestNewReasonOnMany is the upgrade of a checker that reports a fault which nodes do not have.
func TestNewReasonOnMany(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Suspect.Percent = 30
	w := newWorld(t, p, 1000)
	for i := range 300 { // a rollout over ten hours: too slow for the breaker
		w.fail(i%3+i/3*10, condition("gpu_nvlink", "ReplayErrors", health.RepairReboot, time.Time{}))
		w.nodes[i%3+i/3*10].Held = "rollout" // which holds each node until it is done
		if i%3 == 2 {
			w.round(6 * time.Minute)
		}
	}
	for i := range w.nodes {
		w.nodes[i].Held = ""
	}
	for range 60 {
		w.round(time.Hour)
	}
	assert.Empty(t, w.begun)
	require.Len(t, w.last.Incidents, 1)
	assert.Len(t, w.last.Incidents[0].Nodes, 300)
	assert.Contains(t, w.last.Incidents[0].Why, "gpu_nvlink ReplayErrors is on 300 of the 1000 nodes that can have it")
	assert.Equal(t, map[recovery.Brake]int{recovery.BrakeSuspect: 300}, brakes(w.last))
	assert.Zero(t, w.last.Breaker.OpenSince)

	w.policy.Suspect.Trusted = []string{"gpu_nvlink/ReplayErrors"} // an operator found it real
	w.round(time.Minute)
	assert.NotEmpty(t, w.begun)
}

// TestOldFaultBeforeSuspect: one node that has had the fault for days does not hide that the reason spread
// to many others within a day.
func TestOldFaultBeforeSuspect(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Cooldown, p.Breaker.Percent, p.Breaker.Nodes = recovery.Duration(7*24*time.Hour), 100, 1000
	w := newWorld(t, p, 1000)
	w.repair = func(recovery.Node, recovery.Request) (time.Duration, string) {
		return time.Minute, recovery.OutcomeNotCured
	}
	w.fail(999, condition("gpu_nvlink", "ReplayErrors", health.RepairReboot, time.Time{}))
	for range 72 {
		w.round(time.Hour)
	}
	require.Equal(t, []string{"gpu-0999"}, w.begun)
	for i := range 300 { // three in each rack
		w.fail(i%3+i/3*10, condition("gpu_nvlink", "ReplayErrors", health.RepairReboot, time.Time{}))
	}
	for range 5 {
		w.round(time.Hour)
	}
	require.Equal(t, []string{"gpu-0999"}, w.begun)
	require.Equal(t, 301, brakes(w.last)[recovery.BrakeSuspect])
}

// TestSuspectStays: a reason that is suspect stays so while half as many nodes have it. Nodes on which the
// false fault ends and begins again do not lead to the repair of the others.
func TestSuspectStays(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Suspect.Percent = 20
	w := newWorld(t, p, 1000)
	for i := range 250 {
		w.fail(i*4, condition("gpu_nvlink", "ReplayErrors", health.RepairReboot, time.Time{}))
	}
	w.round(time.Hour)
	require.Len(t, w.last.Incidents, 1)
	for i := range 150 { // 100 of the 200 that the rule needs are left
		w.heal(i * 4)
	}
	for range 10 {
		w.round(time.Hour)
	}
	require.Empty(t, w.begun)
	require.Equal(t, 100, brakes(w.last)[recovery.BrakeSuspect])
	require.Equal(t, recovery.BrakeSuspect, w.last.Incidents[0].Brake)

	w.heal(150 * 4)
	w.round(time.Minute)
	w.round(time.Minute)
	require.NotEmpty(t, w.begun, "99 are as many as were never suspect")
	require.Empty(t, w.last.Incidents)
}

// TestHeldFaultsCloseTheBreaker: nodes that wait for their hardware do not keep the breaker open after the
// others are healthy, because no repair of them can show that repairs help.
func TestHeldFaultsCloseTheBreaker(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hold func(*recovery.Node)
		open bool
	}{
		"quarantined": {func(n *recovery.Node) { n.Held, n.State = "the node is quarantined", "quarantined" }, false},
		"drained":     {func(n *recovery.Node) { n.State = "drained" }, false},
		"silent without power control": {func(n *recovery.Node) {
			n.Creates = false
			n.Conditions = []health.Condition{{Checker: health.CheckerHeartbeat, Status: health.Unhealthy, Repair: health.RepairReboot, Since: ago(hour), Samples: 1000}}
		}, false},
		"a node to be probed": {func(*recovery.Node) {}, true},
	} {
		f := fleet(now(), 100, failing(1, ago(3*hour)))
		c.hold(&f.Nodes[0])
		f.Breaker = recovery.BreakerState{OpenSince: ago(hour), Why: "a switch failed"}
		assert.Equal(t, c.open, !recovery.Decide(armed(), f).Breaker.OpenSince.IsZero(), name)
	}
}

// TestHalfOpen runs the breaker through its cycle.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Suspect.Percent = 100
	w := newWorld(t, p, 400)
	outcome := recovery.OutcomeNotCured
	w.repair = func(recovery.Node, recovery.Request) (time.Duration, string) { return 12 * time.Minute, outcome }
	for i := range 40 {
		w.fail(i*10, reason("KubeletNotReady"))
	}
	rounds := func(d time.Duration) {
		for range int(d / time.Minute) {
			w.round(time.Minute)
		}
	}
	rounds(31 * time.Minute)
	assert.False(t, w.breaker.OpenSince.IsZero())
	assert.Empty(t, w.begun)
	rounds(5 * time.Minute)
	require.Len(t, w.begun, 1, "one node is repaired")
	assert.Equal(t, "id-0000", w.breaker.Probing)
	assert.Equal(t, 39, brakes(w.last)[recovery.BrakeBreaker])

	rounds(10 * time.Minute)
	assert.Empty(t, w.breaker.Probing)
	assert.Contains(t, w.breaker.Why, "ended as not_cured")
	rounds(20 * time.Minute)
	assert.Len(t, w.begun, 1, "the time until the next probe starts again")

	outcome = recovery.OutcomeCured
	rounds(15 * time.Minute)
	assert.Len(t, w.begun, 2)
	rounds(14 * time.Minute)
	assert.Zero(t, w.breaker.OpenSince)
	assert.Contains(t, w.breaker.Why, "was verified")
	assert.Greater(t, len(w.begun), 2, "the other nodes are repaired within the budget")
}

// TestStormThatLasts keeps the breaker open while nodes still become unhealthy.
func TestStormThatLasts(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Suspect.Percent = 100
	w := newWorld(t, p, 400)
	begun := -1
	for i := range 180 { // three a minute, less than half of each rack
		w.fail(i*7%400, reason(fmt.Sprintf("Reason%d", i%7)))
		if i%3 == 2 {
			w.round(time.Minute)
		}
		if begun < 0 && !w.breaker.OpenSince.IsZero() {
			begun = len(w.begun)
		}
	}
	assert.NotZero(t, w.breaker.OpenSince)
	assert.Len(t, w.begun, begun, "repairs began only before the breaker opened")
	assert.Empty(t, w.last.Incidents)
}

// TestHeldNodesAreNoStorm is a rack that an operator took out of service.
func TestHeldNodesAreNoStorm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, armed(), 1000)
	for i := range 100 {
		w.fail(i*10, reason("KubeletNotReady"))
		w.nodes[i*10].Held = "new firmware"
	}
	w.fail(555, reason("Xid"))
	for range 20 {
		w.round(time.Minute)
	}
	assert.Zero(t, w.breaker.OpenSince)
	assert.Equal(t, []string{"gpu-0555"}, w.begun)
}

// TestHeldNodesOfRack: nodes of a rack that wait for their vendor do not stop the repair of its last node.
func TestHeldNodesOfRack(t *testing.T) {
	t.Parallel()
	nodes := []recovery.Node{failing(0, ago(hour)), failing(1, ago(hour)), failing(2, ago(hour)), failing(3, ago(hour))}
	nodes[0].Held, nodes[0].State = "the node is quarantined", "quarantined"
	nodes[1].Held = "an operator drains it"
	nodes[2].State = "drained"
	f := fleet(now(), 100, nodes...)
	f.Sizes[3].Nodes, f.Sizes[3].GPUNodes = 4, 4
	got := recovery.Decide(armed(), f)
	assert.Empty(t, got.Incidents)
	assert.Equal(t, []string{"gpu-0003"}, acting(got))

	nodes[0].Held, nodes[0].State, nodes[1].Held = "", "offline", ""
	got = recovery.Decide(armed(), f)
	assert.Len(t, got.Incidents, 1)
	assert.Empty(t, acting(got))
}

// TestSlowReason is a reason that many nodes have because nothing was repaired for weeks.
func TestSlowReason(t *testing.T) {
	t.Parallel()
	var nodes []recovery.Node
	for i := range 30 {
		nodes = append(nodes, failing(i*3, ago(time.Duration(10*i+1)*hour)))
	}
	got := recovery.Decide(armed(), fleet(now(), 100, nodes...))
	assert.Empty(t, got.Incidents)
	assert.Len(t, acting(got), 3)
}

// TestProbeThatDoesNotStart is a probe whose operation was rejected: the next round chooses again.
func TestProbeThatDoesNotStart(t *testing.T) {
	t.Parallel()
	f := fleet(now(), 400, failing(1, ago(hour)), failing(21, ago(hour)))
	f.Breaker = recovery.BreakerState{OpenSince: ago(hour), Probing: "id-0001", ProbingSince: ago(time.Minute), Why: "storm"}
	got := recovery.Decide(armed(), f)
	assert.Equal(t, []string{"gpu-0001"}, acting(got))
	assert.Equal(t, now(), got.Breaker.ProbingSince)
	f.Nodes[0].Held = "an operator drains it"
	assert.Equal(t, []string{"gpu-0021"}, acting(recovery.Decide(armed(), f)))
	f.Nodes[0].Held = ""
	f.Nodes[0].Attempts = []recovery.Attempt{attempt(f.Nodes[0], recovery.RungReboot, ago(time.Second), recovery.OutcomeNotBegun)}
	f.Nodes[0].Attempts[0].StartedAt = f.Breaker.ProbingSince
	got = recovery.Decide(armed(), f)
	assert.Equal(t, []string{"gpu-0021"}, acting(got), "a repair that was canceled before its first rung shows nothing")
	assert.Equal(t, f.Breaker.OpenSince, got.Breaker.OpenSince)
	f.Nodes[0].Attempts = []recovery.Attempt{attempt(f.Nodes[0], recovery.RungReboot, ago(hour/2), recovery.OutcomeCured)}
	got = recovery.Decide(armed(), f)
	assert.Equal(t, f.Breaker.OpenSince, got.Breaker.OpenSince, "a repair from before the probe shows nothing")
	f.Nodes[0].Attempts = nil
	f.Breaker.Probing = "id-gone"
	assert.Equal(t, []string{"gpu-0001"}, acting(recovery.Decide(armed(), f)))
}

// TestProbeWithSeveralRungs waits for the end of the operation, and reads its last rung.
func TestProbeWithSeveralRungs(t *testing.T) {
	t.Parallel()
	f := fleet(now(), 400, failing(1, ago(hour)), failing(21, ago(hour)))
	f.Breaker = recovery.BreakerState{OpenSince: ago(hour), Probing: "id-0001", ProbingSince: ago(20 * time.Minute), Why: "storm"}
	first := attempt(f.Nodes[0], recovery.RungResetGPU, ago(5*time.Minute), recovery.OutcomeNotCured)
	first.OperationID = "op-7"
	f.Nodes[0].Attempts = []recovery.Attempt{first}
	f.Nodes[0].Held = "operation op-7 (recover) holds the node"
	got := recovery.Decide(armed(), f)
	assert.Empty(t, acting(got))
	assert.Equal(t, "id-0001", got.Breaker.Probing, "the operation drains the node before the next rung")

	second := attempt(f.Nodes[0], recovery.RungReboot, ago(time.Minute), recovery.OutcomeCured)
	second.OperationID, second.StartedAt = "op-7", ago(4*time.Minute)
	f.Nodes[0].Held = ""
	f.Nodes[0].Attempts = []recovery.Attempt{first, second}
	got = recovery.Decide(armed(), f)
	assert.Zero(t, got.Breaker.OpenSince)

	f.Nodes[0].Attempts[1].Outcome = recovery.OutcomeNotCured
	f.Nodes[0].Held = "the node is quarantined"
	got = recovery.Decide(armed(), f)
	assert.Equal(t, now(), got.Breaker.OpenSince)
	assert.Empty(t, got.Breaker.Probing, "a node that stays quarantined does not keep the breaker half-open")
}

// TestOperatorClosesBreaker shows that faults from before do not open it again.
func TestOperatorClosesBreaker(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Suspect.Percent = 100
	w := newWorld(t, p, 400)
	for i := range 40 {
		w.fail(i*10, reason("KubeletNotReady"))
	}
	for range 6 {
		w.round(time.Minute)
	}
	require.NotZero(t, w.breaker.OpenSince)
	w.breaker = recovery.BreakerState{ClosedAt: w.at}
	w.round(time.Minute)
	assert.Zero(t, w.breaker.OpenSince)
	assert.NotEmpty(t, w.begun)
	for i := range 40 {
		w.fail(i*10+1, reason("KubeletNotReady"))
	}
	for range 4 {
		w.round(time.Minute)
	}
	assert.NotZero(t, w.breaker.OpenSince, "a second storm")
}

// TestClockSetBack: the breaker does not wait until the clock reaches its times again.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Suspect.Percent = 100
	w := newWorld(t, p, 400)
	w.breaker = recovery.BreakerState{ClosedAt: w.at.Add(8760 * time.Hour)}
	w.round(time.Minute)
	for i := range 40 {
		w.fail(i*10, reason("KubeletNotReady"))
	}
	for range 6 {
		w.round(time.Minute)
	}
	require.NotZero(t, w.breaker.OpenSince, "a storm after the clock was set back")

	w.breaker = recovery.BreakerState{OpenSince: w.at.Add(8760 * time.Hour), Why: "storm"}
	for range 35 {
		w.round(time.Minute)
	}
	assert.NotEmpty(t, w.begun, "a probe")
}

// TestMonitorMode starts nothing, and names the brake that would stop an armed policy.
func TestMonitorMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, recovery.Default(), 1000)
	for i := range 10 {
		w.fail(i*rackNodes, reason(fmt.Sprintf("Reason%d", i)))
	}
	for range 30 {
		w.round(time.Minute)
	}
	assert.Equal(t, map[recovery.Brake]int{recovery.BrakeMonitor: 3, recovery.BrakeBudget: 7}, brakes(w.last))
	for i := range 100 {
		w.fail(i*10, reason("KubeletNotReady"))
	}
	for range 5 {
		w.round(time.Minute)
	}
	assert.NotZero(t, w.breaker.OpenSince)
	for range 60 {
		w.round(time.Minute)
	}
	assert.Zero(t, w.breaker.OpenSince)
	assert.Contains(t, w.breaker.Why, "monitor mode")
	assert.Empty(t, w.begun)
}

// TestBudgets checks the arithmetic and what a budget that allows nothing says.
func TestBudgets(t *testing.T) {
	t.Parallel()
	set := func(b ...recovery.Budget) recovery.Policy {
		p := armed()
		p.Budgets = b
		return p
	}
	one := func(count, percent int) recovery.Policy {
		return set(recovery.Budget{Scope: recovery.ScopeFleet, Count: count, Percent: percent})
	}
	unsized := fleet(now(), 100, failing(1, ago(hour)))
	unsized.Sizes = nil
	busy := fleet(now(), 100, failing(1, ago(hour)))
	busy.Sizes[0].Busy = 5
	gpu := fleet(now(), 100, with(node(1), condition("gpu_xid", "Xid", health.RepairReboot, ago(hour))))
	gpu.Sizes[0].GPUNodes = 9
	noGPU := fleet(now(), 100, with(node(1), condition("gpu_xid", "Xid", health.RepairReboot, ago(hour))))
	noGPU.Sizes[0].GPUNodes = 0
	for _, c := range []struct {
		name   string
		policy recovery.Policy
		fleet  recovery.Fleet
		why    string // empty: the repair starts
	}{
		{"allowed", one(1, 1), fleet(now(), 100, failing(1, ago(hour))), ""},
		{"count 0", one(0, 100), fleet(now(), 100, failing(1, ago(hour))), "the budget of the fleet is 0 (count 0, percent 100): raise it in the policy"},
		{"percent 0", one(10, 0), fleet(now(), 100, failing(1, ago(hour))), "the budget of the fleet is 0"},
		{"rounded down to 0", one(10, 1), fleet(now(), 99, failing(1, ago(hour))), "1 % of its 99 nodes, rounded down: set percent to 2 or more"},
		{"negative", one(-1, 10), fleet(now(), 100, failing(1, ago(hour))), "malformed"},
		{"more than all", one(1, 101), fleet(now(), 100, failing(1, ago(hour))), "malformed"},
		{"a scope that does not exist", set(recovery.Budget{Scope: "planet", Count: 9, Percent: 9}, recovery.Budget{Scope: recovery.ScopeFleet, Count: 9, Percent: 9}),
			fleet(now(), 100, failing(1, ago(hour))), "which does not exist"},
		{"no budget", set(), fleet(now(), 100, failing(1, ago(hour))), "no budget for the fleet"},
		{"no size", one(1, 1), unsized, "the size of the fleet is not known"},
		{"used up", one(5, 10), busy, "5 of 5 repairs run"},
		{"nodes that can have the fault", one(5, 10), gpu, "10 % of its 9 nodes, rounded down: set percent to 12 or more"},
		{"a GPU of a node without GPUs", one(5, 10), noGPU, "no node of the fleet is registered with GPUs, so its budget allows no repair of a GPU: register"},
		{"of this SKU", set(recovery.Budget{Scope: recovery.ScopeFleet, Count: 9, Percent: 9},
			recovery.Budget{Scope: recovery.ScopeSKU}, recovery.Budget{Scope: recovery.ScopeSKU, Key: hgx, Count: 1, Percent: 5}),
			fleet(now(), 100, failing(1, ago(hour))), ""},
		{"of another SKU", set(recovery.Budget{Scope: recovery.ScopeFleet, Count: 9, Percent: 9}, recovery.Budget{Scope: recovery.ScopeSKU, Key: "other"}),
			fleet(now(), 100, failing(1, ago(hour))), ""},
	} {
		d := recovery.Decide(c.policy, c.fleet).Decisions[0]
		assert.Equal(t, c.why == "", d.Acts(), "%s: %s", c.name, d.Why)
		assert.Contains(t, d.Why, c.why, c.name)
		if c.why != "" {
			assert.Equal(t, recovery.BrakeBudget, d.Brake, c.name)
		}
	}
}

// TestLongestFirst shows who gets the budget.
func TestLongestFirst(t *testing.T) {
	t.Parallel()
	got := recovery.Decide(armed(), fleet(now(), 1000,
		failing(100, ago(hour)), failing(40, ago(hour)), failing(60, ago(2*hour)), failing(200, ago(time.Minute)), failing(80, ago(hour)), node(7)))
	assert.Equal(t, []string{"gpu-0060", "gpu-0040", "gpu-0080"}, acting(got))
}

// TestListedTwice is a node that the facts list twice: it is repaired once.
func TestListedTwice(t *testing.T) {
	t.Parallel()
	got := recovery.Decide(armed(), fleet(now(), 1000, failing(1, ago(hour)), failing(1, ago(hour))))
	assert.Len(t, got.Decisions, 1)
}

// TestBreakerOfSmallFleet: one or two nodes are no storm, however small the fleet is, and three are.
func TestBreakerOfSmallFleet(t *testing.T) {
	t.Parallel()
	for size := range 12 {
		var nodes []recovery.Node
		for bad := range min(size, 3) + 1 {
			got := recovery.Decide(armed(), fleet(now(), size, nodes...))
			assert.Equal(t, bad < recovery.MinCorrelated, got.Breaker.OpenSince.IsZero(), "%d of %d nodes", bad, size)
			nodes = append(nodes, failing(bad*10, ago(6*time.Minute)))
		}
	}
}

// TestMemoryOfOthers: an incident of a rack, or of another reason, makes no reason suspect.
func TestMemoryOfOthers(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Suspect.Percent = 20
	for _, in := range []recovery.Incident{
		{Brake: recovery.BrakeRack, Fault: recovery.Fault{Checker: "gpu_nvlink", Reason: "ReplayErrors"}},
		{Brake: recovery.BrakeSuspect, Fault: recovery.Fault{Checker: "gpu_nvlink", Reason: "LinkDown"}},
	} {
		w := newWorld(t, p, 1000)
		for i := range 100 {
			w.fail(i*10, condition("gpu_nvlink", "ReplayErrors", health.RepairReboot, time.Time{}))
		}
		w.last.Incidents = []recovery.Incident{in}
		w.round(time.Hour)
		assert.Zero(t, brakes(w.last)[recovery.BrakeSuspect], in.Brake)
	}
}

// TestEvidenceOfMany: a node under repair is evidence about its rack, and a node in a state in which no repair starts
// is none about the fleet.
func TestEvidenceOfMany(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Rack = recovery.RackRule{Percent: 15, Nodes: 3}
	nodes := []recovery.Node{failing(1, ago(hour)), failing(2, ago(hour)), failing(3, ago(hour))}
	nodes[0].State = "draining" // by its repair
	nodes[0].Attempts = []recovery.Attempt{{OperationID: "op-1", NodeID: nodes[0].NodeID, Rung: recovery.RungReboot, StartedAt: ago(time.Minute)}}
	assert.Equal(t, map[recovery.Brake]int{recovery.BrakeHeld: 1, recovery.BrakeRack: 2}, brakes(recovery.Decide(p, fleet(now(), 100, nodes...))))

	var drained []recovery.Node
	for i := range 50 {
		n := failing(i*20, ago(time.Minute))
		n.State = "drained"
		drained = append(drained, n)
	}
	assert.Zero(t, recovery.Decide(armed(), fleet(now(), 1000, drained...)).Breaker.OpenSince)
}
