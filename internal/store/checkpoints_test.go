package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// checkpoint stores the next checkpoint, without a valid signature.
func (e *env) checkpoint() (audit.CheckpointBody, audit.Checkpoint) {
	e.t.Helper()
	body, err := e.Checkpoints.Next(e.t.Context())
	require.NoError(e.t, err)
	_, hash, err := body.Encode()
	require.NoError(e.t, err)
	c := audit.Checkpoint{Env: "test", Number: body.Number, Hash: hash, At: time.Unix(1_800_000_000, 0).UTC(), KeyID: "k.v1", Signature: []byte("s")}
	stored, err := e.Checkpoints.Put(e.t.Context(), body, c)
	require.NoError(e.t, err)
	require.True(e.t, stored)
	return body, c
}

func (e *env) auditFaults() (reasons []string) {
	e.t.Helper()
	faults, err := e.Checkpoints.Faults(e.t.Context())
	require.NoError(e.t, err)
	for _, f := range faults {
		require.NotEmpty(e.t, f.Next)
		reasons = append(reasons, f.Reason)
	}
	return reasons
}

func TestCheckpointsCoverWhatChanged(t *testing.T) {
	e := setup(t)
	newest, err := e.Checkpoints.Newest(t.Context())
	require.NoError(t, err)
	require.Zero(t, newest)
	a, b := e.inState(lifecycle.NodeActive), e.inState(lifecycle.NodeActive)
	first, _ := e.checkpoint()
	require.Equal(t, int64(1), first.Number)
	require.Len(t, first.Heads, 2)

	none, err := e.Checkpoints.Next(t.Context())
	require.NoError(t, err)
	require.Empty(t, none.Heads)
	e.claim(b.ID, lifecycle.ActionProvision)
	second, signed := e.checkpoint()
	require.Equal(t, int64(2), second.Number)
	require.Equal(t, []audit.Head{{Stream: b.ID, Seq: 2, Hash: e.chain(b.ID)[1].Hash}}, second.Heads)
	_, hash, err := first.Encode()
	require.NoError(t, err)
	require.Equal(t, hash, second.Prev)
	newest, err = e.Checkpoints.Newest(t.Context())
	require.NoError(t, err)
	require.Equal(t, signed, newest)

	// Another worker was faster: nothing is stored.
	stored, err := e.Checkpoints.Put(t.Context(), audit.CheckpointBody{Number: 3, Prev: second.Prev, Heads: []audit.Head{{Stream: a.ID, Seq: 9, Hash: "x"}}}, signed)
	require.NoError(t, err)
	require.False(t, stored)
	require.Empty(t, e.auditFaults())
	list, err := e.Checkpoints.After(t.Context(), 1, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, signed.String(), list[0].Signed)
}

// A checkpoint that a node keeps and the database lost is a fault until an operator accepts
// the loss. The next checkpoint has a greater number, so that nodes adopt it.
func TestMissingCheckpoints(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	_, kept := e.checkpoint()
	has, err := e.Checkpoints.Has(t.Context(), kept.Number, kept.Hash)
	require.NoError(t, err)
	require.True(t, has)
	kept.Number = 7
	has, err = e.Checkpoints.Has(t.Context(), kept.Number, kept.Hash)
	require.NoError(t, err)
	require.False(t, has)
	for range 2 {
		require.NoError(t, e.Checkpoints.RecordMissing(t.Context(), n.ID, kept))
	}
	require.Equal(t, []string{"checkpoint_missing"}, e.auditFaults())
	require.Equal(t, []string{"audit.checkpoint_missing failed"}, e.audit(audit.SystemStream))
	next, _ := e.checkpoint()
	require.Equal(t, int64(8), next.Number)

	for want := range 2 {
		accepted, err := e.Checkpoints.AcceptMissing(t.Context(), "restored", operator)
		require.NoError(t, err)
		require.Equal(t, int64(1-want), accepted)
	}
	require.Empty(t, e.auditFaults())
	require.Equal(t, []string{"audit.checkpoint_missing failed", "audit.gap_accepted succeeded restored"}, e.audit(audit.SystemStream))
}

// A cut tail, whose head was set back too, and a stream that is gone are faults.
func TestCutStreamsAreFaults(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	e.claim(n.ID, lifecycle.ActionProvision)
	e.checkpoint()
	require.Empty(t, e.auditFaults())
	e.exec("ALTER TABLE audit_events DISABLE TRIGGER USER")
	e.exec("ALTER TABLE audit_heads DISABLE TRIGGER USER")
	e.exec("DELETE FROM audit_events WHERE stream = $1 AND seq = 2", n.ID)
	e.exec("UPDATE audit_heads SET seq = 1, hash = (SELECT hash FROM audit_events WHERE stream = $1 AND seq = 1) WHERE stream = $1", n.ID)
	require.Equal(t, []string{"events_missing"}, e.auditFaults())
	e.chain(n.ID) // which the chain does not show
	e.exec("DELETE FROM audit_events")
	e.exec("DELETE FROM audit_heads")
	require.Equal(t, []string{"events_missing"}, e.auditFaults())
}

// The role of the node API may write any row to audit_missing: it cannot stop further
// checkpoints with it, nor hide the fault.
func TestFalseMissingCheckpointStopsNothing(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	e.checkpoint()
	require.NoError(t, postgres.Run(t.Context(), pgtest.As(e.url, store.RoleAPINode),
		"INSERT INTO audit_missing (number, hash, verified, signed, node_id) VALUES (9223372036854775807, 'x', true, 'x', '"+n.ID+"')"))
	require.Equal(t, []string{"checkpoint_missing"}, e.auditFaults())
	last := int64(1)
	for _, change := range []func(){func() { e.claim(n.ID, lifecycle.ActionProvision) }, func() { e.register() }} {
		change()
		next, _ := e.checkpoint()
		require.Greater(t, next.Number, last)
		require.LessOrEqual(t, next.Number, time.Now().Unix()+60)
		last = next.Number
	}
}

// A node cannot fill the table with checkpoints that no key signed, and such a checkpoint
// does not replace a signed one with its number and hash.
func TestUnverifiedCheckpoints(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	_, kept := e.checkpoint()
	for kept.Number = 7; kept.Number < 10; kept.Number++ {
		require.NoError(t, e.Checkpoints.RecordUnverified(t.Context(), n.ID, kept))
	}
	require.Equal(t, []string{"checkpoint_unverified"}, e.auditFaults())
	require.Equal(t, []string{"audit.checkpoint_unverified failed"}, e.audit(audit.SystemStream))
	kept.Number = 7
	require.NoError(t, e.Checkpoints.RecordMissing(t.Context(), n.ID, kept))
	require.Equal(t, []string{"checkpoint_missing", "checkpoint_unverified"}, e.auditFaults())
	accepted, err := e.Checkpoints.AcceptMissing(t.Context(), "a test", operator)
	require.NoError(t, err)
	require.Equal(t, int64(2), accepted)
	require.Empty(t, e.auditFaults())
}

// Events without a checkpoint are a fault after ten minutes, also if newer events of their
// stream follow.
func TestStaleCheckpoints(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	require.Empty(t, e.auditFaults())
	e.exec("ALTER TABLE audit_events DISABLE TRIGGER USER")
	e.exec("UPDATE audit_events SET at = at - interval '9 minutes' WHERE stream = $1", n.ID)
	require.Empty(t, e.auditFaults())
	e.exec("UPDATE audit_events SET at = at - interval '2 minutes' WHERE stream = $1", n.ID)
	e.claim(n.ID, lifecycle.ActionProvision)
	require.Equal(t, []string{"checkpoint_stale"}, e.auditFaults())
	e.checkpoint()
	require.Empty(t, e.auditFaults())
}

// A checkpoint has a bounded number of streams: those first whose events wait the longest.
func TestCheckpointsCoverTheOldestEventsFirst(t *testing.T) {
	e := setup(t)
	e.exec("SELECT audit_append('system', 'a', '', 'b', 'c', 'succeeded', '', '', '', '{}')")
	e.exec("INSERT INTO audit_heads (stream, seq, at) SELECT gen_random_uuid(), 1, now() FROM generate_series(1, 5000)")
	e.exec("SELECT audit_append('system', 'a', '', 'b', 'c', 'succeeded', '', '', '', '{}')")
	first, _ := e.checkpoint()
	require.Len(t, first.Heads, 5000)
	require.Equal(t, audit.SystemStream, first.Heads[4999].Stream, "in order of the streams")
	second, _ := e.checkpoint()
	require.Len(t, second.Heads, 1)
}
