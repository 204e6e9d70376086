package lifecycle_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// legal is written out by hand from design/architecture.md §3, apart from the
// table under test: which action may start in which state, and where it leads.
func legal() map[lifecycle.Action]map[lifecycle.NodeState]lifecycle.NodeState {
	return map[lifecycle.Action]map[lifecycle.NodeState]lifecycle.NodeState{
		lifecycle.ActionEnroll:        {lifecycle.NodeRegistered: lifecycle.NodeActive, lifecycle.NodeBootstrapIssued: lifecycle.NodeActive, lifecycle.NodeEnrolling: lifecycle.NodeActive},
		lifecycle.ActionProvision:     {lifecycle.NodeRegistered: lifecycle.NodeActive, lifecycle.NodeActive: lifecycle.NodeActive},
		lifecycle.ActionHeartbeatLost: {lifecycle.NodeActive: lifecycle.NodeOffline},
		lifecycle.ActionHeartbeatBack: {lifecycle.NodeOffline: lifecycle.NodeActive},
		lifecycle.ActionQuarantine:    {lifecycle.NodeActive: lifecycle.NodeQuarantined, lifecycle.NodeOffline: lifecycle.NodeQuarantined, lifecycle.NodeDrained: lifecycle.NodeQuarantined},
		lifecycle.ActionRelease:       {lifecycle.NodeQuarantined: ""},
		lifecycle.ActionDrain:         {lifecycle.NodeActive: lifecycle.NodeDrained, lifecycle.NodeOffline: lifecycle.NodeDrained, lifecycle.NodeQuarantined: lifecycle.NodeDrained},
		lifecycle.ActionRetire: {lifecycle.NodeActive: lifecycle.NodeRetired, lifecycle.NodeOffline: lifecycle.NodeRetired, lifecycle.NodeQuarantined: lifecycle.NodeRetired,
			lifecycle.NodeDrained: lifecycle.NodeRetired},
		lifecycle.ActionReactivate: {lifecycle.NodeRetired: lifecycle.NodeActive, lifecycle.NodeDrained: lifecycle.NodeActive},
		lifecycle.ActionRemove:     {lifecycle.NodeRetired: lifecycle.NodeRemoved},
		lifecycle.ActionReissueEnrollment: {lifecycle.NodeRegistered: "", lifecycle.NodeBootstrapIssued: "", lifecycle.NodeEnrolling: "", lifecycle.NodeActive: "",
			lifecycle.NodeOffline: "", lifecycle.NodeQuarantined: "", lifecycle.NodeDrained: "", lifecycle.NodeRetired: ""},
	}
}

func TestEveryActionInEveryState(t *testing.T) {
	t.Parallel()
	want := legal()
	for _, m := range lifecycle.Moves() {
		if m.Action == lifecycle.ActionRegister {
			continue
		}
		for _, s := range lifecycle.NodeStates() {
			move, err := lifecycle.CheckMove(m.Action, s)
			to, ok := want[m.Action][s]
			if !ok {
				require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), "%s in %s", m.Action, s)
				require.ErrorContains(t, err, string(s))
				continue
			}
			require.NoError(t, err, "%s in %s", m.Action, s)
			require.Equal(t, to, move.To, "%s in %s", m.Action, s)
		}
	}
	require.Len(t, want, len(lifecycle.Moves())-1, "an action is missing here")
}

func TestMovesAreConsistent(t *testing.T) {
	t.Parallel()
	for _, m := range lifecycle.Moves() {
		for _, s := range slices.Concat(m.From, m.Through) {
			require.True(t, s.Valid(), "%s names %s", m.Action, s)
		}
		require.True(t, m.To == "" || m.To.Valid())
		require.True(t, m.Claim == "" || slices.Contains(m.Through, m.Claim), "%s claims outside of its way", m.Action)
		name, isWorkflow := lifecycle.WorkflowType(m.Action)
		require.Equal(t, m.Operation || m.Action == lifecycle.ActionReissueEnrollment, isWorkflow, "%s", m.Action)
		require.NotEmpty(t, m.Does)
		if isWorkflow {
			require.Equal(t, m.Action, lifecycle.ActionOfWorkflow(name))
			require.Equal(t, m.Operation, lifecycle.WorkflowID(m.Action, "n") == lifecycle.NodeWorkflowID("n"), "%s", m.Action)
			require.NotEmpty(t, lifecycle.Phases(m.Action, lifecycle.Options{}), "%s has no phases", m.Action)
		}
	}
}

func TestARefusalNamesTheWay(t *testing.T) {
	t.Parallel()
	_, err := lifecycle.CheckMove(lifecycle.ActionRemove, lifecycle.NodeActive)
	require.ErrorContains(t, err, "gpuaas node retire NODE")
	_, err = lifecycle.CheckMove(lifecycle.ActionRetire, lifecycle.NodeRemoved)
	require.ErrorContains(t, err, "register the host as a new node")
	_, err = lifecycle.CheckMove("explode", lifecycle.NodeActive)
	require.ErrorContains(t, err, `unknown action "explode"`)
}

func TestPhases(t *testing.T) {
	t.Parallel()
	for _, m := range lifecycle.Moves() {
		for _, o := range []lifecycle.Options{{}, {Drain: true}, {CordonOnly: true}, {Drain: true, CordonOnly: true}} {
			seen := map[string]bool{}
			for _, p := range lifecycle.Phases(m.Action, o) {
				require.False(t, seen[p.Name], "%s has phase %s twice", m.Action, p.Name)
				seen[p.Name] = true
				require.Positive(t, p.Budget, "%s/%s never ends", m.Action, p.Name)
				require.NotEmpty(t, p.Title)
				require.NotEmpty(t, p.Cause)
				require.NotEqual(t, lifecycle.AttentionNone, p.Owner)
			}
		}
	}
	last := lifecycle.Phases(lifecycle.ActionDrain, lifecycle.Options{CordonOnly: true})
	require.Equal(t, lifecycle.PhaseCordoned, last[len(last)-1].Name)
	require.Greater(t, lifecycle.Phases(lifecycle.ActionDrain, lifecycle.Options{DrainTimeoutSeconds: 3600})[1].Budget.Seconds(), 3600.0)
}
