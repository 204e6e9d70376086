package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

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
