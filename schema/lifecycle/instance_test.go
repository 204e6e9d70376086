package lifecycle_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func TestInstanceMoves(t *testing.T) {
	t.Parallel()
	for from, follows := range lifecycle.InstanceMoves() {
		for _, to := range follows {
			require.NoError(t, from.CheckMove(to))
		}
		require.NoError(t, from.CheckMove(from))
		if from.Live() {
			require.NoError(t, from.CheckMove(lifecycle.InstanceTerminated), "%q can end", from)
			require.NoError(t, lifecycle.InstanceTerminating.CheckMove(from), "a canceled termination restores %q", from)
		}
	}
	require.Len(t, lifecycle.InstanceMoves(), 8)
	require.Empty(t, lifecycle.InstanceMoves()[lifecycle.InstanceTerminated], "it is final")
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
	for from := range lifecycle.InstanceMoves() {
		for _, n := range lifecycle.NodeStates() {
			to := from.Follow(n)
			require.NoError(t, from.CheckMove(to), "%q on a node that is %s", from, n)
			require.Equal(t, from.Live() && n != lifecycle.NodeRemoved, to.Live(), "%q on a node that is %s", from, n)
		}
	}
	require.Equal(t, lifecycle.InstanceDraining, lifecycle.InstanceRunning.Follow(lifecycle.NodeRetired))
	require.Equal(t, lifecycle.InstanceRunning, lifecycle.InstanceDraining.Follow(lifecycle.NodeOffline))
	require.Equal(t, lifecycle.InstanceTerminating, lifecycle.InstanceProvisioning.Follow(lifecycle.NodeRemoving))
	require.Equal(t, lifecycle.InstanceTerminating, lifecycle.InstanceRunning.Follow(lifecycle.NodeTerminating))
	for n, want := range map[lifecycle.NodeState]lifecycle.InstanceState{
		lifecycle.NodeRegistered: lifecycle.InstancePending, lifecycle.NodeEnrolling: lifecycle.InstancePending,
		lifecycle.NodeActive: lifecycle.InstanceRunning, lifecycle.NodeOffline: lifecycle.InstanceRunning, lifecycle.NodeQuarantined: lifecycle.InstanceRunning,
		lifecycle.NodeDrained: lifecycle.InstanceDraining, lifecycle.NodeRetired: lifecycle.InstanceDraining,
	} {
		require.Equal(t, want, lifecycle.InstanceTerminating.Follow(n), "a termination or removal was abandoned on a node that is %s", n)
	}
	require.Equal(t, lifecycle.InstanceBootstrapping, lifecycle.InstanceBootstrapping.Follow(lifecycle.NodeEnrolling))
}
