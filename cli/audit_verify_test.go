package cli

import (
	"crypto/ed25519"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// checkpointed gives the API two streams, and a checkpoint of each of their first states.
func checkpointed(t *testing.T) (h *harness, sign func(audit.CheckpointBody) audit.StoredCheckpoint) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(strings.NewReader(strings.Repeat("k", ed25519.SeedSize)))
	require.NoError(t, err)
	h = setup(t)
	h.api.pageSize = 2
	h.api.streams = []string{nodeID, "system"}
	h.api.audit = map[string][]audit.Event{nodeID: chain(nodeID, 5), "system": chain("system", 1)}
	h.api.public = map[string]ed25519.PublicKey{"audit-test.v1": public}
	h.api.heads = map[string]audit.Head{}
	sign = func(b audit.CheckpointBody) audit.StoredCheckpoint {
		body, hash, err := b.Encode()
		require.NoError(t, err)
		c := audit.Checkpoint{Env: "test", Number: b.Number, Hash: hash, At: start().UTC(), KeyID: "audit-test.v1"}
		c.Signature = ed25519.Sign(private, c.Signed())
		return audit.StoredCheckpoint{Body: body, Signed: c.String()}
	}
	prev := ""
	for i := range 3 {
		e := h.api.audit[nodeID][i]
		b := audit.CheckpointBody{Number: int64(i + 1), Prev: prev, Heads: []audit.Head{{Stream: nodeID, Seq: e.Seq, Hash: e.Hash}}}
		if i == 1 {
			b.Heads = append(b.Heads, audit.Head{Stream: "system", Seq: 1, Hash: h.api.audit["system"][0].Hash})
		}
		h.api.checkpoint = append(h.api.checkpoint, sign(b))
		_, prev, err = b.Encode()
		require.NoError(t, err)
	}
	return h, sign
}

func TestAuditVerifiesCheckpoints(t *testing.T) {
	t.Parallel()
	h, _ := checkpointed(t)
	known := h.api.checkpoint[1].Signed
	require.Equal(t, schema.ExitDone, h.run("audit", "--verify", "--known-checkpoint", known), h.err.String())
	require.Contains(t, h.out.String(), "6 rows of 2 streams and 3 checkpoints: no faults found\nnewest checkpoint: 1 test 3 ")
	require.Equal(t, schema.ExitDone, h.run("audit", "--verify", "--node", "system"), h.err.String())
	require.Equal(t, schema.ExitUsage, h.run("audit", "--verify", "--known-checkpoint", "x"))
}

// An intruder who can write to the database can make every chain fit again. The heads and the
// checkpoints show it.
func TestAuditShowsWhatTheChainDoesNot(t *testing.T) {
	t.Parallel()
	restamped := func(events []audit.Event) []audit.Event {
		events[1].Actor = "mallory"
		for i := range events {
			if i > 0 {
				events[i].PrevHash = events[i-1].Hash
			}
			events[i].Hash = events[i].ComputeHash()
		}
		return events
	}
	for name, tc := range map[string]struct {
		tamper func(*fakeAPI, func(audit.CheckpointBody) audit.StoredCheckpoint)
		fault  string
	}{
		"the tail is cut": {func(a *fakeAPI, _ func(audit.CheckpointBody) audit.StoredCheckpoint) {
			last := a.audit[nodeID][4]
			a.heads[nodeID] = audit.Head{Stream: nodeID, Seq: last.Seq, Hash: last.Hash}
			a.audit[nodeID] = a.audit[nodeID][:4]
		}, "rows after 4 are missing: the stream's head is 5"},
		"tail and head are cut": {func(a *fakeAPI, _ func(audit.CheckpointBody) audit.StoredCheckpoint) {
			a.audit[nodeID] = a.audit[nodeID][:2]
		}, "rows after 2 are missing: a checkpoint covers row 3"},
		"the head is another row": {func(a *fakeAPI, _ func(audit.CheckpointBody) audit.StoredCheckpoint) {
			a.heads[nodeID] = audit.Head{Stream: nodeID, Seq: 5, Hash: "other"}
		}, "row 5 is not the one of the stream's head"},
		"the rows of a stream are gone": {func(a *fakeAPI, _ func(audit.CheckpointBody) audit.StoredCheckpoint) {
			a.audit[nodeID] = nil
		}, "has no rows"},
		"a stream is gone": {func(a *fakeAPI, _ func(audit.CheckpointBody) audit.StoredCheckpoint) {
			a.streams = []string{"system"}
		}, "is missing: a checkpoint covers it"},
		"all hashes are computed again": {func(a *fakeAPI, _ func(audit.CheckpointBody) audit.StoredCheckpoint) {
			a.audit[nodeID] = restamped(a.audit[nodeID])
		}, "row 2 was replaced: a checkpoint has another hash"},
		"a checkpoint is gone": {func(a *fakeAPI, sign func(audit.CheckpointBody) audit.StoredCheckpoint) {
			a.checkpoint[1] = a.checkpoint[2]
			a.checkpoint = a.checkpoint[:2]
		}, "one between them is missing"},
		"a checkpoint is changed": {func(a *fakeAPI, _ func(audit.CheckpointBody) audit.StoredCheckpoint) {
			a.checkpoint[2].Body = append(a.checkpoint[2].Body, ' ')
		}, "checkpoint 3 was changed after it was signed"},
		"a checkpoint has another key": {func(a *fakeAPI, _ func(audit.CheckpointBody) audit.StoredCheckpoint) {
			a.public = map[string]ed25519.PublicKey{"audit-test.v1": make([]byte, ed25519.PublicKeySize)}
		}, "checkpoint 1 has no valid signature"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, sign := checkpointed(t)
			tc.tamper(h.api, sign)
			require.Equal(t, schema.ExitFailed, h.run("audit", "--verify"))
			require.Contains(t, h.out.String(), tc.fault)
		})
	}
	t.Run("the newest checkpoints are gone", func(t *testing.T) {
		t.Parallel()
		h, _ := checkpointed(t)
		known := h.api.checkpoint[2].Signed
		h.api.checkpoint = h.api.checkpoint[:2]
		require.Equal(t, schema.ExitDone, h.run("audit", "--verify"))
		require.Equal(t, schema.ExitFailed, h.run("audit", "--verify", "--known-checkpoint", known))
		require.Contains(t, h.out.String(), "checkpoint 3 of ")
	})
}

// The keys of a file replace those that the API sends.
func TestAuditVerifiesWithKeysOfAFile(t *testing.T) {
	t.Parallel()
	h, _ := checkpointed(t)
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, []byte(`{"data": {"name": "audit-test", "keys": {"1": {"public_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}}}}`), 0o600))
	require.Equal(t, schema.ExitFailed, h.run("audit", "--verify", "--checkpoint-keys", file))
	require.Contains(t, h.out.String(), "checkpoint 1 has no valid signature")
	require.Equal(t, schema.ExitUsage, h.run("audit", "--verify", "--checkpoint-keys", file+".missing"))
}

func TestAuditAcceptsAGap(t *testing.T) {
	t.Parallel()
	h := setup(t)
	require.Equal(t, schema.ExitDone, h.run("audit", "--accept-gap", "--reason", "restored"), h.err.String())
	require.Contains(t, h.out.String(), "accepted that 3 checkpoints are missing")
	require.Equal(t, schema.ExitUsage, h.run("audit", "--accept-gap"))
}
