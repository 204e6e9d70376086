package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func TestCapacity(t *testing.T) {
	e := setup(t)
	busy := "workloads = '[{\"kind\":\"pod\",\"name\":\"x\"}]'"
	withNodes(e, map[string]string{"free": "gpus_total = 8", "busy": busy, "cordoned": "cordoned = true", "silent": "last_heartbeat_at = now() - interval '1 hour'",
		"drained": "state = 'drained'", "gone": "state = 'removed'", "other": "region_code = 'zz1', gpus_total = 4"})
	e.exec("DELETE FROM nodes WHERE state = 'registered'")
	got, err := e.Capacity(t.Context(), "", "")
	require.NoError(t, err)
	require.Len(t, got, 2)
	first := got[0]
	require.Equal(t, []int{5, 1, 1, 3, 8, 1}, []int{first.Nodes, first.Free, first.Busy, first.Out, first.GPUsFree, first.Returning})
	got, err = e.Capacity(t.Context(), first.SKU, "zz1")
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, 4, got[0].GPUsFree)

	n := e.faulty()
	e.exec("UPDATE nodes SET sku = $1, region_code = 'zz2' WHERE node_id = $2", first.SKU, n.ID)
	got, err = e.Capacity(t.Context(), first.SKU, "zz2")
	require.NoError(t, err)
	require.Equal(t, []int{1, 0, 1}, []int{got[0].Nodes, got[0].Free, got[0].Out}, "a node with a fault is not free")
	e.exec("UPDATE nodes SET incarnation = incarnation + 1 WHERE node_id = $1", n.ID)
	got, err = e.Capacity(t.Context(), first.SKU, "zz2")
	require.NoError(t, err)
	require.Equal(t, 1, got[0].Free, "the fault is from before it enrolled again")
}

// TestDurations computes the median and the 90th percentile of completed phases of one action and
// one provider.
func TestDurations(t *testing.T) {
	e := setup(t)
	e.register()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	insert := func(seq, seconds int, action lifecycle.Action, status string, state lifecycle.PhaseState) {
		end := at.Add(time.Duration(seconds) * time.Second)
		document, err := json.Marshal(lifecycle.OperationStatus{Operation: lifecycle.Operation{Phases: []lifecycle.Phase{
			{Name: "cordon", State: state, StartedAt: &at, EndedAt: &end}, {Name: "later", State: lifecycle.PhasePending}}}})
		require.NoError(t, err)
		e.exec(`INSERT INTO operations (operation_id, node_id, op_seq, action, status, document, actor, workflow_id, run_id, claim, started_at, ended_at)
			SELECT $1::uuid, node_id, $2::bigint, $3::text, $4::text, $5::jsonb, 'ops', 'w', 'r', '{}', $6::timestamptz, $7::timestamptz FROM nodes LIMIT 1`,
			schema.NewID(), seq, action, status, document, at, end)
	}
	for i := range 11 {
		insert(i+1, i*10, lifecycle.ActionDrain, "completed", lifecycle.PhaseCompleted)
	}
	insert(20, 1000, lifecycle.ActionDrain, "failed", lifecycle.PhaseCompleted)
	insert(21, 1000, lifecycle.ActionRetire, "completed", lifecycle.PhaseCompleted)
	insert(22, 50, lifecycle.ActionDrain, "completed", lifecycle.PhaseSkipped)
	got, err := e.Durations(t.Context(), lifecycle.ActionDrain, "manual")
	require.NoError(t, err)
	require.Equal(t, []insight.Duration{{Phase: "", Samples: 12, MedianSeconds: 50, P90Seconds: 89}, {Phase: "cordon", Samples: 11, MedianSeconds: 50, P90Seconds: 90}}, got)
	got, err = e.Durations(t.Context(), lifecycle.ActionDrain, "libvirt")
	require.NoError(t, err)
	require.Empty(t, got)
}
