package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
)

// replacing is a repair by reboot and replacement, and then quarantine.
func replacing() recovery.Request {
	return recovery.Request{Rungs: []recovery.Rung{recovery.RungReboot, recovery.RungReplace, recovery.RungQuarantine}}
}

// replaceable is a node of a provider that creates machines, whose tests fail after a reboot.
func replaceable() *world {
	w := newWorld(lifecycle.NodeActive)
	w.creates = true
	w.ledger = []activities.Resource{{ResourceID: "i-1", Kind: "instance", Provider: "manual"}}
	w.unfit(recovery.RungReboot)
	return w
}

// polls reports the first poll of the new machine.
func (b *bed) polls(after time.Duration) {
	b.env.RegisterDelayedCallback(func() {
		b.report(lifecycle.AgentEvent{Event: lifecycle.EventFirstPoll, NodeID: testNode, Incarnation: 2})
	}, after)
}

// TestRepairByReplacement: the machine is deleted, another one enrolls and passes its tests.
func TestRepairByReplacement(t *testing.T) {
	t.Parallel()
	w := replaceable()
	b := repairOf(t, w, replacing())
	b.polls(2 * time.Minute)
	st := b.run()
	require.Equal(t, "repaired by the rung replace", st.Operation.Outcome)
	require.Equal(t, lifecycle.NodeActive, w.finished.Node)
	require.Equal(t, lifecycle.InstanceRunning, w.finished.Instance)
	require.Equal(t, []string{"reboot not_cured", "replace cured"}, w.outcomesOfRungs())
	require.Equal(t, 1, w.count("release"))
	require.Equal(t, 1, w.count("ensure"))
	require.Equal(t, "i-2", w.ledger[0].ResourceID)
	require.Equal(t, []string{"workload.cordon", "workload.drain", "node.reboot", "node.verify", "facts.collect#3", "node.verify#3"}, w.enqueued)
	require.NotEmpty(t, w.facts)
}

// TestReplacementFails: a new machine that does not pass its tests is quarantined.
func TestReplacementFails(t *testing.T) {
	t.Parallel()
	w := replaceable()
	w.unfit(recovery.RungReboot, recovery.RungReplace)
	b := repairOf(t, w, replacing())
	b.polls(2 * time.Minute)
	b.run()
	require.Equal(t, lifecycle.NodeQuarantined, w.finished.Node)
	require.Equal(t, lifecycle.InstanceRunning, w.finished.Instance)
	require.Equal(t, []string{"reboot not_cured", "replace not_cured"}, w.outcomesOfRungs())
	require.NotNil(t, w.repairs.evidence)
}

// TestNoReplacement: a provider that creates no machines replaces none, and neither does one that has
// not created the node's.
func TestNoReplacement(t *testing.T) {
	t.Parallel()
	for _, creates := range []bool{false, true} {
		w := replaceable()
		w.creates, w.instance = creates, &lifecycle.Instance{}
		repairOf(t, w, replacing()).run()
		require.Equal(t, lifecycle.NodeQuarantined, w.finished.Node)
		require.Zero(t, w.count("release"))
		require.NotNil(t, w.repairs.evidence)
	}
}

// TestCancelOfAReplacement: after the deletion of the machine, a cancel returns the new one, and the
// node ends without a machine. Before, it returns to its state.
func TestCancelOfAReplacement(t *testing.T) {
	t.Parallel()
	w := replaceable()
	b := repairOf(t, w, replacing())
	b.decideAt(2*time.Minute, lifecycle.DecisionCancel) // it waits for the first poll
	st := b.run()
	require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
	require.Equal(t, lifecycle.PhaseCanceled, phaseStates(st.Operation)[lifecycle.PhaseEnroll])
	require.Equal(t, lifecycle.NodeRegistered, w.finished.Node)
	require.Equal(t, lifecycle.InstanceTerminated, w.finished.Instance)
	require.Empty(t, w.ledger)
	require.Equal(t, 2, w.count("release"))
	require.NotContains(t, w.enqueued, string(task.WorkloadUncordon))

	w = replaceable()
	r := replacing()
	r.Approve = []recovery.Rung{recovery.RungReplace}
	b = repairOf(t, w, r)
	b.decideAt(time.Hour, lifecycle.DecisionCancel)
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	require.Equal(t, lifecycle.NodeActive, w.finished.Node)
	require.Zero(t, w.count("release"))
}
