package recovery_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

const hour = time.Hour

func ago(d time.Duration) time.Time { return now().Add(-d) }

// attempt returns a repair of a node that ended.
func attempt(n recovery.Node, rung recovery.Rung, ended time.Time, outcome string) recovery.Attempt {
	a := recovery.Attempt{
		OperationID: "op-" + ended.Format("0102150405") + "-" + string(rung), NodeID: n.NodeID, SKU: n.SKU, Rung: rung,
		StartedAt: ended.Add(-10 * time.Minute), EndedAt: ended, Outcome: outcome,
	}
	for _, c := range n.Conditions {
		if c.Status == health.Unhealthy {
			a.Fault = recovery.Fault{Checker: c.Checker, Component: c.Component, Reason: c.Reason, Repair: c.Repair, Since: c.Since}
		}
	}
	return a
}

// TestDecideOneNode has one row for each brake and each way through the ladder.
func TestDecideOneNode(t *testing.T) {
	t.Parallel()
	type want struct {
		brake recovery.Brake
		rungs []recovery.Rung
		phase health.Phase
		why   string // a part
	}
	reboot := []recovery.Rung{recovery.RungReboot, recovery.RungQuarantine}
	all := []recovery.Rung{recovery.RungResetGPU, recovery.RungReboot, recovery.RungQuarantine}
	fault := failing(1, ago(hour))
	gpu := func(repair health.Repair) recovery.Node {
		c := condition("gpu_xid", "Xid", repair, ago(hour))
		c.Component, c.Code = "GPU-1", 79
		return with(node(1), c)
	}
	change := func(n recovery.Node, f func(*recovery.Node)) recovery.Node { n = with(n); f(&n); return n }
	tried := func(n recovery.Node, rung recovery.Rung, ended time.Time, outcome string) recovery.Node {
		n.Attempts = append(n.Attempts, attempt(n, rung, ended, outcome))
		return n
	}
	for _, c := range []struct {
		name   string
		node   recovery.Node
		policy func(*recovery.Policy)
		want   want
	}{
		{"a fault that needs a reboot", fault, nil, want{"", reboot, health.PhaseWaitingReboot, "for 1h, seen by 10 checks: start with rung reboot"}},
		{"a fault that needs a reset", gpu(health.RepairResetGPU), nil, want{"", all, health.PhaseUnhealthy, "gpu_xid Xid 79 of GPU-1"}},
		{"a fault that needs an RMA", gpu(health.RepairRMA), nil, want{"", []recovery.Rung{recovery.RungQuarantine}, health.PhaseUnhealthy, ""}},
		{"a name that the node chose", change(gpu(health.RepairReboot), func(n *recovery.Node) { n.Conditions[1].Component = "x`; rm -rf /" }), nil,
			want{"", reboot, health.PhaseWaitingReboot, "of `x'; rm -rf /`"}},
		{"a fault of the workload", gpu(health.RepairNone), nil, want{"", nil, health.PhaseHealthy, "needs no repair"}},
		{"an unknown code", gpu(health.RepairObserve), nil, want{"", nil, health.PhaseHealthy, "needs no repair"}},
		{"a repair that does not exist", gpu("explode"), nil, want{"", nil, health.PhaseHealthy, "needs no repair"}},
		{"a service", gpu(health.RepairRestart), nil, want{"", nil, health.PhaseUnhealthy, "no rung of its ladder does that"}},
		{"an override of the repair", gpu(health.RepairResetGPU), func(p *recovery.Policy) {
			p.Repairs = []recovery.Override{{Match: recovery.Match{Checkers: []string{"gpu_xid"}, Codes: []int{79}}, Repair: health.RepairReboot}}
		}, want{"", reboot, health.PhaseWaitingReboot, ""}},
		{"an override that ignores", gpu(health.RepairResetGPU), func(p *recovery.Policy) {
			p.Repairs = []recovery.Override{{Match: recovery.Match{Checkers: []string{"gpu_xid"}}, Repair: health.RepairNone}}
		}, want{"", nil, health.PhaseHealthy, ""}},
		{"a disabled checker", fault, func(p *recovery.Policy) { p.DisabledCheckers = []string{"node_ready"} }, want{"", nil, health.PhaseHealthy, ""}},
		{"no ladder", fault, func(p *recovery.Policy) { p.Ladders = nil }, want{"", nil, health.PhaseUnhealthy, "no ladder of the policy matches"}},
		{"the first ladder that matches", fault, func(p *recovery.Policy) {
			no := false
			p.Ladders = append([]recovery.Ladder{
				{Match: recovery.Match{GPU: &no}, Rungs: []recovery.Rung{recovery.RungReplace}},
				{Match: recovery.Match{SKUs: []string{hgx}, Reasons: []string{"KubeletNotReady"}}, Rungs: []recovery.Rung{recovery.RungReboot}},
			}, p.Ladders...)
		}, want{"", []recovery.Rung{recovery.RungReboot}, health.PhaseWaitingReboot, ""}},

		{"no replacement of a GPU node", change(gpu(health.RepairReplace), func(n *recovery.Node) { n.Creates, n.Class = true, "ephemeral" }), nil,
			want{"", []recovery.Rung{recovery.RungQuarantine}, health.PhaseUnhealthy, ""}},
		{"replacement by the class policy", change(gpu(health.RepairReplace), func(n *recovery.Node) { n.Creates, n.Class = true, "ephemeral" }),
			func(p *recovery.Policy) { p.GPUReplaceClasses = []string{"ephemeral"} },
			want{"", []recovery.Rung{recovery.RungReplace, recovery.RungQuarantine}, health.PhaseDrain, ""}},
		{"a provider that creates none", change(gpu(health.RepairReplace), func(n *recovery.Node) { n.Class = "ephemeral" }),
			func(p *recovery.Policy) { p.GPUReplaceClasses = []string{"ephemeral"} },
			want{"", []recovery.Rung{recovery.RungQuarantine}, health.PhaseUnhealthy, ""}},
		{"a node without GPUs", change(fault, func(n *recovery.Node) { n.GPUs, n.Creates, n.Class = 0, true, "spot" }), nil,
			want{"", []recovery.Rung{recovery.RungReboot, recovery.RungReplace, recovery.RungQuarantine}, health.PhaseWaitingReboot, ""}},

		{"monitor mode", fault, func(p *recovery.Policy) { p.Mode = recovery.ModeMonitor }, want{recovery.BrakeMonitor, reboot, health.PhaseUnhealthy, "an armed policy would start with rung reboot"}},
		{"a mode that does not exist", fault, func(p *recovery.Policy) { p.Mode = "on" }, want{recovery.BrakeMonitor, reboot, health.PhaseUnhealthy, ""}},
		{"held by an operator", change(fault, func(n *recovery.Node) { n.Held = "cable swap" }), nil, want{recovery.BrakeHeld, nil, health.PhaseUnhealthy, "the node is held: cable swap"}},
		{"draining", change(fault, func(n *recovery.Node) { n.State = "draining" }), nil, want{recovery.BrakeHeld, nil, health.PhaseUnhealthy, "in state draining"}},
		{"boot grace", change(fault, func(n *recovery.Node) { n.BootedAt = ago(time.Minute) }), nil, want{recovery.BrakeBootGrace, nil, health.PhaseUnhealthy, "booted 1m ago, and the grace is 15m"}},
		{"a window", fault, func(p *recovery.Policy) {
			p.Windows = []recovery.Window{{Weekly: &recovery.Weekly{Days: []string{"mon"}, At: "11:30", For: recovery.Duration(hour)}, Reason: "power test"}}
		}, want{recovery.BrakeWindow, nil, health.PhaseUnhealthy, "power test"}},
		{"too young", failing(1, ago(time.Minute)), nil, want{recovery.BrakeThreshold, nil, health.PhaseUnhealthy, "for 1m, and its threshold is 5m"}},
		{"a clock that is ahead", failing(1, now().Add(hour)), nil, want{recovery.BrakeThreshold, nil, health.PhaseUnhealthy, "for 0s"}},
		{"no time", failing(1, time.Time{}), nil, want{recovery.BrakeThreshold, nil, health.PhaseUnhealthy, "for 0s"}},
		{"seen once", change(fault, func(n *recovery.Node) { n.Conditions[1].Samples = 1 }), nil, want{recovery.BrakeSamples, nil, health.PhaseUnhealthy, "1 of 3 checks"}},
		{"seen twice", change(fault, func(n *recovery.Node) { n.Conditions[1].Samples = 2 }), nil, want{recovery.BrakeSamples, nil, health.PhaseUnhealthy, "2 of 3 checks"}},
		{"seen three times", change(fault, func(n *recovery.Node) { n.Conditions[1].Samples = 3 }), nil, want{"", reboot, health.PhaseWaitingReboot, ""}},
		{"the end of the boot grace", change(fault, func(n *recovery.Node) { n.BootedAt = ago(15 * time.Minute) }), nil, want{"", reboot, health.PhaseWaitingReboot, ""}},
		{"an approval", fault, func(p *recovery.Policy) { p.Approvals = []recovery.Rung{recovery.RungReboot} },
			want{recovery.BrakeApproval, reboot, health.PhaseUnhealthy, "gpuaas node recover gpu-0001 --rung reboot,quarantine"}},

		{"cool-down", tried(fault, recovery.RungReboot, ago(5*time.Minute), "not_cured"), nil, want{recovery.BrakeCooldown, nil, health.PhaseUnhealthy, "ended 5m ago, and the cool-down is 30m"}},
		{"cool-down after the second of two repairs", tried(tried(gpu(health.RepairResetGPU), recovery.RungResetGPU, ago(2*hour), "failed"), recovery.RungReboot, ago(5*time.Minute), "failed"), nil,
			want{recovery.BrakeCooldown, nil, health.PhaseUnhealthy, "ended 5m ago"}},
		{"the end of the cool-down", tried(fault, recovery.RungReboot, ago(30*time.Minute), "not_cured"), nil,
			want{"", []recovery.Rung{recovery.RungQuarantine}, health.PhaseUnhealthy, ""}},
		{"still there after the reboot", tried(fault, recovery.RungReboot, ago(40*time.Minute), "not_cured"), nil,
			want{"", []recovery.Rung{recovery.RungQuarantine}, health.PhaseUnhealthy, ""}},
		{"a fault that began during the reboot and is still there", tried(failing(1, ago(45*time.Minute)), recovery.RungReboot, ago(40*time.Minute), "not_cured"), nil,
			want{"", []recovery.Rung{recovery.RungQuarantine}, health.PhaseUnhealthy, ""}},
		{"a rung that could not be done", tried(fault, recovery.RungReboot, ago(40*time.Minute), "failed"), nil,
			want{"", []recovery.Rung{recovery.RungQuarantine}, health.PhaseUnhealthy, ""}},
		{"an unknown outcome", tried(fault, recovery.RungReboot, ago(40*time.Minute), "unknown"), nil,
			want{"", []recovery.Rung{recovery.RungQuarantine}, health.PhaseUnhealthy, ""}},
		{"a rung that was not begun", tried(fault, recovery.RungReboot, ago(40*time.Minute), "not_begun"), nil, want{"", reboot, health.PhaseWaitingReboot, ""}},
		{"cool-down after a canceled repair", tried(fault, recovery.RungReboot, ago(5*time.Minute), "not_begun"), nil, want{recovery.BrakeCooldown, nil, health.PhaseUnhealthy, ""}},
		{"a new fault after the cure", tried(fault, recovery.RungReboot, ago(2*hour), "cured"), nil, want{"", reboot, health.PhaseWaitingReboot, ""}},
		{"every rung tried", tried(tried(fault, recovery.RungReboot, ago(50*time.Minute), "not_cured"), recovery.RungQuarantine, ago(45*time.Minute), "not_cured"), nil,
			want{"", nil, health.PhaseUnhealthy, "every rung was tried (reboot, quarantine)"}},
		{"a reset of another GPU", change(gpu(health.RepairResetGPU), func(n *recovery.Node) {
			other := attempt(*n, recovery.RungResetGPU, ago(40*time.Minute), "not_cured")
			other.Fault.Component = "GPU-2"
			n.Attempts = []recovery.Attempt{other}
		}), nil, want{"", all, health.PhaseUnhealthy, ""}},
		{"a reboot for another fault", change(gpu(health.RepairResetGPU), func(n *recovery.Node) {
			other := attempt(*n, recovery.RungReboot, ago(35*time.Minute), "cured")
			other.Fault.Checker = "node_ready"
			n.Attempts = []recovery.Attempt{other}
		}), nil, want{"", []recovery.Rung{recovery.RungQuarantine}, health.PhaseUnhealthy, ""}},
		{"another fault that began during the reboot", change(failing(1, ago(45*time.Minute)), func(n *recovery.Node) {
			other := attempt(*n, recovery.RungReboot, ago(40*time.Minute), "cured")
			other.Fault.Checker = "gpu_xid"
			n.Attempts = []recovery.Attempt{other}
		}), nil, want{"", reboot, health.PhaseWaitingReboot, ""}},
		{"a reboot for another fault that failed", change(fault, func(n *recovery.Node) {
			other := attempt(*n, recovery.RungReboot, ago(40*time.Minute), "failed")
			other.Fault.Checker = "gpu_xid"
			n.Attempts = []recovery.Attempt{other}
		}), nil, want{"", reboot, health.PhaseWaitingReboot, ""}},
		{"a worse fault that is too young", with(fault, condition("gpu_ecc", "Uncorrectable", health.RepairRMA, now()), condition("gpu_fan", "Stopped", health.RepairRMA, ago(time.Minute))),
			func(p *recovery.Policy) { p.Thresholds["gpu_ecc"] = p.Threshold }, want{"", reboot, health.PhaseWaitingReboot, ""}},
		{"a worse fault", with(fault, condition("gpu_fan", "Stopped", health.RepairRMA, ago(30*time.Minute))), nil,
			want{"", []recovery.Rung{recovery.RungQuarantine}, health.PhaseUnhealthy, "gpu_fan Stopped"}},
		{"time that was unknown", change(failing(1, ago(7*time.Minute)), func(n *recovery.Node) { n.Conditions[1].UnknownSeconds = 180 }), nil,
			want{recovery.BrakeThreshold, nil, health.PhaseUnhealthy, "for 4m, and its threshold is 5m"}},
		{"flapping", func() recovery.Node {
			n := fault
			for i := range 5 {
				n.Attempts = append(n.Attempts, attempt(n, recovery.RungReboot, ago(time.Duration(2+20*i)*hour), "cured"))
			}
			return n
		}(), nil, want{recovery.BrakeFlapping, nil, health.PhaseUnhealthy, "5 repairs within 168h did not last"}},
		{"repairs with several rungs, one that was not begun and an old one are too few", func() recovery.Node {
			n := fault
			for i := range 4 {
				for _, rung := range []recovery.Rung{recovery.RungResetGPU, recovery.RungReboot} {
					a := attempt(n, rung, ago(time.Duration(2+20*i)*hour), "cured")
					a.OperationID = fmt.Sprintf("op-%d", i)
					n.Attempts = append(n.Attempts, a)
				}
			}
			n.Attempts = append(n.Attempts, attempt(n, recovery.RungReboot, ago(90*hour), "not_begun"), attempt(n, recovery.RungReboot, ago(200*hour), "cured"))
			return n
		}(), nil, want{"", reboot, health.PhaseWaitingReboot, ""}},
		{"a repair that runs", change(fault, func(n *recovery.Node) {
			n.Attempts = []recovery.Attempt{{OperationID: "op-1", Rung: recovery.RungReboot, StartedAt: ago(time.Minute)}}
		}), nil, want{recovery.BrakeHeld, nil, health.PhaseWaitingReboot, "operation op-1 repairs the node"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := armed()
			if c.policy != nil {
				c.policy(&p)
			}
			got := recovery.Decide(p, fleet(now(), 100, c.node))
			require.Len(t, got.Decisions, 1)
			d := got.Decisions[0]
			assert.Equal(t, c.want.brake, d.Brake, "%s", d.Why)
			assert.Equal(t, c.want.rungs, d.Request.Rungs)
			assert.Equal(t, c.want.phase, d.Phase)
			assert.Contains(t, d.Why, c.want.why)
			assert.Equal(t, c.want.brake == "" && c.want.rungs != nil, d.Acts())
		})
	}
}

// TestThresholdsAreSeparate is the case of an agent that timed all checkers from the node's first
// fault: a long disk pressure and one flap of Ready rebooted the node.
func TestThresholdsAreSeparate(t *testing.T) {
	t.Parallel()
	n := with(failing(1, ago(10*time.Second)), condition("disk_pressure", "KubeletHasDiskPressure", health.RepairReboot, ago(20*time.Minute)))
	d := recovery.Decide(armed(), fleet(now(), 100, n)).Decisions[0]
	assert.Equal(t, recovery.BrakeThreshold, d.Brake, d.Why)
}

// TestHealing shows that only evidence heals a node.
func TestHealing(t *testing.T) {
	t.Parallel()
	unhealthy := node(1)
	unhealthy.Phase = health.PhaseUnhealthy
	unknown := with(unhealthy, health.Condition{Checker: "node_ready", Status: health.Unknown, Reason: "Timeout"})
	interrupted := with(node(1), health.Condition{Checker: "node_ready", Status: health.Unknown, FaultSince: ago(hour)})
	silent := unhealthy
	silent.Conditions = nil
	for _, c := range []struct {
		name string
		node recovery.Node
		want health.Phase
	}{
		{"healthy", unhealthy, health.PhaseHealthy},
		{"a check that never ends", unknown, health.PhaseHealthy},
		{"a fault that became unknown", interrupted, health.PhaseUnhealthy},
		{"nothing reported", silent, health.PhaseUnhealthy},
		{"never checked", recovery.Node{NodeID: "id", Host: "h", State: "active"}, health.PhaseUnknown},
	} {
		d := recovery.Decide(armed(), fleet(now(), 100, c.node)).Decisions[0]
		assert.Equal(t, c.want, d.Phase, "%s: %s", c.name, d.Why)
		assert.False(t, d.Acts(), c.name)
		assert.NotEmpty(t, d.Why, c.name)
	}
}

// TestResetNamesGPUs checks which GPUs a reset concerns.
func TestResetNamesGPUs(t *testing.T) {
	t.Parallel()
	on := func(component string) health.Condition {
		c := condition("gpu_xid", "Xid", health.RepairResetGPU, ago(hour))
		c.Component = component
		return c
	}
	gpus := func(c ...health.Condition) []string {
		return recovery.Decide(armed(), fleet(now(), 100, with(node(1), c...))).Decisions[0].Request.GPUs
	}
	assert.Equal(t, []string{"GPU-1", "GPU-2"}, gpus(on("GPU-2"), on("GPU-1"), on("GPU-1")))
	assert.Empty(t, gpus(on("GPU-2"), on("")), "a fault that names no GPU needs a reset of all")
	assert.Empty(t, gpus(on("GPU-2; reboot")), "the node chooses the name")
	assert.Empty(t, gpus(on("GPU-2"), on("nvswitch-0")), "a fault of another component needs a reset of all")
}

// TestRepairableStates compares the states that the package names with those of the lifecycle.
func TestRepairableStates(t *testing.T) {
	t.Parallel()
	var states []lifecycle.NodeState
	for _, s := range lifecycle.NodeStates() {
		n := failing(1, ago(hour))
		n.State = string(s)
		if recovery.Decide(armed(), fleet(now(), 100, n)).Decisions[0].Acts() {
			states = append(states, s)
		}
	}
	assert.Equal(t, []lifecycle.NodeState{lifecycle.NodeActive, lifecycle.NodeOffline, lifecycle.NodeQuarantined}, states)
}
