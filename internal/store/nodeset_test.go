package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// A node's row says which verifier set its polls name. It is written when that
// changes, and starts again with an incarnation.
func TestVerifierSetOfNode(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.machine()
	id := m.caller.NodeID
	for v := int64(1); v <= 3; v++ {
		require.NoError(t, e.PutSet(ctx, verifierSet(v, ""), operator))
	}
	poll := func(set int64) {
		m.use() // reads the row as each poll does
		require.NoError(t, e.RecordPoll(ctx, m.caller, wire.PollRequest{VerifierSet: set}))
	}
	written := func() int64 { return e.number("SELECT xmin::text::bigint FROM nodes WHERE node_id = $1", id) }
	poll(2)
	require.Equal(t, int64(2), e.node(id).SetVersion)
	require.Equal(t, int64(3), e.node(id).NewestSetVersion)
	before := written()
	poll(2)
	require.Equal(t, before, written(), "a repetition writes nothing")
	poll(3)
	require.Equal(t, int64(3), e.node(id).SetVersion)
	poll(1)
	require.Equal(t, int64(1), e.node(id).SetVersion, "what is so, even when it went back")

	old := m.caller
	e.reissue(m, m.k(2))
	require.Zero(t, e.node(id).SetVersion)
	require.NoError(t, e.RecordPoll(ctx, old, wire.PollRequest{VerifierSet: 3}))
	require.Zero(t, e.node(id).SetVersion, "a poll of the incarnation before")
	poll(3)
	require.Equal(t, int64(3), e.node(id).SetVersion)
}

// A node with a set that the database does not have is reported wherever an operator looks.
func TestLostVerifierSet(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.machine()
	known, lost := verifierSet(1, ""), verifierSet(1, "x")
	require.NotEqual(t, known.Hash, lost.Hash)
	require.NoError(t, e.PutSet(ctx, known, operator))
	poll := func(set trust.StoredSet) {
		m.use()
		require.NoError(t, e.RecordPoll(ctx, m.caller, wire.PollRequest{VerifierSet: set.Version, VerifierSetHash: set.Hash}))
	}
	poll(known)
	require.False(t, e.node(m.caller.NodeID).SetLost)
	faults, err := e.Admin.Faults(ctx)
	require.NoError(t, err)
	require.Empty(t, faults)

	poll(lost)
	require.True(t, e.node(m.caller.NodeID).SetLost)
	faults, err = e.Admin.Faults(ctx)
	require.NoError(t, err)
	require.Len(t, faults, 1)
	require.Equal(t, "verifier-set lost", faults[0].Component+" "+faults[0].Reason)
	require.Contains(t, faults[0].Message, e.node(m.caller.NodeID).Host)
	require.Equal(t, int64(1), e.startRestoreMode().LostSets)
	p, err := e.Rotations.RotationProgress(ctx, rotation.Rotation{RotationID: schema.NewID(), Kind: rotation.TaskKey, Phase: rotation.Stage, SetVersion: 1})
	require.NoError(t, err)
	require.True(t, p.Waiting[0].SetLost)

	e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", m.caller.NodeID)
	faults, err = e.Admin.Faults(ctx)
	require.NoError(t, err)
	require.NotContains(t, components(faults), "verifier-set", "a removed node runs no tasks")
}

// components returns the component of each fault.
func components(faults []wire.ControlPlaneFault) (names []string) {
	for _, f := range faults {
		names = append(names, f.Component)
	}
	return names
}

// The newest set says whether nodes may have later ones: a restore mode began since it was stored.
func TestNewestSetIsRestored(t *testing.T) {
	e := setup(t)
	restored := func() bool {
		set, err := e.NewestSet(t.Context())
		require.NoError(t, err)
		return set.Restored
	}
	require.NoError(t, e.PutSet(t.Context(), verifierSet(1, ""), operator))
	require.False(t, restored())
	e.exec("UPDATE verifier_sets SET stored_at = now() + interval '1 hour'") // by the clock of another server
	e.startRestoreMode()
	require.True(t, restored())
	require.NoError(t, e.PutSet(t.Context(), verifierSet(2, ""), operator))
	require.False(t, restored())
}
