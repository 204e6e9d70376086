package worker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// dump copies the sets and the rotations. restore makes the database have that copy again and
// starts the restore mode. It returns why the worker does not sign then.
func (r *rotating) dump() (restore func() error) {
	r.t.Helper()
	exec := func(sql string) {
		_, err := r.raw.Exec(r.t.Context(), sql)
		require.NoError(r.t, err, sql)
	}
	exec("CREATE TABLE dumped_sets AS TABLE verifier_sets; CREATE TABLE dumped_rotations AS TABLE rotations")
	return func() error {
		r.t.Helper()
		exec("TRUNCATE verifier_sets, rotations CASCADE; INSERT INTO verifier_sets TABLE dumped_sets; INSERT INTO rotations TABLE dumped_rotations")
		owner, err := store.Open(r.t.Context(), store.Config{URL: r.url})
		require.NoError(r.t, err)
		defer owner.Close()
		_, err = owner.Restore.Start(r.t.Context(), "restored the dump of 04:00", time.Hour, operator)
		require.NoError(r.t, err)
		return r.trust.Follow(r.t.Context())
	}
}

func (r *rotating) endRestoreMode() {
	r.t.Helper()
	_, err := r.raw.Exec(r.t.Context(), "UPDATE restore_modes SET ended_at = now()")
	require.NoError(r.t, err)
}

// finish runs a rotation to its end with nodes that follow.
func (r *rotating) finish(nodes ...*node) {
	r.t.Helper()
	for range 6 {
		r.advance()
		require.NoError(r.t, r.trust.Follow(r.t.Context()))
		for _, n := range nodes {
			n.follow()
		}
	}
	require.Equal(r.t, rotation.Completed, r.last.Rotation.Outcome)
}

// A revocation that is in the lost part is repeated: nodes that have the lost set accept the
// one of the repetition.
func TestLostRevocationIsRepeated(t *testing.T) {
	r := rotations(t)
	n, away := r.node("gpu-1"), r.node("gpu-2")
	n.follow()
	away.follow()
	stolen := r.sign()
	restore := r.dump()
	r.begin(rotation.RevokeKey, "task-test.v1")
	r.advance()
	n.follow()
	lost := n.set
	require.NoError(t, restore())
	require.False(t, n.accepts(r.sign()), "the record signs with the revoked key")

	r.begin(rotation.RevokeKey, "task-test.v1")
	r.finish(n, away)
	require.NotEqual(t, lost.Hash, n.set.Hash)
	for _, n := range []*node{n, away} {
		require.False(t, n.accepts(stolen))
		require.True(t, n.accepts(r.sign()))
	}
}

// A rotation whose next phase is in the lost part continues from the phase on record, although
// nodes have the set of the lost phase.
func TestRestoredRotationContinues(t *testing.T) {
	for _, kind := range []rotation.Kind{rotation.TaskKey, rotation.SetRoot} {
		for _, phase := range []rotation.Phase{rotation.Stage, rotation.Activate, rotation.Grace} {
			t.Run(string(kind)+" "+string(phase), func(t *testing.T) { continueFrom(t, kind, phase) })
		}
	}
}

func continueFrom(t *testing.T, kind rotation.Kind, phase rotation.Phase) {
	t.Helper()
	r := rotations(t)
	n := r.node("gpu-1")
	n.follow()
	r.begin(kind, "")
	r.advance()
	for r.last.Rotation.Phase != phase {
		n.follow()
		r.advance()
	}
	n.follow()
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))
	restore := r.dump()
	r.advance()
	require.NotEqual(t, phase, r.last.Rotation.Phase)
	n.follow()
	require.NoError(t, restore())
	r.finish(n)
	require.NoError(t, r.trust.Follow(t.Context()))
	require.True(t, n.accepts(r.sign()))
}

// The second of two revocations is in the lost part while the first one is open on record. Nodes
// reject the sets of the first one, and accept the repetition of the second one, which ends it.
func TestSecondRevocationIsLost(t *testing.T) {
	r := rotations(t)
	n := r.node("gpu-1")
	n.follow()
	r.begin(rotation.RevokeKey, "task-test.v1")
	r.advance()
	n.follow()
	restore := r.dump()
	r.advance()
	require.NoError(t, r.trust.Follow(t.Context()))
	stolen := r.sign()
	r.begin(rotation.RevokeKey, "task-test.v2")
	r.advance()
	n.follow()
	require.NoError(t, restore())
	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, r.advance())
	require.Equal(t, trust.ReasonKeyRevoked, schema.AsError(n.tryFollow()).Reason)
	require.Equal(t, []rotation.Blocker{rotation.BlockedNodes}, r.advance())

	r.begin(rotation.RevokeKey, "task-test.v2")
	r.finish(n)
	require.False(t, n.accepts(stolen))
	require.True(t, n.accepts(r.sign()))
}

// If a rotation ended in the lost part, Vault does not sign with the key on record. The reason
// says so, and a revocation of the task key on record repairs it.
func TestRotationThatEndedIsLost(t *testing.T) {
	for _, kind := range []rotation.Kind{rotation.TaskKey, rotation.SetRoot} {
		t.Run(string(kind), func(t *testing.T) {
			r := rotations(t)
			n := r.node("gpu-1")
			n.follow()
			restore := r.dump()
			r.begin(kind, "")
			require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))
			r.finish(n)
			err := restore()
			if kind == rotation.SetRoot { // tasks are signed as before, only sets are not
				require.NoError(t, err)
				require.True(t, n.accepts(r.sign()))
				_, _, err = r.trust.Rotator.SignSet(t.Context(), newest(t, r.store), rotation.Target{
					States: map[string]trust.KeyState{"task-test.v1": trust.KeyActive, "task-test.v2": trust.KeyStaged}})
			}
			e := schema.AsError(err)
			require.NotNil(t, e)
			require.Equal(t, vault.ReasonKeyRetired, e.Reason, e.Message)
			require.Equal(t, "gpuaas trust revoke task-test.v1 --reason TEXT", e.Next)

			r.begin(rotation.RevokeKey, "task-test.v1")
			r.finish(n)
			require.True(t, n.accepts(r.sign()))
			r.begin(rotation.TaskKey, "")
			require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))
			r.finish(n)
			require.True(t, n.accepts(r.sign()), "the next rotation works")
		})
	}
}

// A rotation whose end is lost cannot be rolled back: Vault no longer signs with the old key. The
// rollback publishes nothing, names the way out, and that works.
func TestRollbackAfterALostEnd(t *testing.T) {
	for _, kind := range []rotation.Kind{rotation.TaskKey, rotation.SetRoot} {
		for _, phase := range []rotation.Phase{rotation.Activate, rotation.Grace} {
			t.Run(string(kind)+" "+string(phase), func(t *testing.T) {
				r := rotations(t)
				n := r.node("gpu-1")
				n.follow()
				r.begin(kind, "")
				r.advance()
				for r.last.Rotation.Phase != phase {
					n.follow()
					r.advance()
				}
				n.follow()
				restore := r.dump()
				require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))
				r.finish(n)
				require.NoError(t, restore())

				require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Rollback}))
				before := newest(t, r.store)
				_, err := r.trust.AdvanceRotation(t.Context())
				e := activities.Typed(err)
				require.NotNil(t, e)
				require.Equal(t, "old_key_retired", e.Reason, e.Message)
				require.Contains(t, e.Next, "gpuaas rotate resume --reason TEXT")
				require.Equal(t, before, newest(t, r.store))
				require.True(t, n.accepts(r.sign()))

				require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Resume}))
				require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))
				r.finish(n)
				require.True(t, n.accepts(r.sign()))
			})
		}
	}
}

// A set that makes a revoked key valid again is rejected by the nodes that have its revocation,
// even if the record lost it. The repeated revocation ends the rotation that published the set.
func TestRevokedKeyStaysRevoked(t *testing.T) {
	r := rotations(t)
	n, away := r.node("gpu-1"), r.node("gpu-2")
	n.follow()
	away.follow()
	stolen := r.sign()
	restore := r.dump()
	r.begin(rotation.RevokeKey, "task-test.v1")
	r.advance()
	n.follow()
	require.NoError(t, restore())
	r.begin(rotation.TaskKey, "")
	r.advance()
	require.Equal(t, trust.ReasonKeyRevoked, schema.AsError(n.tryFollow()).Reason)
	require.False(t, n.accepts(stolen))
	away.follow()

	r.begin(rotation.RevokeKey, "task-test.v1")
	r.finish(n, away)
	require.False(t, n.accepts(stolen) || away.accepts(stolen))
	require.NoError(t, r.trust.Follow(t.Context()))
	require.True(t, n.accepts(r.sign()) && away.accepts(r.sign()))
}

// A revocation ends an open one of another key. The tasks of both keys are signed again.
func TestRevocationEndsAnother(t *testing.T) {
	r := rotations(t)
	n := r.node("gpu-1")
	n.follow()
	first, _ := r.probe(n, 1)
	r.begin(rotation.RevokeKey, "task-test.v1")
	_, err := r.trust.AdvanceRotation(t.Context()) // plans
	require.NoError(t, err)
	_, err = r.trust.AdvanceRotation(t.Context()) // publishes
	require.NoError(t, err)
	require.NoError(t, r.trust.Follow(t.Context()))
	second, _ := r.probe(n, 2)
	require.Equal(t, "task-test.v1", trust.SigningKey(r.envelope(first)))
	require.Equal(t, "task-test.v2", trust.SigningKey(r.envelope(second)))

	r.begin(rotation.RevokeKey, "task-test.v2")
	r.finish(n)
	for _, id := range []string{first, second} {
		require.Equal(t, "task-test.v3", trust.SigningKey(r.envelope(id)))
		require.True(t, n.accepts(r.envelope(id)))
	}
	var outcomes []string
	require.NoError(t, r.raw.QueryRow(t.Context(), "SELECT array_agg(outcome ORDER BY started_at) FROM rotations").Scan(&outcomes))
	require.Equal(t, []string{"superseded", "completed"}, outcomes)
}

// A revocation does not end another one before that one's set is published: its key would stay
// valid, and could even replace the second key.
func TestUnpublishedRevocationIsNotEnded(t *testing.T) {
	r := rotations(t)
	n := r.node("gpu-1")
	n.follow()
	stolen := r.sign()
	r.begin(rotation.TaskKey, "")
	r.advance()
	n.follow()
	r.begin(rotation.RevokeKey, "task-test.v1")
	second := withReason(rotation.Begin(rotation.RevokeKey, "task-test.v2", 0))
	_, err := r.api.Rotations.BeginRotation(t.Context(), second, operator)
	require.Equal(t, "rotation_open", schema.AsError(err).Reason)
	r.advance()
	_, err = r.api.Rotations.BeginRotation(t.Context(), second, operator)
	require.NoError(t, err)
	r.finish(n)
	require.Equal(t, "task-test.v3", r.newest().Active().KeyID)
	require.False(t, n.accepts(stolen))
}

// A revocation replaces a key by one with which Vault signs, although the record has an older one,
// be that the active key or one in grace.
func TestSuccessorSigns(t *testing.T) {
	for phase, reason := range map[rotation.Phase]string{rotation.Stage: vault.ReasonKeyRetired, rotation.Grace: ""} {
		t.Run(string(phase), func(t *testing.T) {
			r := rotations(t)
			n := r.node("gpu-1")
			n.follow()
			r.begin(rotation.TaskKey, "")
			r.advance()
			for n.follow(); r.last.Rotation.Phase != phase; n.follow() {
				r.advance()
			}
			restore := r.dump()
			require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))
			r.finish(n)
			stolen := r.sign()
			err := restore()
			require.Equal(t, reason != "", err != nil)
			if err != nil {
				require.Equal(t, reason, schema.AsError(err).Reason)
			}
			r.begin(rotation.RevokeKey, "task-test.v2")
			r.finish(n)
			require.Equal(t, "task-test.v3", r.newest().Active().KeyID)
			require.False(t, n.accepts(stolen))
			require.True(t, n.accepts(r.sign()))
		})
	}
}

// The set on record is renewed after a restore, and begins an epoch: nodes with lost sets accept
// it. One renewal is enough.
func TestRenewalAfterRestore(t *testing.T) {
	r := rotations(t)
	n := r.node("gpu-1")
	n.follow()
	restore := r.dump()
	r.begin(rotation.TaskKey, "")
	r.advance()
	n.follow()
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Rollback}))
	for range 2 {
		r.advance()
		n.follow()
	}
	lost := n.set
	require.Equal(t, rotation.RolledBack, r.last.Rotation.Outcome)
	require.Zero(t, lost.Doc.Epoch)
	require.NoError(t, restore())
	m, err := r.trust.MaintainTrust(t.Context())
	require.NoError(t, err)
	require.False(t, m.Renewed, "the restore mode is on")
	r.endRestoreMode()
	for _, due := range []bool{true, false} {
		m, err = r.trust.MaintainTrust(t.Context())
		require.NoError(t, err)
		require.Equal(t, due, m.Renewed)
		n.follow()
		require.Positive(t, n.set.Doc.Epoch)
		require.Less(t, n.set.Doc.Version, lost.Doc.Version)
	}
}

// A rotation of the root key that is in the lost part left nodes that trust only its new key. They
// accept the sets that begin an epoch, and so do the nodes that were off meanwhile.
func TestUnfinishedRootRotationIsLost(t *testing.T) {
	r := rotations(t)
	n, away := r.node("gpu-1"), r.node("gpu-2")
	n.follow()
	away.follow()
	restore := r.dump()
	r.begin(rotation.SetRoot, "")
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))
	for len(n.set.Doc.Roots) != 1 {
		r.advance()
		n.follow()
		away.report(n.set)
	}
	require.NotEqual(t, rotation.Completed, r.last.Rotation.Outcome)
	lost := n.set
	late := r.node("gpu-3") // its bundle names only the new root key
	late.follow()
	require.Equal(t, []string{"set-root-test.v2"}, keyIDs(late.roots))
	late.set.Doc.Roots = nil
	require.NoError(t, restore())
	r.endRestoreMode()
	m, err := r.trust.MaintainTrust(t.Context())
	require.NoError(t, err)
	require.True(t, m.Renewed)
	away.follow()
	for _, n := range []*node{n, late} {
		n.follow()
		require.Equal(t, r.newest().Hash, n.set.Hash)
	}
	n.set = lost // the node was off

	// The next rotation works, and a node that missed the whole of it catches up.
	r.begin(rotation.SetRoot, "")
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Waive, NodeIDs: []string{n.id}}))
	n.report(lost)
	r.finish(away, late)
	require.Equal(t, lost.Hash, n.set.Hash)
	n.follow()
	require.Equal(t, r.newest().Hash, n.set.Hash)
	require.True(t, n.accepts(r.sign()))
}

// A set with as many revoked keys as fit drops the oldest one for the next one.
func TestRevocationsBeyondTheLimit(t *testing.T) {
	r := rotations(t)
	n := r.node("gpu-1")
	n.follow()
	for range trust.MaxSetKeys + 1 {
		r.begin(rotation.RevokeKey, r.newest().Active().KeyID)
		r.advance()
		n.follow()
		require.Empty(t, r.advance())
	}
	require.NoError(t, r.trust.Follow(t.Context()))
	require.True(t, n.accepts(r.sign()))
}
