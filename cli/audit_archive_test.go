package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// archived gives the API a trail whose first rows, up to the second checkpoint, are in a file.
func archived(t *testing.T) (h *harness, folder, file string) {
	t.Helper()
	h, _ = checkpointed(t)
	var lines bytes.Buffer
	write := json.NewEncoder(&lines)
	for i := range 2 {
		require.NoError(t, write.Encode(audit.ArchiveLine{Checkpoint: &h.api.checkpoint[i]}))
	}
	for i := range 2 {
		require.NoError(t, write.Encode(audit.ArchiveLine{Event: &h.api.audit[nodeID][i]}))
	}
	require.NoError(t, write.Encode(audit.ArchiveLine{Event: &h.api.audit["system"][0]}))
	folder = t.TempDir()
	file = filepath.Join(folder, audit.ArchiveName(start(), 0, 2))
	require.NoError(t, os.WriteFile(file, lines.Bytes(), 0o600))
	first := h.api.audit["system"][0]
	note := audit.Event{Stream: "system", Seq: 2, At: start().UTC(), Actor: "system", Action: audit.Archived, Target: "system", Result: audit.Succeeded, PrevHash: first.Hash,
		Detail: map[string]string{"file": filepath.Base(file), "sha256": schema.SHA256Hex(lines.Bytes()), "last_checkpoint": "2"}}
	note.Hash = note.ComputeHash()
	h.api.audit = map[string][]audit.Event{nodeID: h.api.audit[nodeID][2:], "system": {note}}
	return h, folder, file
}

// The verification goes across the cut: without the files by the checkpoints, and with them
// over every row.
func TestAuditVerifiesTheArchive(t *testing.T) {
	t.Parallel()
	h, folder, _ := archived(t)
	require.Equal(t, schema.ExitDone, h.run("audit", "--verify"), h.out.String())
	require.Contains(t, h.out.String(), "the first rows of 2 streams are archived: verify them with --archive DIR")
	require.Equal(t, schema.ExitDone, h.run("audit", "--verify", "--archive", folder), h.out.String())
	require.Contains(t, h.out.String(), "verified 3 archived rows")
	require.Equal(t, schema.ExitDone, h.run("audit", "--verify", "--node", "gpu-17"), h.out.String())
	require.Equal(t, schema.ExitUsage, h.run("audit", "--verify", "--archive", t.TempDir()))
}

// A database that was restored to a time before rows were deleted, or before that was
// recorded, still has them: both copies match.
func TestAuditVerifiesARestoredDatabase(t *testing.T) {
	t.Parallel()
	h, folder, _ := archived(t)
	before, _ := checkpointed(t)
	h.api.audit = before.api.audit
	require.Equal(t, schema.ExitDone, h.run("audit", "--verify", "--archive", folder), h.out.String())
	require.Contains(t, h.out.String(), "verified 3 archived rows")
}

// A file has rows that a restored database lost. The result names the file, also if the
// database has a checkpoint with the same number since.
func TestAuditNamesAFileOfALostTrail(t *testing.T) {
	t.Parallel()
	for name, restore := range map[string]func(h *harness, sign func(audit.CheckpointBody) audit.StoredCheckpoint){
		"the checkpoint is lost": func(h *harness, _ func(audit.CheckpointBody) audit.StoredCheckpoint) {
			h.api.checkpoint = h.api.checkpoint[:1]
		},
		"another one has its number": func(h *harness, sign func(audit.CheckpointBody) audit.StoredCheckpoint) {
			last, err := audit.ParseCheckpoint(h.api.checkpoint[0].Signed)
			require.NoError(t, err)
			h.api.checkpoint = append(h.api.checkpoint[:1:1], sign(audit.CheckpointBody{Number: 2, Prev: last.Hash}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, folder, file := archived(t)
			before, sign := checkpointed(t)
			h.api.audit = before.api.audit
			restore(h, sign)
			require.Equal(t, schema.ExitFailed, h.run("audit", "--verify", "--archive", folder))
			require.Contains(t, h.out.String(), "the file "+filepath.Base(file)+" of the archive has checkpoint 2, which the database does not have")
		})
	}
}

func TestAuditShowsAFalseArchive(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tamper func(t *testing.T, h *harness, file string)
		fault  string
	}{
		"rows are deleted at no checkpoint": {func(_ *testing.T, h *harness, _ string) {
			h.api.audit[nodeID] = h.api.audit[nodeID][2:]
		}, "row 1 is missing (found 5)"},
		"rows are deleted that are not archived": {func(_ *testing.T, h *harness, _ string) {
			h.api.audit[nodeID] = h.api.audit[nodeID][1:]
		}, "the rows up to 3 are neither in the database nor in the archive"},
		"a row is changed": {func(t *testing.T, _ *harness, file string) {
			t.Helper()
			edit(t, file, "RMA-4411", "RMA-4412")
		}, "row 1 was changed after it was written"},
		"a checkpoint is changed": {func(t *testing.T, _ *harness, file string) {
			t.Helper()
			edit(t, file, `"signed":"1 test 1 `, `"signed":"1 prod 1 `)
		}, "checkpoint 1 has no valid signature"},
		"a file is cut": {func(t *testing.T, _ *harness, file string) {
			t.Helper()
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, data[:len(data)-3], 0o600))
		}, "is damaged"},
		"the last row is gone": {func(t *testing.T, _ *harness, file string) {
			t.Helper()
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			end := bytes.LastIndexByte(data[:len(data)-1], '\n')
			require.NoError(t, os.WriteFile(file, data[:end+1], 0o600))
		}, "audit stream system: the rows up to 1 are neither in the database nor in the archive"},
		"a file has another content": {func(t *testing.T, _ *harness, file string) {
			t.Helper()
			edit(t, file, "\n", "\n\n")
		}, "is missing or has another content than the trail says"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, folder, file := archived(t)
			tc.tamper(t, h, file)
			require.Equal(t, schema.ExitFailed, h.run("audit", "--verify", "--archive", folder))
			require.Contains(t, h.out.String(), tc.fault)
		})
	}
	t.Run("no event says that the rows were archived", func(t *testing.T) {
		t.Parallel()
		h, _, _ := archived(t)
		h.api.audit[nodeID] = h.api.audit[nodeID][1:]
		require.Equal(t, schema.ExitFailed, h.run("audit", "--verify"))
		require.Contains(t, h.out.String(), "rows are missing that were not archived")
	})
}

func edit(t *testing.T, file, old, text string) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(data), old)
	require.NoError(t, os.WriteFile(file, bytes.Replace(data, []byte(old), []byte(text), 1), 0o600))
}
