package lifecycle_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func TestInstanceMoves(t *testing.T) {
	t.Parallel()
	moves := map[lifecycle.InstanceState]bool{}
	for _, m := range lifecycle.InstanceMoves() {
		moves[m.From] = true
		for _, to := range m.To {
			require.NoError(t, m.From.CheckMove(to))
			require.NotEqual(t, lifecycle.InstanceTerminated, m.From, "it is final")
		}
		require.NoError(t, m.From.CheckMove(m.From))
		if m.From.Live() {
			require.NoError(t, m.From.CheckMove(lifecycle.InstanceTerminated), "%q can end", m.From)
		}
	}
	require.Len(t, moves, 8)
	for _, illegal := range [][2]lifecycle.InstanceState{
		{lifecycle.InstanceNone, lifecycle.InstanceRunning}, {lifecycle.InstanceRunning, lifecycle.InstancePending},
		{lifecycle.InstanceTerminated, lifecycle.InstanceRunning}, {lifecycle.InstancePending, lifecycle.InstanceDraining},
	} {
		err := illegal[0].CheckMove(illegal[1])
		require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: "instance_state"}, "%v", illegal)
	}
}

// TestInstanceFollows: every state that follows from one of the node's is a legal move.
func TestInstanceFollows(t *testing.T) {
	t.Parallel()
	for _, m := range lifecycle.InstanceMoves() {
		for _, n := range lifecycle.NodeStates() {
			to := m.From.Follow(n)
			require.NoError(t, m.From.CheckMove(to), "%q on a node that is %s", m.From, n)
			require.Equal(t, m.From.Live() && n != lifecycle.NodeRemoved, to.Live(), "%q on a node that is %s", m.From, n)
		}
	}
	require.Equal(t, lifecycle.InstanceDraining, lifecycle.InstanceRunning.Follow(lifecycle.NodeRetired))
	require.Equal(t, lifecycle.InstanceRunning, lifecycle.InstanceDraining.Follow(lifecycle.NodeOffline))
	require.Equal(t, lifecycle.InstanceTerminating, lifecycle.InstanceProvisioning.Follow(lifecycle.NodeRemoving))
	require.Equal(t, lifecycle.InstanceBootstrapping, lifecycle.InstanceBootstrapping.Follow(lifecycle.NodeEnrolling))
}

func TestMachineOptionsAllow(t *testing.T) {
	t.Parallel()
	has := lifecycle.MachineOptions{Region: "r", Type: "t", SSHKeys: []string{"k"}}
	for _, o := range []lifecycle.MachineOptions{{}, {Region: "r"}, {Type: "t", SSHKeys: []string{"k"}}} {
		require.True(t, has.Allows(o), "%v", o)
	}
	for _, o := range []lifecycle.MachineOptions{{Region: "x"}, {Type: "x"}, {Image: "x"}, {Spot: true}, {SSHKeys: []string{"x"}}} {
		require.False(t, has.Allows(o), "%v", o)
	}
}
