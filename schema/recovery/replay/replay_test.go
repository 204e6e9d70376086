package replay_test

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/replay"
)

func start() time.Time { return time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC) }

func after(d time.Duration) time.Time { return start().Add(d) }

func armed() recovery.Policy {
	p := recovery.Default()
	p.Mode = recovery.ModeArmed
	return p
}

// facts returns an installation of 200 nodes in racks of 20, without signals.
func facts() replay.Facts {
	f := replay.Facts{Sizes: []recovery.Size{
		{Scope: recovery.ScopeFleet, Nodes: 200, GPUNodes: 200},
		{Scope: recovery.ScopeRegion, Key: "us-1", Nodes: 200, GPUNodes: 200},
		{Scope: recovery.ScopeSKU, Key: "h100", Nodes: 200, GPUNodes: 200},
	}}
	for i := range 200 {
		rack := fmt.Sprintf("r%d", i/20)
		f.Nodes = append(f.Nodes, recovery.Node{
			NodeID: id(i), Host: fmt.Sprintf("gpu-%03d", i), SKU: "h100", Region: "us-1", Rack: rack, Class: "persistent", GPUs: 8,
		})
		if i%20 == 0 {
			f.Sizes = append(f.Sizes, recovery.Size{Scope: recovery.ScopeRack, Key: rack, Nodes: 20, GPUNodes: 20})
		}
	}
	return f
}

func id(i int) string { return fmt.Sprintf("id-%03d", i) }

// signal returns a change of the condition node_ready.
func signal(i int, at time.Duration, status health.Status) health.Signal {
	s := health.Signal{
		SignalID: fmt.Sprintf("%d-%s", i, at), Type: health.ConditionSignal("node_ready"), NodeID: id(i), At: after(at),
		Status: status, Reason: "KubeletReady",
	}
	if status == health.Unhealthy {
		s.Reason, s.Repair = "KubeletNotReady", health.RepairReboot
	}
	return s
}

func count(d replay.Diff, kind, name string) [2]int {
	for _, c := range d.Counts {
		if c.Kind == kind && c.Name == name {
			return [2]int{c.Old, c.New}
		}
	}
	return [2]int{}
}

// TestSamePolicy has no differences.
func TestSamePolicy(t *testing.T) {
	t.Parallel()
	f := facts()
	for i := range 10 {
		f.Signals = append(f.Signals, signal(i*20, time.Duration(i)*time.Hour, health.Unhealthy))
	}
	f.Until = after(24 * time.Hour)
	d := replay.Run(armed(), armed(), replay.Rounds(f, time.Minute), replay.Options{})
	assert.Empty(t, d.Changes)
	assert.Equal(t, [2]int{10, 10}, count(d, replay.CountAction, "reboot"))
	assert.Equal(t, [2]int{10, 10}, count(d, replay.CountSKU, "h100"))
	assert.Equal(t, [2]int{10, 10}, count(d, replay.CountFault, "node_ready KubeletNotReady"))
	assert.Equal(t, [2]int{10, 10}, count(d, replay.CountNodes, "repaired"))
	assert.Equal(t, start(), d.From)
}

// TestArming shows what a policy in monitor mode would do.
func TestArming(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Signals = []health.Signal{signal(1, 0, health.Unhealthy), signal(1, time.Hour, health.Healthy), signal(2, 2*time.Hour, health.Unhealthy), signal(2, 2*time.Hour+time.Minute, health.Healthy)}
	d := replay.Run(recovery.Default(), armed(), replay.Rounds(f, time.Minute), replay.Options{})
	require.NotEmpty(t, d.Changes)
	first := d.Changes[0]
	assert.Equal(t, after(5*time.Minute), first.At, "after the threshold of the checker")
	assert.Equal(t, "gpu-001", first.Host)
	assert.Equal(t, recovery.BrakeMonitor, first.Old.Brake)
	assert.Equal(t, recovery.RungReboot, first.New.Rung)
	assert.Empty(t, first.New.Brake)
	assert.Contains(t, first.New.Why, "start with rung reboot")
	for _, c := range d.Changes {
		assert.Equal(t, "gpu-001", c.Host, "a fault of a minute is repaired by neither")
	}
	assert.Equal(t, [2]int{0, 1}, count(d, replay.CountAction, "reboot"))
	assert.Equal(t, [2]int{1, 0}, count(d, replay.CountBrake, "monitor"))
	assert.Equal(t, []replay.Peak{
		{Scope: recovery.ScopeFleet, New: 1}, {Scope: recovery.ScopeRack, Key: "r0", New: 1},
		{Scope: recovery.ScopeRegion, Key: "us-1", New: 1}, {Scope: recovery.ScopeSKU, Key: "h100", New: 1},
	}, d.Peaks)
}

// TestBudgetChange shows which nodes a smaller budget delays, and the most repairs at once.
func TestBudgetChange(t *testing.T) {
	t.Parallel()
	f := facts()
	for i := range 6 {
		f.Signals = append(f.Signals, signal(i*20, time.Duration(i)*2*time.Minute, health.Unhealthy))
	}
	f.Until = after(6 * time.Hour)
	one := armed()
	one.Budgets = []recovery.Budget{{Scope: recovery.ScopeFleet, Count: 1, Percent: 10}}
	d := replay.Run(armed(), one, replay.Rounds(f, time.Minute), replay.Options{})
	assert.Equal(t, [2]int{6, 6}, count(d, replay.CountAction, "reboot"), "each node is repaired in the end")
	assert.Equal(t, replay.Peak{Scope: recovery.ScopeFleet, Old: 3, New: 1}, d.Peaks[0])
	assert.Equal(t, 5, count(d, replay.CountBrake, "budget")[1])
}

// TestNotCured climbs the ladder under the worse assumption.
func TestNotCured(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Signals = []health.Signal{signal(1, 0, health.Unhealthy)}
	f.Until = after(6 * time.Hour)
	rounds := func() iter.Seq[recovery.Fleet] { return replay.Rounds(f, time.Minute) }
	longer := armed()
	longer.Thresholds = map[string]recovery.Duration{"node_ready": recovery.Duration(30 * time.Minute)}
	d := replay.Run(armed(), longer, rounds(), replay.Options{NotCured: true})
	assert.Equal(t, [2]int{1, 1}, count(d, replay.CountAction, "reboot"), "one operation climbs all rungs, and none is repeated")
	assert.Equal(t, after(5*time.Minute), d.Changes[0].At)
	assert.Equal(t, after(6*time.Hour), d.To)
	i := slices.IndexFunc(d.Changes, func(c replay.Change) bool { return c.At.Equal(after(30 * time.Minute)) })
	require.GreaterOrEqual(t, i, 0, "%+v", d.Changes)
	assert.Equal(t, recovery.BrakeHeld, d.Changes[i].Old.Brake, "the reboot took 20 minutes, the quarantine 5, and then the node is out of service")
	assert.Equal(t, recovery.RungReboot, d.Changes[i].New.Rung)
}

// TestFaultThatReturns repairs a node again if the record has a new fault after the assumed cure.
func TestFaultThatReturns(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Signals = []health.Signal{signal(1, 0, health.Unhealthy), signal(1, time.Hour, health.Healthy), signal(1, 2*time.Hour, health.Unhealthy)}
	f.Until = after(4 * time.Hour)
	d := replay.Run(armed(), armed(), replay.Rounds(f, time.Minute), replay.Options{})
	assert.Equal(t, [2]int{2, 2}, count(d, replay.CountAction, "reboot"))
	assert.Equal(t, [2]int{1, 1}, count(d, replay.CountNodes, "repaired"))
}

// TestRecordedRepair uses the recorded effect where the policy starts the repair that really ran: it
// was slow, and did not help.
func TestRecordedRepair(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Signals = []health.Signal{signal(1, 0, health.Unhealthy)}
	f.Until = after(4 * time.Hour)
	f.Nodes[1].Attempts = []recovery.Attempt{{
		OperationID: "op-1", NodeID: id(1), Rung: recovery.RungReboot, StartedAt: after(6 * time.Minute), EndedAt: after(90 * time.Minute),
		Outcome: recovery.OutcomeNotCured, Fault: recovery.Fault{Checker: "node_ready", Reason: "KubeletNotReady", Since: start()},
	}}
	later := armed()
	later.Thresholds = map[string]recovery.Duration{"node_ready": recovery.Duration(time.Hour)}
	d := replay.Run(armed(), later, replay.Rounds(f, time.Minute), replay.Options{})
	assert.Equal(t, [2]int{1, 1}, count(d, replay.CountAction, "reboot"))
	assert.Equal(t, []replay.Peak{{Scope: recovery.ScopeFleet, Old: 1}, {Scope: recovery.ScopeRack, Key: "r0", Old: 1},
		{Scope: recovery.ScopeRegion, Key: "us-1", Old: 1}, {Scope: recovery.ScopeSKU, Key: "h100", Old: 1}}, d.Out,
		"the recorded reboot left the fault; the assumed one cures it")
}

// TestMaxOut: nodes whose repairs cured nothing count for max_out until their faults end, and then the next
// ones are repaired.
func TestMaxOut(t *testing.T) {
	t.Parallel()
	f := facts()
	for i := range 6 {
		f.Signals = append(f.Signals, signal(i*20, time.Duration(i)*2*time.Hour, health.Unhealthy))
	}
	f.Signals = append(f.Signals, signal(0, 13*time.Hour, health.Healthy)) // a person repaired it
	f.Until = after(18 * time.Hour)
	limited := armed()
	limited.MaxOut = []recovery.Budget{{Scope: recovery.ScopeFleet, Count: 3, Percent: 100}}
	d := replay.Run(armed(), limited, replay.Rounds(f, time.Minute), replay.Options{NotCured: true})
	assert.Equal(t, [2]int{6, 4}, count(d, replay.CountAction, "reboot"))
	assert.Equal(t, [2]int{0, 3}, count(d, replay.CountBrake, "budget"))
	assert.Equal(t, replay.Peak{Scope: recovery.ScopeFleet, Old: 6, New: 3}, d.Out[0])
	i := slices.IndexFunc(d.Changes, func(c replay.Change) bool { return c.Host == "gpu-060" && c.New.Rung != "" && c.New.Brake == "" })
	require.GreaterOrEqual(t, i, 0)
	assert.Equal(t, after(13*time.Hour), d.Changes[i].At, "when the first node is in service again")
}

// TestLeftOut: which recorded repairs leave their node out of service.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	attempt := recovery.Attempt{OperationID: "op-1", NodeID: id(1), Rung: recovery.RungReboot, StartedAt: after(-2 * time.Hour), EndedAt: after(-time.Hour),
		Outcome: recovery.OutcomeNotCured, Fault: recovery.Fault{Checker: "node_ready", Reason: "KubeletNotReady"}}
	fault := health.Condition{Checker: "node_ready", Status: health.Unhealthy, Reason: "KubeletNotReady", Repair: health.RepairReboot, Since: after(-3 * time.Hour), Samples: 20}
	for name, c := range map[string]struct {
		change func(n *recovery.Node)
		out    int
	}{
		"not cured":                {func(*recovery.Node) {}, 1},
		"failed":                   {func(n *recovery.Node) { n.Attempts[0].Outcome = recovery.OutcomeFailed }, 1},
		"a rung that was canceled": {func(n *recovery.Node) { n.Attempts[0].Outcome = recovery.OutcomeUnknown }, 0},
		"not begun":                {func(n *recovery.Node) { n.Attempts[0].Outcome = recovery.OutcomeNotBegun }, 0},
		"cured":                    {func(n *recovery.Node) { n.Attempts[0].Outcome = recovery.OutcomeCured }, 0},
		"it runs":                  {func(n *recovery.Node) { n.Attempts[0].EndedAt, n.Attempts[0].Outcome = time.Time{}, "" }, 0},
		"a later one cured": {func(n *recovery.Node) {
			later := n.Attempts[0]
			later.OperationID, later.StartedAt, later.EndedAt, later.Outcome = "op-2", after(-50*time.Minute), after(-40*time.Minute), recovery.OutcomeCured
			n.Attempts = []recovery.Attempt{later, n.Attempts[0]}
		}, 0},
		"a later fault":     {func(n *recovery.Node) { n.Conditions[0].Since = after(-30 * time.Minute) }, 0},
		"another component": {func(n *recovery.Node) { n.Conditions[0].Component = "GPU-1" }, 0},
		"another checker":   {func(n *recovery.Node) { n.Conditions[0].Checker = "gpu_xid" }, 0},
		"it became unknown": {func(n *recovery.Node) {
			n.Conditions[0].Status, n.Conditions[0].FaultSince = health.Unknown, after(-3*time.Hour)
		}, 1},
		"it was never known":  {func(n *recovery.Node) { n.Conditions[0].Status = health.Unknown }, 0},
		"the fault has ended": {func(n *recovery.Node) { n.Conditions[0].Status = health.Healthy }, 0},
	} {
		f := facts()
		n := f.Nodes[1]
		n.State = "active"
		n.Conditions, n.Attempts = []health.Condition{fault}, []recovery.Attempt{attempt}
		c.change(&n)
		d := replay.Run(armed(), armed(), slices.Values([]recovery.Fleet{{At: start(), Nodes: []recovery.Node{n}, Sizes: f.Sizes}}), replay.Options{})
		got := 0
		if len(d.Out) > 0 {
			got = d.Out[0].New
		}
		assert.Equal(t, c.out, got, name)
	}
}

// TestAssumptions: a replay names the brakes that it does not simulate as they were.
func TestAssumptions(t *testing.T) {
	t.Parallel()
	d := replay.Run(armed(), armed(), replay.Rounds(facts(), time.Minute), replay.Options{})
	var brakes []recovery.Brake
	for _, a := range d.Assumed {
		brakes = append(brakes, a.Brake)
		assert.NotEmpty(t, a.Why)
	}
	assert.Equal(t, []recovery.Brake{recovery.BrakeHeld, recovery.BrakeApproval, recovery.BrakeSamples, recovery.BrakeBootGrace, recovery.BrakeBudget}, brakes)
}

// TestNowSaysNothing: the state that a node has now does not hold it in the record.
func TestNowSaysNothing(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Nodes[1].State = "draining"
	f.Signals = []health.Signal{signal(1, 0, health.Unhealthy)}
	f.Until = after(time.Hour)
	d := replay.Run(armed(), armed(), replay.Rounds(f, time.Minute), replay.Options{})
	assert.Equal(t, [2]int{1, 1}, count(d, replay.CountAction, "reboot"))
}

// TestRecordedCure does not repair again what was repaired, and returns the node.
func TestRecordedCure(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Signals = []health.Signal{signal(1, 0, health.Unhealthy), signal(1, 20*time.Minute, health.Healthy)}
	f.Until = after(2 * time.Hour)
	f.Nodes[1].Attempts = []recovery.Attempt{{
		OperationID: "op-1", NodeID: id(1), Rung: recovery.RungReboot, StartedAt: after(5 * time.Minute), EndedAt: after(21 * time.Minute),
		Outcome: recovery.OutcomeCured, Fault: recovery.Fault{Checker: "node_ready", Reason: "KubeletNotReady", Since: start()},
	}}
	d := replay.Run(armed(), recovery.Default(), replay.Rounds(f, time.Minute), replay.Options{})
	assert.Equal(t, [2]int{1, 0}, count(d, replay.CountAction, "reboot"))
	last := d.Changes[len(d.Changes)-1]
	assert.Equal(t, recovery.BrakeHeld, last.Old.Brake, "the last difference is the repair that runs")
}

// TestRecordedRounds runs a policy that would not have started the repair that runs in the record.
func TestRecordedRounds(t *testing.T) {
	t.Parallel()
	f := facts()
	n := f.Nodes[1]
	n.State, n.Held = "quarantined", "operation op-1"
	n.Conditions = []health.Condition{{Checker: "node_ready", Status: health.Unhealthy, Reason: "KubeletNotReady", Repair: health.RepairReboot, Since: after(-10 * time.Minute), Samples: 20}}
	n.Attempts = []recovery.Attempt{{OperationID: "op-1", NodeID: id(1), Rung: recovery.RungReboot, StartedAt: after(30 * time.Second)}}
	rounds := []recovery.Fleet{
		{At: start(), Sizes: f.Sizes},
		{At: after(time.Minute), Nodes: []recovery.Node{n}, Sizes: f.Sizes},
	}
	never := armed()
	never.DisabledCheckers = []string{"node_ready"}
	d := replay.Run(armed(), never, slices.Values(rounds), replay.Options{})
	assert.Equal(t, 2, d.Rounds)
	require.Len(t, d.Changes, 1)
	assert.Equal(t, recovery.RungReboot, d.Changes[0].Old.Rung)
	assert.Empty(t, d.Changes[0].Old.Brake, "the repair of the record is not the policy's until it starts one")
	assert.Empty(t, d.Changes[0].New.Rung)
}

// TestRounds checks how signals become facts.
func TestRounds(t *testing.T) {
	t.Parallel()
	f := facts()
	reason := signal(1, 10*time.Minute, health.Unhealthy)
	reason.Reason = "NodeStatusUnknown"
	unknown := signal(1, 15*time.Minute, health.Unknown)
	boot := health.Signal{Type: health.SignalBooted, NodeID: id(1), At: after(5 * time.Minute)}
	foreign := signal(7, 0, health.Unhealthy)
	foreign.NodeID = "id-of-another-installation"
	f.Nodes[3].Conditions = []health.Condition{{Checker: "gpu_fan", Status: health.Unhealthy, Reason: "FanStopped", Repair: health.RepairRMA, Since: after(-time.Hour)}}
	ended := signal(2, 25*time.Minute, health.Unknown)
	ended.Reason = "ended"
	f.Signals = []health.Signal{
		signal(1, 20*time.Minute, health.Unhealthy), unknown, boot, reason, signal(1, 0, health.Unhealthy),
		signal(1, 40*time.Minute, health.Healthy), foreign, signal(2, 0, health.Unhealthy), ended,
	}
	f.Until = after(50 * time.Minute)
	got := slices.Collect(replay.Rounds(f, 5*time.Minute))
	require.Len(t, got, 11)
	at := func(minutes int, i int) (recovery.Node, bool) {
		for _, n := range got[minutes/5].Nodes {
			if n.NodeID == id(i) {
				return n, true
			}
		}
		return recovery.Node{}, false
	}
	n, _ := at(0, 1)
	assert.True(t, n.BootedAt.IsZero())
	assert.Equal(t, []health.Condition{{Checker: "node_ready", Status: health.Unhealthy, Reason: "KubeletNotReady", Repair: health.RepairReboot, Since: start(), Samples: 1}}, n.Conditions)
	n, _ = at(10, 1)
	assert.Equal(t, after(5*time.Minute), n.BootedAt)
	assert.Equal(t, start(), n.Conditions[0].Since, "only the reason changed")
	assert.Equal(t, "NodeStatusUnknown", n.Conditions[0].Reason)
	assert.Equal(t, 21, n.Conditions[0].Samples)
	n, ok := at(15, 1)
	require.True(t, ok, "the round in which a fault ends lists the node")
	assert.Equal(t, start(), n.Conditions[0].FaultSince)
	n, _ = at(30, 1)
	assert.Equal(t, start(), n.Conditions[0].Since)
	assert.Equal(t, 25*time.Minute, n.Conditions[0].Lasted(after(30*time.Minute)))
	n, ok = at(40, 1)
	require.True(t, ok)
	assert.Equal(t, health.Healthy, n.Conditions[0].Status)
	_, ok = at(45, 1)
	assert.False(t, ok)
	n, ok = at(25, 2)
	require.True(t, ok)
	assert.Empty(t, n.Conditions)
	n, _ = at(50, 3)
	assert.Equal(t, "FanStopped", n.Conditions[0].Reason, "a fault from before the record")

	assert.Empty(t, slices.Collect(replay.Rounds(facts(), time.Minute)))
	next, stop := iter.Pull(replay.Rounds(f, 0))
	_, ok = next()
	assert.True(t, ok)
	stop()
}

// TestAtOnce counts the recorded repairs as busy.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Signals = []health.Signal{signal(1, 0, health.Unhealthy)}
	f.Nodes[2].Attempts = []recovery.Attempt{{OperationID: "op", Rung: recovery.RungReboot, StartedAt: after(time.Minute), EndedAt: after(3 * time.Minute), Outcome: "cured"}}
	f.Until = after(5 * time.Minute)
	var busy []int
	for fleet := range replay.Rounds(f, time.Minute) {
		busy = append(busy, fleet.Sizes[0].Busy)
		assert.Equal(t, fleet.Sizes[0].Busy, fleet.Sizes[3].Busy, "of its rack")
	}
	assert.Equal(t, []int{0, 1, 1, 0, 0, 0}, busy)
}

// TestAnyRecord runs random records. A policy does not differ from itself, and its repairs are within
// its budgets.
func TestAnyRecord(t *testing.T) {
	t.Parallel()
	repaired := 0
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 13))
		f := facts()
		statuses := []health.Status{health.Unhealthy, health.Unhealthy, health.Healthy, health.Unknown}
		for range 150 {
			s := signal(random.IntN(200), time.Duration(random.IntN(8*60))*time.Minute, statuses[random.IntN(len(statuses))])
			f.Signals = append(f.Signals, s)
		}
		for range 10 { // some of them really were repaired
			s := f.Signals[random.IntN(len(f.Signals))]
			n := &f.Nodes[slices.IndexFunc(f.Nodes, func(n recovery.Node) bool { return n.NodeID == s.NodeID })]
			n.Attempts = append(n.Attempts, recovery.Attempt{
				OperationID: "op-" + s.SignalID, NodeID: s.NodeID, Rung: recovery.RungReboot, StartedAt: s.At.Add(6 * time.Minute),
				EndedAt: s.At.Add(time.Duration(10+random.IntN(60)) * time.Minute), Outcome: recovery.OutcomeNotCured,
				Fault: recovery.Fault{Checker: "node_ready", Reason: "KubeletNotReady", Since: s.At},
			})
		}
		p := armed()
		p.Suspect.Percent = 100
		d := replay.Run(p, p, replay.Rounds(f, time.Minute), replay.Options{NotCured: seed%2 == 1})
		require.Empty(t, d.Changes, "seed %d", seed)
		for _, peak := range d.Peaks {
			i := slices.IndexFunc(f.Sizes, func(s recovery.Size) bool { return s.Scope == peak.Scope && s.Key == peak.Key })
			limit, limited := p.Limit(f.Sizes[i])
			require.True(t, limited)
			require.LessOrEqual(t, peak.New, limit, "seed %d: %s %s", seed, peak.Scope, peak.Key)
			require.Equal(t, peak.Old, peak.New)
		}
		repaired += count(d, replay.CountNodes, "repaired")[1]
	}
	require.Greater(t, repaired, 4)
}
