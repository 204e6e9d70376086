package workflows

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
)

// repairOf sets up the repair of a node in a state.
func repairOf(t *testing.T, w *world, r recovery.Request) *bed {
	t.Helper()
	b := setup(t, lifecycle.ActionRecover, w)
	b.in.Options.Recovery = r
	return b
}

// climbing is a repair by reset and reboot, and then quarantine.
func climbing() recovery.Request {
	return recovery.Request{Rungs: []recovery.Rung{recovery.RungResetGPU, recovery.RungReboot, recovery.RungQuarantine}}
}

// unfit makes the tests of the node fail after the rungs.
func (w *world) unfit(rungs ...recovery.Rung) {
	w.on[task.NodeVerify] = func(spec activities.TaskSpec) (task.Result, error) {
		ok := !slices.ContainsFunc(rungs, func(r recovery.Rung) bool { return string(spec.Params) == string(task.VerifyParams{Rung: r}.Encode()) })
		return succeeded(task.VerifyResult{OK: ok, Tests: []recovery.Test{{Name: "ecc", OK: ok, Detail: "2 errors"}, {Name: "nccl", Detail: "skipped: not configured"}}}), nil
	}
}

// phaseStates are the states of the phases by name.
func phaseStates(op lifecycle.Operation) map[string]lifecycle.PhaseState {
	all := map[string]lifecycle.PhaseState{}
	for _, p := range op.Phases {
		all[p.Name] = p.State
	}
	return all
}

// TestVerifyBudget: the phase of the tests is longer than the tests.
func TestVerifyBudget(t *testing.T) {
	t.Parallel()
	p, _ := lifecycle.PlanOf(lifecycle.ActionRecover, lifecycle.Options{Recovery: recovery.Request{Rungs: recovery.Rungs()}})
	tests := 0
	for _, s := range p.Phases {
		if slices.Contains([]string{lifecycle.PhaseVerifyReset, lifecycle.PhaseVerifyReboot, lifecycle.PhaseVerifyReplace}, s.Name) {
			tests++
			require.Greater(t, s.Budget, task.VerifyTime, s.Name)
		}
	}
	require.Equal(t, 3, tests)
}

// TestRepairByReset: the first rung repairs the node, and the others are passed over.
func TestRepairByReset(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	st := repairOf(t, w, climbing()).run()
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
	require.Equal(t, "repaired by the rung reset_gpu", st.Operation.Outcome)
	require.Equal(t, lifecycle.NodeQuarantined, w.claimed)
	require.Equal(t, lifecycle.NodeActive, w.finished.Node)
	require.Equal(t, []string{"workload.cordon", "workload.drain", "gpu.reset", "node.verify", "workload.uncordon"}, w.enqueued)
	require.Equal(t, []string{"reset_gpu cured"}, w.outcomesOfRungs())
	require.Equal(t, lifecycle.PhaseSkipped, phaseStates(st.Operation)[lifecycle.PhaseReboot])
	require.Nil(t, w.repairs.evidence)
}

// TestRepairClimbs: a reset that does not cure the node is followed by a reboot, whose proof is the
// next boot.
func TestRepairClimbs(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.unfit(recovery.RungResetGPU)
	st := repairOf(t, w, climbing()).run()
	require.Equal(t, "repaired by the rung reboot", st.Operation.Outcome)
	require.Equal(t, []string{"reset_gpu not_cured", "reboot cured"}, w.outcomesOfRungs())
	reboot := w.repairs.attempts[1]
	require.Equal(t, "boot-1", reboot.BootBefore)
	require.Equal(t, "boot-2", reboot.BootAfter)
	require.Len(t, reboot.Tests, 2)
	require.False(t, reboot.EndedAt.IsZero())
	require.Equal(t, lifecycle.PhaseFailed, phaseStates(st.Operation)[lifecycle.PhaseVerifyReset])
	require.Contains(t, st.Operation.Phases[3].Reason, "ecc: `2 errors`")
	require.NotContains(t, st.Operation.Phases[3].Reason, "nccl")
	require.Equal(t, []string{"workload.cordon", "workload.drain", "gpu.reset", "node.verify", "node.reboot#2", "node.verify#2", "workload.uncordon#2"}, w.enqueued)
	require.Empty(t, w.parks)
}

// TestRepairEndsInQuarantine: a node that no rung repairs stays quarantined and cordoned, with evidence.
func TestRepairEndsInQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.unfit(recovery.RungResetGPU, recovery.RungReboot)
	st := repairOf(t, w, climbing()).run()
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
	require.Equal(t, lifecycle.NodeQuarantined, w.finished.Node)
	require.Equal(t, "not repaired after 2 attempts; the node stays quarantined; evidence: gpuaas node rma gpu-17", st.Operation.Outcome)
	require.Equal(t, []string{"reset_gpu not_cured", "reboot not_cured"}, w.outcomesOfRungs())
	require.Len(t, w.repairs.evidence.Attempts, 2)
	require.NotContains(t, w.enqueued, "workload.uncordon#3")
	require.Equal(t, lifecycle.PhaseSkipped, phaseStates(st.Operation)[lifecycle.PhaseRestoreCordon])
}

// TestRMA: hardware that must be repaired is quarantined without another rung, and nothing is drained.
func TestRMA(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	repairOf(t, w, recovery.Request{Fault: recovery.Fault{Checker: "gpu_xid", Repair: health.RepairRMA}}).run()
	require.Equal(t, lifecycle.NodeQuarantined, w.finished.Node)
	require.Equal(t, []string{"quarantine not_cured"}, w.outcomesOfRungs())
	require.Equal(t, []string{"workload.cordon"}, w.enqueued)
	require.Len(t, w.repairs.evidence.Attempts, 1)
}

// TestNodeThatNeverReturns: a reboot after which no boot is seen climbs to quarantine, and parks if no
// rung follows. A parked one continues when the node returns.
func TestNodeThatNeverReturns(t *testing.T) {
	t.Parallel()
	gone := func(w *world) {
		w.on[task.NodeReboot] = func(activities.TaskSpec) (task.Result, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.heartbeat = time.Hour
			return succeeded(struct{}{}), nil
		}
	}
	w := newWorld(lifecycle.NodeActive)
	gone(w)
	st := repairOf(t, w, recovery.Request{}).run()
	require.Equal(t, lifecycle.NodeQuarantined, w.finished.Node)
	require.Equal(t, []string{"reboot failed"}, w.outcomesOfRungs())
	require.Equal(t, lifecycle.PhaseFailed, phaseStates(st.Operation)[lifecycle.PhaseWaitReboot])
	require.Equal(t, lifecycle.PhaseSkipped, phaseStates(st.Operation)[lifecycle.PhaseVerifyReboot])
	require.NotNil(t, w.repairs.evidence)

	w = newWorld(lifecycle.NodeActive)
	gone(w)
	b := repairOf(t, w, recovery.Request{Rungs: []recovery.Rung{recovery.RungReboot}})
	b.env.RegisterDelayedCallback(func() {
		require.Equal(t, lifecycle.PhaseWaitReboot, b.status().Operation.Stuck.Phase)
		w.boots("boot-2")
		w.mu.Lock()
		defer w.mu.Unlock()
		w.heartbeat = 0
	}, 2*time.Hour)
	st = b.run()
	require.Equal(t, "repaired by the rung reboot", st.Operation.Outcome)
	require.Equal(t, string(schema.KindAgentSilent), w.parks[0].Reason)
	require.Empty(t, w.decisions)
}

// TestDeafNodeAPI: while the node API receives no heartbeats, the wait for a boot climbs no rung. It parks, and
// continues with the next boot once heartbeats arrive.
func TestDeafNodeAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	receives := func(deaf bool, age time.Duration) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.repairs.deaf, w.heartbeat = deaf, age
	}
	w.on[task.NodeReboot] = func(activities.TaskSpec) (task.Result, error) {
		w.boots("boot-1")
		receives(true, time.Hour)
		return succeeded(struct{}{}), nil
	}
	b := repairOf(t, w, climbing())
	w.unfit(recovery.RungResetGPU)
	b.env.RegisterDelayedCallback(func() {
		require.Equal(t, lifecycle.PhaseWaitReboot, b.status().Operation.Stuck.Phase)
		require.Equal(t, "node_api_down", b.status().Operation.Stuck.Reason)
		w.boots("boot-2")
		receives(false, 0)
	}, 5*time.Hour)
	require.Equal(t, "repaired by the rung reboot", b.run().Operation.Outcome)
	require.Equal(t, []string{"reset_gpu not_cured", "reboot cured"}, w.outcomesOfRungs())
	require.Zero(t, w.count("power reset"))
	require.Len(t, w.parks, 1)
}

// deafDuringRestart is a repair whose node API receives no heartbeats from the first restart on, for five
// hours. Only a later restart, or one by the provider, ends the node's boot.
func deafDuringRestart(t *testing.T, w *world, r recovery.Request) *bed {
	t.Helper()
	receives := func(deaf bool, age time.Duration) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.repairs.deaf, w.heartbeat = deaf, age
	}
	restarts := 0
	w.on[task.NodeReboot] = func(activities.TaskSpec) (task.Result, error) {
		if restarts++; restarts > 1 {
			w.boots("boot-2")
		} else {
			receives(true, time.Hour)
		}
		return succeeded(struct{}{}), nil
	}
	w.repairs.onPower = func(machines.Power) { w.boots("boot-2") }
	b := repairOf(t, w, r)
	b.at(5*time.Hour, func() {
		require.Equal(t, lifecycle.ReasonNodeAPIDown, b.status().Operation.Stuck.Reason)
		receives(false, 0)
	})
	return b
}

// TestOldBootAfterDeafNodeAPI: the node still runs its old boot when the node API receives heartbeats
// again. The repair continues as without the outage: the provider restarts the node, or the next rung
// follows. After the last rung, the park says what the node runs, and a retry restarts it.
func TestOldBootAfterDeafNodeAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	require.Equal(t, "repaired by the rung reboot", deafDuringRestart(t, w, recovery.Request{}).run().Operation.Outcome)
	require.Equal(t, 1, w.count("power reset"))
	require.Len(t, w.parks, 1)

	w = newWorld(lifecycle.NodeActive)
	w.instance = &lifecycle.Instance{} // no provider can
	deafDuringRestart(t, w, recovery.Request{}).run()
	require.Equal(t, lifecycle.NodeQuarantined, w.finished.Node)
	require.Equal(t, []string{"reboot failed"}, w.outcomesOfRungs())
	require.Len(t, w.parks, 1)

	w = newWorld(lifecycle.NodeActive)
	w.instance = &lifecycle.Instance{}
	b := deafDuringRestart(t, w, recovery.Request{Rungs: []recovery.Rung{recovery.RungReboot}})
	b.at(9*time.Hour, func() {
		s := b.status().Operation.Stuck
		require.Equal(t, string(schema.KindAgentSilent), s.Reason)
		require.Contains(t, s.Message, "still runs the boot that the restart should end")
		require.Contains(t, s.Next, "gpuaas op retry")
	})
	b.decideAt(10*time.Hour, lifecycle.DecisionRetry)
	require.Equal(t, "repaired by the rung reboot", b.run().Operation.Outcome)
	require.Len(t, slices.DeleteFunc(slices.Clone(w.enqueued), func(step string) bool { return !strings.HasPrefix(step, "node.reboot") }), 2)
}

// TestSilentAgent: the provider restarts a node whose agent is silent, and nothing is drained.
func TestSilentAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeOffline)
	w.heartbeat = time.Hour
	w.silent[task.WorkloadCordon] = true
	w.repairs.onPower = func(change machines.Power) {
		require.Equal(t, machines.PowerReset, change)
		w.boots("boot-2")
		w.heartbeat = 0
	}
	st := repairOf(t, w, recovery.Request{}).run()
	require.Equal(t, "repaired by the rung reboot", st.Operation.Outcome)
	require.Equal(t, lifecycle.NodeActive, w.finished.Node)
	require.Equal(t, 1, w.count("power reset"))
	require.Equal(t, lifecycle.PhaseSkipped, phaseStates(st.Operation)[lifecycle.PhaseDrain])
	require.NotContains(t, w.enqueued, "workload.drain")
	require.NotContains(t, w.enqueued, "node.reboot")
}

// TestAmbiguousReset: a reset whose result is lost is not repeated. The next boot shows what happened.
func TestAmbiguousReset(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeOffline)
	w.heartbeat = time.Hour
	w.silent[task.WorkloadCordon] = true
	w.fail["power reset"] = machines.Errorf(machines.ReasonAmbiguous, "no response")
	w.repairs.onPower = func(machines.Power) { w.boots("boot-2"); w.heartbeat = 0 }
	st := repairOf(t, w, recovery.Request{}).run()
	require.Equal(t, "repaired by the rung reboot", st.Operation.Outcome)
	require.Equal(t, 1, w.count("power reset!"))
	require.Zero(t, w.count("reset forgotten"))
}

// TestNoPower: without an agent and without power control, the rung fails.
func TestNoPower(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeOffline)
	w.heartbeat = time.Hour
	w.silent[task.WorkloadCordon] = true
	w.fail["power reset"] = machines.Errorf(machines.ReasonPerson, "reset the machine gpu-17 at its BMC")
	st := repairOf(t, w, recovery.Request{}).run()
	require.Equal(t, lifecycle.NodeQuarantined, w.finished.Node)
	require.Equal(t, []string{"reboot failed"}, w.outcomesOfRungs())
	require.Equal(t, 1, w.count("reset forgotten"))
	require.Contains(t, st.Operation.Phases[2].Reason, "at its BMC")

	w = newWorld(lifecycle.NodeOffline) // the last rung parks, and the person restarts the node
	w.heartbeat = time.Hour
	w.silent[task.WorkloadCordon] = true
	w.instance = &lifecycle.Instance{}
	b := repairOf(t, w, recovery.Request{Rungs: []recovery.Rung{recovery.RungReboot}})
	b.env.RegisterDelayedCallback(func() { w.boots("boot-2"); w.heartbeat = 0 }, time.Hour)
	b.decideAt(2*time.Hour, lifecycle.DecisionRetry)
	require.Equal(t, "repaired by the rung reboot", b.run().Operation.Outcome)
	require.Equal(t, lifecycle.ReasonNoPower, w.parks[0].Reason)
	require.NotContains(t, w.enqueued, "node.reboot", "the node has restarted already")
}

// TestAgentRefusesReboot: the provider restarts a node whose agent does not. An agent that reports
// another boot has restarted it already.
func TestAgentRefusesReboot(t *testing.T) {
	t.Parallel()
	for message, resets := range map[string]int{"systemctl failed": 1, "other_boot: the node has boot boot-2": 0} {
		w := newWorld(lifecycle.NodeActive)
		w.on[task.NodeReboot] = func(activities.TaskSpec) (task.Result, error) {
			if resets == 0 {
				w.boots("boot-2")
			}
			failed := task.Result{Status: task.Failed, Code: schema.KindTaskFailed, Message: message}
			return failed, activities.Failure(failed.Failure(), true)
		}
		w.repairs.onPower = func(machines.Power) { w.boots("boot-2") }
		require.Equal(t, "repaired by the rung reboot", repairOf(t, w, recovery.Request{}).run().Operation.Outcome, message)
		require.Equal(t, resets, w.count("power reset"), message)
	}
}

// TestAgentThatDoesNotRestart: the provider restarts a node whose agent accepted the restart and still
// runs in the old boot.
func TestAgentThatDoesNotRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.on[task.NodeReboot] = func(activities.TaskSpec) (task.Result, error) { return succeeded(struct{}{}), nil }
	w.repairs.onPower = func(machines.Power) { w.boots("boot-2") }
	require.Equal(t, "repaired by the rung reboot", repairOf(t, w, recovery.Request{}).run().Operation.Outcome)
	require.Equal(t, 1, w.count("power reset"))
	require.Equal(t, "boot-2", w.repairs.attempts[0].BootAfter)
}

// TestHeartbeatFromBeforeTheRestart: a heartbeat that the agent sent before it restarted the node does
// not have the provider restart it again.
func TestHeartbeatFromBeforeTheRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.on[task.NodeReboot] = func(activities.TaskSpec) (task.Result, error) {
		w.mu.Lock()
		w.heartbeat = 100 * time.Second
		w.mu.Unlock()
		return succeeded(struct{}{}), nil
	}
	repairOf(t, w, recovery.Request{}).run()
	require.Zero(t, w.count("power reset"))
}

// TestResetAfterTheRestart: a run that was reset to before the restart that it made does not restart the
// node again, and does not wait for yet another boot.
func TestResetAfterTheRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.repairs.attempts = []recovery.Attempt{{Rung: recovery.RungReboot, BootBefore: "boot-1", Outcome: recovery.OutcomeUnknown}}
	w.boots("boot-2")
	st := repairOf(t, w, recovery.Request{Rungs: []recovery.Rung{recovery.RungReboot, recovery.RungQuarantine}}).run()
	require.Equal(t, "repaired by the rung reboot", st.Operation.Outcome)
	require.NotContains(t, w.enqueued, "node.reboot")
	require.Equal(t, "boot-1", w.repairs.attempts[0].BootBefore)
	require.Equal(t, "boot-2", w.repairs.attempts[0].BootAfter)
}

// TestLostReboot: a reboot whose task is lost is not repeated: the next boot shows what happened.
func TestLostReboot(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.on[task.NodeReboot] = func(activities.TaskSpec) (task.Result, error) {
		w.boots("boot-2")
		return task.Result{}, activities.Failure(schema.NewError(schema.KindTaskFailed, "lost").WithReason(lifecycle.ReasonTaskLost), true)
	}
	st := repairOf(t, w, recovery.Request{}).run()
	require.Equal(t, "repaired by the rung reboot", st.Operation.Outcome)
	require.Zero(t, w.count("power reset"))
}

// TestRestartThatWasLost: a person who asks to wait again has the node restarted again if its agent still
// runs in the old boot.
func TestRestartThatWasLost(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.instance = &lifecycle.Instance{} // no provider can
	restarts := 0
	w.on[task.NodeReboot] = func(activities.TaskSpec) (task.Result, error) {
		if restarts++; restarts > 1 {
			w.boots("boot-2")
		}
		return succeeded(struct{}{}), nil
	}
	b := repairOf(t, w, recovery.Request{Rungs: []recovery.Rung{recovery.RungReboot}})
	b.decideAt(4*time.Hour, lifecycle.DecisionRetry)
	require.Equal(t, "repaired by the rung reboot", b.run().Operation.Outcome)
	require.Equal(t, 2, restarts)
	require.Equal(t, lifecycle.PhaseWaitReboot, w.parks[0].Phase)
}

// TestSkipVoidsTasks: the next rung does not begin beside the task of the one that a person skipped.
func TestSkipVoidsTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.open[task.GPUReset] = true
	b := repairOf(t, w, climbing())
	b.decideAt(time.Minute, lifecycle.DecisionSkip)
	require.Equal(t, "repaired by the rung reboot", b.run().Operation.Outcome)
	require.Equal(t, 1, w.count("void"))
	require.Equal(t, []string{"reset_gpu unknown", "reboot cured"}, w.outcomesOfRungs(), "the reset may run")
}

// TestRepairNotNeeded: a fault that ended is not repaired, and the node returns to its state.
func TestRepairNotNeeded(t *testing.T) {
	t.Parallel()
	fault := recovery.Fault{Checker: "gpu_xid", Component: "GPU-1", Reason: "Xid", Code: 79}
	w := newWorld(lifecycle.NodeActive)
	w.repairs.conditions = []health.Condition{{Checker: "gpu_xid", Status: health.Healthy}} // no GPU has a fault
	st := repairOf(t, w, recovery.Request{Fault: fault}).run()
	require.Equal(t, "not needed: the fault had ended", st.Operation.Outcome)
	require.Equal(t, lifecycle.NodeActive, w.finished.Node)
	require.Equal(t, []string{"node.probe"}, w.enqueued)
	require.Empty(t, w.repairs.attempts)

	for name, conditions := range map[string][]health.Condition{"another component": {{Checker: "gpu_xid", Component: "GPU-2", Status: health.Healthy}},
		"unknown": {{Checker: "gpu_xid", Component: "GPU-1", Status: health.Unknown}}, "none": nil} {
		w := newWorld(lifecycle.NodeActive)
		w.repairs.conditions = conditions
		require.Equal(t, "repaired by the rung reboot", repairOf(t, w, recovery.Request{Fault: fault}).run().Operation.Outcome, name)
	}

	w = newWorld(lifecycle.NodeOffline)
	silent := recovery.Fault{Checker: health.CheckerHeartbeat, Reason: "Silent", Repair: health.RepairReboot}
	require.Equal(t, "not needed: the fault had ended", repairOf(t, w, recovery.Request{Fault: silent}).run().Operation.Outcome, "the node returned")
	require.Empty(t, w.repairs.attempts)
}

// TestApproval: an approved rung waits for a person, who approves with a retry or refuses with a skip.
// The park says who asks for it.
func TestApproval(t *testing.T) {
	t.Parallel()
	for decision, asks := range map[string]string{"": "the operator that started the repair", schema.NewID(): "the policy"} {
		testApproval(t, decision, asks)
	}
}

func testApproval(t *testing.T, decision, asks string) {
	t.Helper()
	r := climbing()
	r.DecisionID = decision
	r.Approve = []recovery.Rung{recovery.RungResetGPU, recovery.RungReboot}
	w := newWorld(lifecycle.NodeActive)
	b := repairOf(t, w, r)
	b.env.RegisterDelayedCallback(func() {
		require.NotContains(t, w.enqueued, "workload.drain", "nothing ends before the approval")
	}, 30*time.Minute)
	b.decideAt(time.Hour, lifecycle.DecisionSkip)
	b.decideAt(2*time.Hour, lifecycle.DecisionRetry)
	st := b.run()
	require.Equal(t, []error{nil, nil}, b.resolved)
	require.Equal(t, "repaired by the rung reboot", st.Operation.Outcome)
	require.NotContains(t, w.enqueued, "gpu.reset")
	require.Equal(t, []string{"reboot cured"}, w.outcomesOfRungs())
	for i, phase := range []string{lifecycle.PhaseApproveReset, lifecycle.PhaseApproveReboot} {
		require.Equal(t, lifecycle.ReasonApproval, w.parks[i].Reason)
		require.Contains(t, w.parks[i].Message, asks+" asks for an approval")
		require.Contains(t, w.parks[i].Cause, asks+" asks for an approval")
		require.Equal(t, phase, w.parks[i].Phase)
		require.Equal(t, lifecycle.AttentionOperator, w.parks[i].WaitingOn)
		require.Nil(t, w.parks[i].Retrying)
	}
}

// TestRefusedRepair: if every rung is refused that ends workloads, the node is quarantined with its workloads.
func TestRefusedRepair(t *testing.T) {
	t.Parallel()
	reboot := []recovery.Rung{recovery.RungReboot, recovery.RungQuarantine}
	w := newWorld(lifecycle.NodeActive)
	b := repairOf(t, w, recovery.Request{Rungs: reboot, Approve: reboot[:1]})
	b.decideAt(time.Hour, lifecycle.DecisionSkip)
	st := b.run()
	require.Equal(t, []error{nil}, b.resolved)
	require.Equal(t, lifecycle.NodeQuarantined, w.finished.Node)
	require.Equal(t, []string{"workload.cordon"}, w.enqueued)
	require.Equal(t, lifecycle.PhaseSkipped, phaseStates(st.Operation)[lifecycle.PhaseDrain])
}

// TestLastRungDecisions: when no rung follows, a person decides about a node that is not cured.
func TestLastRungDecisions(t *testing.T) {
	t.Parallel()
	for decision, want := range map[lifecycle.Decision]string{
		lifecycle.DecisionForce: "repaired by the rung reboot",
		lifecycle.DecisionSkip:  "not repaired after 1 attempt; the node stays quarantined",
	} {
		w := newWorld(lifecycle.NodeActive)
		w.unfit(recovery.RungReboot)
		b := repairOf(t, w, recovery.Request{Rungs: []recovery.Rung{recovery.RungReboot}})
		b.decideAt(time.Hour, decision)
		require.Equal(t, want, b.run().Operation.Outcome)
		require.Equal(t, lifecycle.ReasonNotCured, w.parks[0].Reason)
		require.Equal(t, lifecycle.AttentionOperator, w.parks[0].WaitingOn, "its agent answers")
		require.Contains(t, w.parks[0].Cause, "outlasted the repair")
		require.Nil(t, w.repairs.evidence)
		if decision == lifecycle.DecisionSkip {
			require.Equal(t, []string{"reboot not_cured"}, w.outcomesOfRungs())
		}
	}
}

// TestCancelOfARepair: a cancel in each phase restores the node's state and its cordon.
func TestCancelOfARepair(t *testing.T) {
	t.Parallel()
	for phase, open := range map[string]task.Type{
		lifecycle.PhaseCordon: task.WorkloadCordon, lifecycle.PhaseDrain: task.WorkloadDrain, lifecycle.PhaseResetGPU: task.GPUReset,
		lifecycle.PhaseVerifyReset: task.NodeVerify,
	} {
		for _, prior := range []lifecycle.NodeState{lifecycle.NodeActive, lifecycle.NodeQuarantined} {
			w := newWorld(prior)
			w.cordoned = prior == lifecycle.NodeQuarantined
			w.open[open] = true
			b := repairOf(t, w, climbing())
			b.decideAt(20*time.Second, lifecycle.DecisionCancel)
			st := b.run()
			require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status, phase)
			require.Equal(t, prior, w.finished.Node, phase)
			require.Equal(t, lifecycle.PhaseCanceled, phaseStates(st.Operation)[phase])
			for _, a := range w.repairs.attempts {
				require.Equal(t, recovery.OutcomeUnknown, a.Outcome, phase)
			}
		}
	}
}

// TestCancelWhileTheNodeBoots: a machine that the provider restarted and that is off is switched on.
func TestCancelWhileTheNodeBoots(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeOffline)
	w.heartbeat = time.Hour
	w.silent[task.WorkloadCordon] = true
	w.repairs.onPower = func(change machines.Power) { w.repairs.off = change == machines.PowerReset }
	b := repairOf(t, w, recovery.Request{})
	b.decideAt(10*time.Second, lifecycle.DecisionCancel)
	st := b.run()
	require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
	require.Equal(t, lifecycle.NodeOffline, w.finished.Node)
	require.Equal(t, 1, w.count("power on"))
	require.Equal(t, []string{"reboot unknown"}, w.outcomesOfRungs())
}

// TestRepairOfACordonedNode: a node that had a cordon keeps it, and the repair of a quarantined one
// removes that of its quarantine.
func TestRepairOfACordonedNode(t *testing.T) {
	t.Parallel()
	for prior, keeps := range map[lifecycle.NodeState]bool{lifecycle.NodeActive: true, lifecycle.NodeQuarantined: false} {
		w := newWorld(prior)
		w.cordoned = true
		var params string
		w.on[task.WorkloadUncordon] = func(spec activities.TaskSpec) (task.Result, error) {
			params = string(spec.Params)
			return succeeded(task.CordonResult{Cordoned: keeps}), nil
		}
		require.Equal(t, lifecycle.OperationCompleted, repairOf(t, w, recovery.Request{}).run().Operation.Status)
		require.Equal(t, lifecycle.NodeActive, w.finished.Node)
		require.Equal(t, keeps, params == `{"keep_cordon":true}`, prior)
	}
}

// TestControlPlaneFailureDoesNotClimb: an outage of the control plane says nothing about the node.
func TestControlPlaneFailureDoesNotClimb(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["enqueue gpu.reset"] = schema.NewError(schema.KindServiceUnavailable, "Vault is sealed").WithReason(lifecycle.ReasonVaultSealed)
	b := repairOf(t, w, climbing())
	b.env.RegisterDelayedCallback(func() {
		require.Equal(t, lifecycle.PhaseResetGPU, b.status().Operation.Stuck.Phase)
		w.heal("enqueue gpu.reset")
	}, time.Hour)
	require.Equal(t, "repaired by the rung reset_gpu", b.run().Operation.Outcome)
	require.Equal(t, lifecycle.ReasonVaultSealed, w.parks[0].Reason)
}

// TestLockedNodeDoesNotClimb: a locked identity is no fault of the node, and no reason for the next rung.
func TestLockedNodeDoesNotClimb(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["boot?"] = schema.NewError(schema.KindInvalidRequest, "the identity is locked").WithReason(schema.ReasonNodeLocked)
	b := repairOf(t, w, climbing())
	b.env.RegisterDelayedCallback(func() {
		require.Equal(t, lifecycle.PhaseResetGPU, b.status().Operation.Stuck.Phase)
		w.heal("boot?")
		b.decide(lifecycle.DecisionRetry, "unlocked")
	}, time.Hour)
	require.Equal(t, "repaired by the rung reset_gpu", b.run().Operation.Outcome)
	require.Equal(t, []string{"reset_gpu cured"}, w.outcomesOfRungs())
}

// TestEvidenceParks: the evidence waits for the database, and the record of a rung does too.
func TestEvidenceParks(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.unfit(recovery.RungReboot)
	w.fail["evidence"] = schema.NewError(schema.KindInternal, "no luck")
	b := repairOf(t, w, recovery.Request{})
	b.env.RegisterDelayedCallback(func() { w.heal("evidence"); b.decide(lifecycle.DecisionRetry, "fixed") }, 2*time.Hour)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.NotNil(t, w.repairs.evidence)
}

// TestSlowAgent: the provider does not restart a node whose agent has the task and does not respond in time: the
// agent may restart the node a moment later. If the agent never had the task, the provider does.
func TestSlowAgent(t *testing.T) {
	t.Parallel()
	for began, resets := range map[bool]int{true: 0, false: 1} {
		w := newWorld(lifecycle.NodeActive)
		w.silent[task.NodeReboot], w.began = true, began
		w.repairs.onPower = func(machines.Power) { w.boots("boot-2") }
		b := repairOf(t, w, recovery.Request{})
		b.env.RegisterDelayedCallback(func() { w.boots("boot-2") }, 20*time.Second)
		require.Equal(t, "repaired by the rung reboot", b.run().Operation.Outcome)
		require.Equal(t, resets, w.count("power reset"), "the agent has the task: %t", began)
	}
}

// TestLostReset: a reset of the GPUs whose task is lost or does not end in time has an unknown outcome, and the
// next rung follows. One that the node reports as failed has failed.
func TestLostReset(t *testing.T) {
	t.Parallel()
	failing := func(reason string) func(activities.TaskSpec) (task.Result, error) {
		return func(activities.TaskSpec) (task.Result, error) {
			return task.Result{}, activities.Failure(schema.NewError(schema.KindTaskFailed, "no reset").WithReason(reason), true)
		}
	}
	for _, c := range []struct {
		reset func(w *world)
		want  string
	}{
		{func(w *world) { w.on[task.GPUReset] = failing(lifecycle.ReasonTaskLost) }, "reset_gpu unknown"},
		{func(w *world) { w.silent[task.GPUReset] = true }, "reset_gpu unknown"},
		{func(w *world) { w.on[task.GPUReset] = failing("") }, "reset_gpu failed"},
	} {
		w := newWorld(lifecycle.NodeActive)
		c.reset(w)
		require.Equal(t, "repaired by the rung reboot", repairOf(t, w, climbing()).run().Operation.Outcome)
		require.Equal(t, []string{c.want, "reboot cured"}, w.outcomesOfRungs())
	}
}
