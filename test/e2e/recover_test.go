package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/deploy/dev/simulate"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	recorded "github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// recoveryTimeout exceeds the rounds that a repair needs: one that sees the fault, and one after its end.
const recoveryTimeout = 5 * time.Minute

// TestHealthRecovery: a fault of a node goes the whole way: its agent reports a condition, the control
// plane decides, and the repair drains, restarts and verifies the node.
func TestHealthRecovery(t *testing.T) {
	t.Cleanup(func() { setPolicy(t, recovery.ModeMonitor) })
	prefix := host(t, "sick")
	nodes := map[string]string{} // hosts by case
	for _, name := range []string{"cured", "sticky", "disarmed", "killed"} {
		nodes[name], _ = enrolled(t, prefix+"-"+name)
	}
	setPolicy(t, recovery.ModeMonitor, slices.Sorted(maps.Values(nodes))...)
	// The nodes of earlier tests that became silent at once may have opened it, under the policy before.
	ok(t, "recovery", "breaker", "close", "--reason", "test")
	t.Run("monitor mode only decides", func(t *testing.T) { monitored(t, nodes["cured"]) })
	ok(t, "recovery", "arm", "--yes", "--reason", "test")
	t.Run("an armed policy cures", func(t *testing.T) { cured(t, nodes["cured"]) })
	t.Run("a fault that stays ends in quarantine", func(t *testing.T) { sticky(t, nodes["sticky"]) })
	t.Run("a killed worker loses nothing", func(t *testing.T) { killedInReboot(t, nodes["killed"]) })
	ok(t, "recovery", "disarm", "--reason", "test")
	t.Run("disarm stops the next repair", func(t *testing.T) { disarmed(t, nodes["disarmed"]) })
}

// setPolicy stores a policy that repairs only the hosts, at once.
func setPolicy(t *testing.T, mode recovery.Mode, hosts ...string) {
	t.Helper()
	p := recovery.Default()
	p.Mode, p.Samples, p.BootGrace, p.Cooldown = mode, 1, 0, 0
	p.Ladders = nil
	if len(hosts) > 0 {
		p.Ladders = []recovery.Ladder{{Match: recovery.Match{Hosts: hosts}, Rungs: []recovery.Rung{recovery.RungReboot, recovery.RungQuarantine}}}
	}
	p.Budgets = []recovery.Budget{{Scope: recovery.ScopeFleet, Count: 3, Percent: 100}}
	p.Breaker.Nodes, p.Breaker.Percent, p.Suspect.Percent = 1000, 100, 100
	raw, err := json.Marshal(p)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "policy.json")
	require.NoError(t, os.WriteFile(file, raw, 0o600))
	ok(t, "recovery", "policy", "set", "--file", file, "--reason", "test")
}

// inject gives the node a fault that needs a reboot, or none.
func inject(t *testing.T, nodeHost string, f simulate.Faults) {
	t.Helper()
	raw, err := json.Marshal(f)
	require.NoError(t, err)
	file := filepath.Join(agentDir(nodeHost), "faults.json")
	require.NoError(t, os.WriteFile(file+".tmp", raw, 0o600))
	require.NoError(t, os.Rename(file+".tmp", file))
}

// kernelFault needs a reboot.
func kernelFault(isSticky bool) simulate.Faults {
	return simulate.Faults{RebootSeconds: 1, Faults: []simulate.Fault{{Sticky: isSticky, Condition: health.Condition{
		Checker: "host_kernel", Reason: "Oops", Repair: health.RepairReboot, Detail: "BUG: unable to handle page fault"}}}}
}

func faulty(n wire.NodeView) bool {
	return slices.ContainsFunc(n.Conditions, func(c signal.Condition) bool { return c.Checker == "host_kernel" && c.Status == health.Unhealthy })
}

// decisionsOf are the decisions about a node, newest first.
func decisionsOf(t *testing.T, nodeHost string) []recorded.Decision {
	t.Helper()
	return decode[recorded.Decisions](t, ok(t, "recovery", "decisions", "--node", nodeHost, "-o", "json")).Decisions
}

// repairsOf is how many repairs of the node ever began.
func repairsOf(t *testing.T, nodeHost string) int {
	t.Helper()
	return queryNumber(t, "SELECT count(*) FROM operations o JOIN nodes n USING (node_id) WHERE n.host = $1 AND o.action = 'recover'", nodeHost)
}

// attemptsOf are the recorded rungs of the node's repairs, oldest first.
func attemptsOf(t *testing.T, nodeHost string) (all []recovery.Attempt) {
	t.Helper()
	query(t, func(r pgx.Rows) {
		var a recovery.Attempt
		require.NoError(t, r.Scan(&a.Rung, &a.Outcome, &a.BootBefore, &a.BootAfter, &a.Tests))
		all = append(all, a)
	}, `SELECT a.rung, a.outcome, a.boot_before, a.boot_after, a.tests FROM recovery_attempts a JOIN nodes n USING (node_id)
		WHERE n.host = $1 ORDER BY a.started_at, a.rung DESC`, nodeHost)
	return all
}

// awaitRepair waits until a repair of the node ended and the node has the state.
func awaitRepair(t *testing.T, nodeHost string, state lifecycle.NodeState) lifecycle.Operation {
	t.Helper()
	var op lifecycle.Operation
	harness.Poll(t, func() bool {
		r := run(t, "op", "show", nodeHost, "-o", "json")
		if r.code != 0 {
			return false
		}
		op = decode[lifecycle.OperationStatus](t, r).Operation
		n := show(t, nodeHost)
		return op.Action == lifecycle.ActionRecover && op.Status.Ended() && n.State == state && n.Operation == nil
	}, recoveryTimeout, conditionEvery, "the repair ends, and the node is "+string(state))
	return op
}

// awaitRelease waits until no repair uses the budget.
func awaitRelease(t *testing.T) {
	t.Helper()
	harness.Poll(t, func() bool {
		for _, b := range decode[recorded.Status](t, ok(t, "recovery", "status", "-o", "json")).Budgets {
			if b.Busy > 0 {
				return false
			}
		}
		return true
	}, recoveryTimeout, conditionEvery, "the budget is released")
}

// monitored: in monitor mode, a fault is shown and decided about, and nothing is done.
func monitored(t *testing.T, node string) {
	t.Helper()
	inject(t, node, kernelFault(false))
	eventually(t, "the node's condition is shown", func() bool { return faulty(show(t, node)) })
	require.Contains(t, ok(t, "node", "show", node).stdout, "host_kernel")
	require.Contains(t, ok(t, "node", "signals", node).stdout, "host_kernel")
	var last recorded.Decision
	eventually(t, "a decision", func() bool {
		all := decisionsOf(t, node)
		if len(all) > 0 {
			last = all[0]
		}
		return len(all) > 0 && last.Brake == recovery.BrakeMonitor
	})
	require.Equal(t, recovery.ModeMonitor, last.Mode)
	require.Equal(t, recovery.RungReboot, last.Rung)
	require.Zero(t, repairsOf(t, node))
	require.Empty(t, attemptsOf(t, node))
	require.Equal(t, lifecycle.NodeActive, show(t, node).State)
	awaitRelease(t)
}

// cured: the fault that monitor mode only recorded is repaired, with proof.
func cured(t *testing.T, node string) {
	t.Helper()
	op := awaitRepair(t, node, lifecycle.NodeActive)
	require.Equal(t, lifecycle.OperationCompleted, op.Status)
	require.Equal(t, "repaired by the rung reboot", op.Outcome)
	states := map[string]lifecycle.PhaseState{}
	for _, p := range op.Phases {
		states[p.Name] = p.State
	}
	for _, phase := range []string{lifecycle.PhaseDrain, lifecycle.PhaseReboot, lifecycle.PhaseWaitReboot, lifecycle.PhaseVerifyReboot, lifecycle.PhaseRestoreCordon} {
		require.Equal(t, lifecycle.PhaseCompleted, states[phase], phase)
	}
	all := attemptsOf(t, node)
	require.Len(t, all, 1)
	require.Equal(t, recovery.OutcomeCured, all[0].Outcome)
	require.Equal(t, []string{node + "-boot-1", node + "-boot-2"}, []string{all[0].BootBefore, all[0].BootAfter})
	require.NotEmpty(t, all[0].Tests)
	require.False(t, show(t, node).Cordoned)
	eventually(t, "the condition ends", func() bool { return !faulty(show(t, node)) })
	awaitRelease(t)
	counted := decode[struct{ Outcomes []recovery.OutcomeCount }](t, ok(t, "recovery", "outcomes", "-o", "json")).Outcomes
	require.True(t, slices.ContainsFunc(counted, func(c recovery.OutcomeCount) bool {
		return c.Checker == "host_kernel" && c.Rung == recovery.RungReboot && c.Cured == 1
	}), "%+v", counted)
	require.Equal(t, 1, repairsOf(t, node))
}

// sticky: a fault that no reboot ends leads to quarantine with evidence, and the node returns once the
// fault is gone and an operator releases it.
func sticky(t *testing.T, node string) {
	t.Helper()
	inject(t, node, kernelFault(true))
	op := awaitRepair(t, node, lifecycle.NodeQuarantined)
	require.Contains(t, op.Outcome, "gpuaas node rma "+node)
	require.Equal(t, recovery.OutcomeNotCured, attemptsOf(t, node)[0].Outcome)
	b := decode[evidence.Bundle](t, ok(t, "node", "rma", node, "-o", "json"))
	require.Equal(t, op.OperationID, b.OperationID)
	require.Equal(t, "host_kernel", b.Fault.Checker)
	require.NotEmpty(t, b.Attempts)
	require.NotEmpty(t, b.Tasks)
	require.NotEmpty(t, b.Signals)
	require.NotZero(t, b.Audit.Last)
	awaitRelease(t)

	inject(t, node, simulate.Faults{})
	eventually(t, "the condition ends", func() bool { return !faulty(show(t, node)) })
	require.Equal(t, lifecycle.OperationCompleted, act(t, "node", "release", node).Operation.Status)
	require.Equal(t, lifecycle.NodeActive, show(t, node).State)
	require.Equal(t, 1, repairsOf(t, node))
}

// killedInReboot kills the worker while a repair waits for the next boot.
func killedInReboot(t *testing.T, node string) {
	t.Helper()
	f := kernelFault(false)
	f.RebootSeconds = 15
	inject(t, node, f)
	harness.Poll(t, func() bool { return inPhase(t, node, lifecycle.PhaseWaitReboot) }, recoveryTimeout, conditionEvery, "the repair waits for the reboot")
	kill(t, "worker", node)
	eventually(t, "the stack is up again", func() bool { return run(t, "dev", "up", "--detach", "--dir", shared.Dir).code == schema.ExitDone })
	op := awaitRepair(t, node, lifecycle.NodeActive)
	require.Equal(t, "repaired by the rung reboot", op.Outcome)
	require.Equal(t, 1, repairsOf(t, node))
	all := attemptsOf(t, node)
	require.Len(t, all, 1)
	require.Equal(t, node+"-boot-2", all[0].BootAfter, "the node restarted once")
	awaitRelease(t)
	requireOneEventPerChange(t, show(t, node).ID)
}

// disarmed: a policy that was disarmed repairs nothing.
func disarmed(t *testing.T, node string) {
	t.Helper()
	inject(t, node, kernelFault(false))
	eventually(t, "the decision is stopped", func() bool {
		all := decisionsOf(t, node)
		return len(all) > 0 && all[0].Brake == recovery.BrakeMonitor
	})
	require.Zero(t, repairsOf(t, node))
	require.Equal(t, lifecycle.NodeActive, show(t, node).State)
	inject(t, node, simulate.Faults{})
}
