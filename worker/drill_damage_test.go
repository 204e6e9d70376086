package worker

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/diagnosis"
)

// oldOperation is an ended operation of gpu-1 with a number that its node does not have.
const oldOperation = `INSERT INTO operations (operation_id, node_id, op_seq, action, status, actor, workflow_id, run_id, claim, started_at, ended_at)
	SELECT gen_random_uuid(), node_id, 5, 'drain', 'completed', 'ops', 'w', 'r', '{}', now(), now() FROM nodes WHERE host = 'gpu-1';`

// TestDrillFindsContradictions: rows that contradict others are found, each in its own number.
func TestDrillFindsContradictions(t *testing.T) {
	t.Parallel()
	b := newDrillBench(t)
	b.exec(oldOperation + `
		INSERT INTO node_certificates (node_id, serial, incarnation, slot, subject, uri, issuer, fingerprint, spki, not_before, not_after, via, sequence)
			SELECT node_id, '01', 9, 'current', 's', 'u', 'i', 'f', 'k', now(), now(), 'enroll', 1 FROM nodes WHERE host = 'gpu-2';
		INSERT INTO node_tasks (task_id, node_id, incarnation, seq, type, effect, operation_id, op_seq, step, envelope, envelope_expires_at, body_sha256,
				owner_workflow_id, owner_run_id, owner_activity_id)
			SELECT gen_random_uuid(), node_id, 1, 1, 'node.probe', 'read', gen_random_uuid(), 1, 's', '', now(), '', 'w', 'r', 'a' FROM nodes WHERE host = 'gpu-2';`)
	_, faults := b.drill(b.dumped())
	require.Len(t, faults, 1)
	require.Equal(t, "nodes and operations", faults[0].Name)
	require.Contains(t, faults[0].Answer, "0 nodes with an operation that is not theirs, 2 nodes behind their operations or certificates, 1 tasks without")
}

// TestDrillElsewhere: the scratch database is on the server of GPUAAS_DRILL_DATABASE_URL, and a drill leaves
// no dump.
func TestDrillElsewhere(t *testing.T) {
	b := newDrillBench(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	getenv := func(name string) string {
		if name == "GPUAAS_DRILL_DATABASE_URL" {
			return "postgres://127.0.0.1:1/none?sslmode=disable"
		}
		return b.getenv(name)
	}
	_, err := Drill(t.Context(), DrillOptions{Getenv: getenv, Progress: &b.progress})
	require.ErrorContains(t, err, "127.0.0.1:1")
	results, _ := b.drill("")
	require.Equal(t, diagnosis.OK, results["restore"])
	left, err := filepath.Glob(filepath.Join(temp, "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
