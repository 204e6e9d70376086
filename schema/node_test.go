package schema

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// legal is written out by hand from design/architecture.md §3, apart from the
// table under test: which action may start in which state, and where it leads.
func legal() map[Action]map[NodeState]NodeState {
	return map[Action]map[NodeState]NodeState{
		ActionEnroll:        {NodeRegistered: NodeActive, NodeBootstrapIssued: NodeActive, NodeEnrolling: NodeActive},
		ActionProvision:     {NodeRegistered: NodeActive, NodeActive: NodeActive},
		ActionHeartbeatLost: {NodeActive: NodeOffline},
		ActionHeartbeatBack: {NodeOffline: NodeActive},
		ActionQuarantine:    {NodeActive: NodeQuarantined, NodeOffline: NodeQuarantined, NodeDrained: NodeQuarantined},
		ActionRelease:       {NodeQuarantined: ""},
		ActionDrain:         {NodeActive: NodeDrained, NodeOffline: NodeDrained, NodeQuarantined: NodeDrained},
		ActionRetire: {NodeActive: NodeRetired, NodeOffline: NodeRetired, NodeQuarantined: NodeRetired,
			NodeDrained: NodeRetired},
		ActionReactivate: {NodeRetired: NodeActive, NodeDrained: NodeActive},
		ActionRemove:     {NodeRetired: NodeRemoved},
		ActionReissueEnrollment: {NodeRegistered: "", NodeBootstrapIssued: "", NodeEnrolling: "", NodeActive: "",
			NodeOffline: "", NodeQuarantined: "", NodeDrained: "", NodeRetired: ""},
	}
}

func TestEveryActionInEveryState(t *testing.T) {
	t.Parallel()
	want := legal()
	for _, m := range Moves() {
		if m.Action == ActionRegister {
			continue
		}
		for _, s := range NodeStates() {
			move, err := CheckMove(m.Action, s)
			to, ok := want[m.Action][s]
			if !ok {
				require.Equal(t, KindInvalidRequest, KindOf(err), "%s in %s", m.Action, s)
				require.ErrorContains(t, err, string(s))
				continue
			}
			require.NoError(t, err, "%s in %s", m.Action, s)
			require.Equal(t, to, move.To, "%s in %s", m.Action, s)
		}
	}
	require.Len(t, want, len(Moves())-1, "an action is missing here")
}

func TestMovesAreConsistent(t *testing.T) {
	t.Parallel()
	for _, m := range Moves() {
		for _, s := range slices.Concat(m.From, m.Through) {
			require.True(t, s.Valid(), "%s names %s", m.Action, s)
		}
		require.True(t, m.To == "" || m.To.Valid())
		require.True(t, m.Claim == "" || slices.Contains(m.Through, m.Claim), "%s claims outside of its way", m.Action)
		name, isWorkflow := WorkflowType(m.Action)
		require.Equal(t, m.Operation || m.Action == ActionReissueEnrollment, isWorkflow, "%s", m.Action)
		require.NotEmpty(t, m.Does)
		if isWorkflow {
			require.Equal(t, m.Action, ActionOfWorkflow(name))
			require.Equal(t, m.Operation, WorkflowID(m.Action, "n") == NodeWorkflowID("n"), "%s", m.Action)
			require.NotEmpty(t, Phases(m.Action, OperationOptions{}), "%s has no phases", m.Action)
		}
	}
}

func TestARefusalNamesTheWay(t *testing.T) {
	t.Parallel()
	_, err := CheckMove(ActionRemove, NodeActive)
	require.ErrorContains(t, err, "gpuaas node retire NODE")
	_, err = CheckMove(ActionRetire, NodeRemoved)
	require.ErrorContains(t, err, "register the host as a new node")
	_, err = CheckMove("explode", NodeActive)
	require.ErrorContains(t, err, `unknown action "explode"`)
}

func TestPhases(t *testing.T) {
	t.Parallel()
	for _, m := range Moves() {
		for _, o := range []OperationOptions{{}, {Drain: true}, {CordonOnly: true}, {Drain: true, CordonOnly: true}} {
			seen := map[string]bool{}
			for _, p := range Phases(m.Action, o) {
				require.False(t, seen[p.Name], "%s has phase %s twice", m.Action, p.Name)
				seen[p.Name] = true
				require.Positive(t, p.Budget, "%s/%s never ends", m.Action, p.Name)
				require.NotEmpty(t, p.Title)
				require.NotEmpty(t, p.Cause)
				require.NotEqual(t, AttentionNone, p.Owner)
			}
		}
	}
	last := Phases(ActionDrain, OperationOptions{CordonOnly: true})
	require.Equal(t, PhaseCordoned, last[len(last)-1].Name)
	require.Greater(t, Phases(ActionDrain, OperationOptions{DrainTimeoutSeconds: 3600})[1].Budget.Seconds(), 3600.0)
}

func TestKindTable(t *testing.T) {
	t.Parallel()
	seen := map[Kind]bool{}
	for _, r := range KindTable() {
		require.False(t, seen[r.Kind], "%s appears twice", r.Kind)
		seen[r.Kind] = true
		require.GreaterOrEqual(t, r.HTTP, 400)
		require.NotZero(t, r.Exit)
		require.Equal(t, r, r.Kind.Row())
	}
	require.Equal(t, KindInternal, Kind("nonsense").Row().Kind)
}
