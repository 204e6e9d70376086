package recovery_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// failed returns n nodes of one rack with the same old fault.
func failed(n int) (nodes []recovery.Node) {
	for i := range n {
		nodes = append(nodes, failing(i, ago(hour)))
	}
	return nodes
}

// TestHalfOfRack: exactly half of a rack is an incident.
func TestHalfOfRack(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Suspect.Percent = 100
	for size, incidents := range map[int]int{5: 1, 6: 1, 7: 0} {
		assert.Len(t, recovery.Decide(p, fleet(now(), size, failed(3)...)).Incidents, incidents, "3 of %d", size)
	}
}

// TestShareOfSuspects: the share is rounded up, and nodes whose fault has another explanation do not count.
func TestShareOfSuspects(t *testing.T) {
	t.Parallel()
	p := armed() // 20 % of 16 nodes are more than 3
	assert.Empty(t, recovery.Decide(p, fleet(now(), 16, failed(3)...)).Incidents)
	nodes := failed(4)
	assert.Len(t, recovery.Decide(p, fleet(now(), 16, nodes...)).Incidents, 1)

	nodes[3].BootedAt = ago(time.Minute)
	assert.Empty(t, recovery.Decide(p, fleet(now(), 16, nodes...)).Incidents, "one of them booted")
	nodes[3].BootedAt = time.Time{}
	p.Windows = []recovery.Window{{Match: recovery.Match{Hosts: []string{nodes[3].Host}}, Start: ago(hour), End: now().Add(hour), Reason: "power tests"}}
	assert.Empty(t, recovery.Decide(p, fleet(now(), 16, nodes...)).Incidents, "one of them is in a window")
}

// TestRepairCountsForBreaker: a node that a repair restarts counts with its new fault, although it booted.
func TestRepairCountsForBreaker(t *testing.T) {
	t.Parallel()
	var nodes []recovery.Node
	for i := range 3 {
		nodes = append(nodes, failing(i*rackNodes, ago(6*time.Minute)))
	}
	nodes[0].BootedAt = ago(time.Minute)
	require.Zero(t, recovery.Decide(armed(), fleet(now(), 60, nodes...)).Breaker.OpenSince, "10 % of 60 are 6")
	p := armed()
	p.Breaker.Nodes = 3
	require.Zero(t, recovery.Decide(p, fleet(now(), 60, nodes...)).Breaker.OpenSince, "one of them booted")
	nodes[0].Attempts = []recovery.Attempt{{OperationID: "op-1", NodeID: nodes[0].NodeID, Rung: recovery.RungReboot, StartedAt: ago(3 * time.Minute)}}
	require.NotZero(t, recovery.Decide(p, fleet(now(), 60, nodes...)).Breaker.OpenSince)
}

// TestProbeOfThisRound: the round that chose the probe may be decided again, and the probe is the same.
func TestProbeOfThisRound(t *testing.T) {
	t.Parallel()
	f := fleet(now(), 400, failing(1, ago(hour)), failing(21, ago(hour)))
	f.Breaker = recovery.BreakerState{OpenSince: ago(hour), Probing: "id-0021", ProbingSince: now(), Why: "storm"}
	got := recovery.Decide(armed(), f)
	assert.Empty(t, acting(got))
	assert.Equal(t, f.Breaker, got.Breaker)
}

// TestTwoSizes: of two rows about one scope, the figures that allow less count.
func TestTwoSizes(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]recovery.Size{
		"fewer nodes":      {Scope: recovery.ScopeFleet, Nodes: 9, GPUNodes: 9},
		"more repairs":     {Scope: recovery.ScopeFleet, Nodes: 100, GPUNodes: 100, Busy: 5},
		"more quarantined": {Scope: recovery.ScopeFleet, Nodes: 100, GPUNodes: 100, Out: 10},
	} {
		f := fleet(now(), 100, failing(1, ago(hour)))
		require.NotEmpty(t, acting(recovery.Decide(armed(), f)))
		first, last := f, f
		first.Sizes, last.Sizes = slices.Concat([]recovery.Size{other}, f.Sizes), slices.Concat(f.Sizes, []recovery.Size{other})
		assert.Empty(t, acting(recovery.Decide(armed(), first)), name)
		assert.Empty(t, acting(recovery.Decide(armed(), last)), name)
	}
}

// TestHarmlessIsNotHealthy: a node that was unhealthy does not return because only a fault without a repair
// is left.
func TestHarmlessIsNotHealthy(t *testing.T) {
	t.Parallel()
	n := node(1)
	n.Conditions = []health.Condition{condition("gpu_xid", "ApplicationFault", health.RepairNone, ago(hour))}
	for before, after := range map[health.Phase]health.Phase{health.PhaseHealthy: health.PhaseHealthy, health.PhaseUnhealthy: health.PhaseUnhealthy} {
		n.Phase = before
		assert.Equal(t, after, recovery.Decide(armed(), fleet(now(), 100, n)).Decisions[0].Phase)
	}
}

// TestFaultOfTheFuture: a reporter whose clock is ahead gives its fault no age.
func TestFaultOfTheFuture(t *testing.T) {
	t.Parallel()
	d := recovery.Decide(armed(), fleet(now(), 100, failing(1, now().Add(hour)))).Decisions[0]
	assert.Equal(t, now(), d.Fault.Since)
	assert.Equal(t, recovery.BrakeThreshold, d.Brake)
}

// TestManyResets: a request that would name too many GPUs resets all.
func TestManyResets(t *testing.T) {
	t.Parallel()
	n := node(1)
	for i := range 65 {
		c := condition("gpu_xid", "Xid", health.RepairResetGPU, ago(hour))
		c.Component = fmt.Sprintf("GPU-%03d", i)
		n = with(n, c)
		got := recovery.Decide(armed(), fleet(now(), 100, n)).Decisions[0].Request
		require.Equal(t, recovery.RungResetGPU, got.Rungs[0])
		require.Len(t, got.GPUs, (i+1)%65)
	}
}

// TestMalformedWindow: a window that cannot be read stops the repairs that it may cover.
func TestMalformedWindow(t *testing.T) {
	t.Parallel()
	p := armed()
	p.Windows = []recovery.Window{{Weekly: &recovery.Weekly{Days: []string{"mon"}, At: "noon", For: recovery.Duration(hour)}, Reason: "power tests"}}
	assert.Equal(t, recovery.BrakeWindow, recovery.Decide(p, fleet(now(), 100, failing(1, ago(hour)))).Decisions[0].Brake)
}

// TestNullList: a list that is null is an empty one, so that both have one digest.
func TestNullList(t *testing.T) {
	t.Parallel()
	null, err := recovery.DecodePolicy([]byte(`{"replace_classes": null, "thresholds": null}`))
	require.NoError(t, err)
	empty, err := recovery.DecodePolicy([]byte(`{"replace_classes": [], "thresholds": {}}`))
	require.NoError(t, err)
	assert.Equal(t, empty, null)
	assert.Equal(t, empty.Digest(), null.Digest())
}

// TestSilentNodeWithoutPower: no one can restart a silent node whose provider has no power over it, and a
// quarantine would only keep it out of service after its return.
func TestSilentNodeWithoutPower(t *testing.T) {
	t.Parallel()
	n := with(node(1), condition(health.CheckerHeartbeat, "Silent", health.RepairReboot, ago(hour)))
	n.State = "offline"
	d := recovery.Decide(armed(), fleet(now(), 100, n)).Decisions[0]
	assert.False(t, d.Acts())
	assert.Contains(t, d.Why, "no rung of its ladder does that on this node: repair it by hand")
	other := with(n, condition("node_ready", "NodeStatusUnknown", health.RepairReboot, ago(2*hour)))
	assert.False(t, recovery.Decide(armed(), fleet(now(), 100, other)).Decisions[0].Acts(), "nor for what others report of it")
	p := armed()
	p.DisabledCheckers = []string{health.CheckerHeartbeat}
	assert.False(t, recovery.Decide(p, fleet(now(), 100, other)).Decisions[0].Acts(), "it is silent nevertheless")

	n.Creates = true
	d = recovery.Decide(armed(), fleet(now(), 100, n)).Decisions[0]
	assert.True(t, d.Acts())
	assert.Equal(t, recovery.RungReboot, d.Rung)

	n.Creates = false
	p = armed()
	p.Repairs = []recovery.Override{{Match: recovery.Match{Checkers: []string{health.CheckerHeartbeat}}, Repair: health.RepairRMA}}
	assert.Equal(t, recovery.RungQuarantine, recovery.Decide(p, fleet(now(), 100, n)).Decisions[0].Rung, "the policy asks for it")
}
