package lifecycle_test

import (
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// TestRefusalsSuggestCommands: the command in a refusal is an operation that may start
// in the node's state and leads to a state in which the refused action may start.
func TestRefusalsSuggestCommands(t *testing.T) {
	t.Parallel()
	suggested := regexp.MustCompile(`gpuaas node ([a-z-]+) NODE`)
	found := 0
	for _, p := range lifecycle.Operations() {
		for _, s := range lifecycle.NodeStates() {
			_, err := lifecycle.CheckStart(p.Action, s)
			if err == nil {
				continue
			}
			m := suggested.FindStringSubmatch(err.Error())
			if m == nil {
				continue
			}
			found++
			via, err := lifecycle.CheckStart(lifecycle.Action(m[1]), s)
			require.NoError(t, err, "%s in %s", p.Action, s)
			require.NotEmpty(t, via.Workflow, "%s in %s suggests %s, which no operator can start", p.Action, s, via.Action)
			require.Contains(t, p.From, via.To, "%s in %s suggests %s", p.Action, s, via.Action)
			require.NotEqual(t, p.To, s, "%s suggests %s for a node that is already %s", p.Action, via.Action, s)
		}
	}
	require.Positive(t, found)
}

func TestBeginStartsFirstPhase(t *testing.T) {
	t.Parallel()
	plan, ok := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	require.True(t, ok)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var o lifecycle.Operation
	plan.Begin(&o, now)
	require.Equal(t, lifecycle.OperationRunning, o.Status)
	require.Equal(t, now.Add(plan.Phases[0].Budget), *o.DeadlineAt)
	require.Len(t, o.Phases, len(plan.Phases))
	require.Equal(t, lifecycle.PhaseRunning, o.Phases[0].State)
	require.Equal(t, 1, o.Phases[0].Attempt)
	require.Equal(t, now, *o.Phases[0].StartedAt)
	for _, p := range o.Phases[1:] {
		require.Equal(t, lifecycle.Phase{Name: p.Name, Title: p.Title, State: lifecycle.PhasePending}, p)
	}
}

// TestReissueCommands: a reissue does not hold its node, so its commands say which
// operation of the node they mean.
func TestReissueCommands(t *testing.T) {
	t.Parallel()
	require.Equal(t, "gpuaas op show gpu-17", lifecycle.OpCommand("show", lifecycle.ActionDrain, "gpu-17"))
	require.Equal(t, "gpuaas op show gpu-17 --reissue", lifecycle.OpCommand("show", lifecycle.ActionReissueEnrollment, "gpu-17"))
	require.Equal(t, "gpuaas op cancel gpu-17 --reissue --operation op-1 --reason TEXT",
		lifecycle.DecisionCommand(lifecycle.DecisionCancel, lifecycle.ActionReissueEnrollment, "gpu-17", "op-1"))
}

// TestRetireDrainsOnRequest: every retire cordons the node. A plain one then needs the agent's
// list of workloads; a forced one cordons as a quarantine does, and continues without it.
func TestRetireDrainsOnRequest(t *testing.T) {
	t.Parallel()
	plain, _ := lifecycle.PlanOf(lifecycle.ActionRetire, lifecycle.Options{})
	quarantine, _ := lifecycle.PlanOf(lifecycle.ActionQuarantine, lifecycle.Options{})
	require.Len(t, plain.Phases, 2)
	require.Equal(t, lifecycle.PhaseIdle, plain.Phases[0].Name)
	require.False(t, plain.Phases[0].BestEffort, "a silent node may run anything")
	forced, _ := lifecycle.PlanOf(lifecycle.ActionRetire, lifecycle.Options{Force: true})
	require.Len(t, forced.Phases, 2)
	require.Equal(t, quarantine.Phases[0], forced.Phases[0])
	require.Equal(t, quarantine.Undo, plain.Undo)
	drains, _ := lifecycle.PlanOf(lifecycle.ActionRetire, lifecycle.Options{Drain: true})
	require.NotNil(t, drains.Undo)
	for _, phase := range []string{lifecycle.PhaseCordon, lifecycle.PhaseDrain} {
		require.True(t, slices.ContainsFunc(drains.Phases, func(s lifecycle.PhaseSpec) bool { return s.Name == phase }), phase)
	}
	require.False(t, drains.Phases[0].BestEffort, "a drain needs its cordon")
}

// TestPlansVoidIdentities: only a removal ends the node's identity, and only a cancel of
// an enrollment or a reissue voids its tokens. Provision, terminate and remove end with a state
// of the instance.
func TestPlansVoidIdentities(t *testing.T) {
	t.Parallel()
	issuing := []lifecycle.Action{lifecycle.ActionEnroll, lifecycle.ActionReissueEnrollment}
	for _, p := range lifecycle.Operations() {
		require.Equal(t, p.Action == lifecycle.ActionRemove, p.DenyIdentity, p.Action)
		require.Equal(t, slices.Contains(issuing, p.Action), p.CancelVoidsTokens, p.Action)
		instance := map[lifecycle.Action]lifecycle.InstanceState{
			lifecycle.ActionProvision: lifecycle.InstanceRunning, lifecycle.ActionTerminate: lifecycle.InstanceTerminated,
			lifecycle.ActionRemove: lifecycle.InstanceTerminated}[p.Action]
		require.Equal(t, instance == lifecycle.InstanceTerminated, p.Final(), p.Action)
		require.Equal(t, instance, p.Instance, p.Action)
	}
}
