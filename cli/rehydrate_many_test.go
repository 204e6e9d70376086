package cli

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// manyAbandoned has abandoned drains of gpu-1 to gpu-3, the last one terminated and the
// others lost, and drains of gpu-4 and gpu-5 that are not marked. The run of gpu-5 is open.
func manyAbandoned(t *testing.T) *harness {
	t.Helper()
	h := setup(t)
	h.api.nodes = nil
	ended := map[string]lifecycle.EndedOperation{}
	for n := 1; n <= 5; n++ {
		op := parkedOn(n)
		node := lifecycle.NodeRef{NodeID: op.NodeID, Host: op.Host, State: lifecycle.NodeDraining}
		op.Status, op.Stuck, op.StartedAt = lifecycle.OperationRunning, nil, start()
		if n <= 3 {
			end := []lifecycle.RunEnd{lifecycle.RunLost, lifecycle.RunLost, lifecycle.RunTerminated}[n-1]
			plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
			stuck := plan.Abandoned(node, lifecycle.NodeActive, lifecycle.Options{}, end)
			stuck.Phase, stuck.Since = op.Phase, *at(0)
			op.Status, op.Stuck = lifecycle.OperationAbandoned, &stuck
		}
		h.api.operations = append(h.api.operations, op)
		view := busy()
		view.ID, view.Host = op.NodeID, op.Host
		h.api.nodes = append(h.api.nodes, view)
		ended[op.Host] = lifecycle.EndedOperation{OperationID: op.OperationID, Action: op.Action, Reason: lifecycle.RunLost}
	}
	h.api.rehydrate = func(n wire.NodeView) (lifecycle.Rehydration, error) {
		if n.Host == "gpu-5" {
			return lifecycle.Rehydration{}, schema.NewError(schema.KindOperationInProgress, "the run is open")
		}
		ref := lifecycle.NodeRef{NodeID: n.ID, Host: n.Host, State: lifecycle.NodeActive}
		return lifecycle.Rehydration{Node: ref, From: lifecycle.NodeDraining, Ended: []lifecycle.EndedOperation{ended[n.Host]},
			Cordoned: n.Host == "gpu-1", Next: lifecycle.NodeNext(ref, n.Host == "gpu-1", false)}, nil
	}
	return h
}

// runsMissing is the fault with which the run watcher marks no operation as lost.
func runsMissing() wire.ControlPlaneFault {
	return wire.ControlPlaneFault{Component: lifecycle.ScheduleWatch, Reason: lifecycle.ReasonRunsMissing,
		Message: "Temporal does not have the runs of 9 of 10 open operations"}
}

// rehydrateAll makes the order of the messages the order of the list.
func rehydrateAll(args ...string) []string {
	return append([]string{"node", "rehydrate", "--max-parallel", "1", "--reason", "TCK-1"}, args...)
}

func TestRehydrateMany(t *testing.T) {
	t.Parallel()
	t.Run("by reason", func(t *testing.T) {
		t.Parallel()
		h := manyAbandoned(t)
		h.golden("rehydrate-many", rehydrateAll("--stuck-reason", "run_lost", "-l", "rack=r7", "--yes")...)
		require.Contains(t, h.api.requests[0], "selector=rack%3Dr7", "the API filters")
		require.Equal(t, []string{"rehydrate gpu-1 TCK-1", "rehydrate gpu-2 TCK-1"}, h.api.decided)
	})
	t.Run("by selector", func(t *testing.T) {
		t.Parallel()
		h := manyAbandoned(t)
		require.Zero(t, h.run(rehydrateAll("-l", "rack=r7", "--yes")...), h.err.String())
		require.Len(t, h.api.decided, 3)
	})
	t.Run("runs that are missing and not marked", func(t *testing.T) {
		t.Parallel()
		h := manyAbandoned(t)
		h.temporal.faults = []wire.ControlPlaneFault{runsMissing()}
		h.golden("rehydrate-many-missing", rehydrateAll("--stuck-reason", "run_lost", "--yes")...)
		require.Len(t, h.api.decided, 4)
		h.api.decided = nil
		require.Zero(t, h.run(rehydrateAll("--stuck-reason", "run_terminated", "--yes")...), h.err.String())
		require.Equal(t, []string{"rehydrate gpu-3 TCK-1"}, h.api.decided)
	})
	t.Run("one request for two operations of a node", func(t *testing.T) {
		t.Parallel()
		h := manyAbandoned(t)
		reissue := h.api.operations[0]
		reissue.OperationID, reissue.Action = operationID, lifecycle.ActionReissueEnrollment
		h.api.operations = append(h.api.operations, reissue)
		first := h.api.rehydrate
		h.api.rehydrate = func(n wire.NodeView) (lifecycle.Rehydration, error) {
			done, err := first(n)
			done.Ended = append(done.Ended, lifecycle.EndedOperation{OperationID: operationID})
			return done, err
		}
		require.Zero(t, h.run(rehydrateAll("--stuck-reason", "run_lost", "--yes", "-o", "json")...), h.err.String())
		var result struct{ Summary map[bulkOutcome]int }
		require.NoError(t, json.Unmarshal(h.out.Bytes(), &result))
		require.Equal(t, map[bulkOutcome]int{decideRestored: 3}, result.Summary)
		require.Len(t, h.api.decided, 2)
	})
	t.Run("dry run", func(t *testing.T) {
		t.Parallel()
		h := manyAbandoned(t)
		h.golden("rehydrate-many-dry-run", rehydrateAll("-l", "rack=r7", "--dry-run")...)
		require.Empty(t, h.api.decided)
	})
	t.Run("an unavailable service stops it", func(t *testing.T) {
		t.Parallel()
		h := manyAbandoned(t)
		h.api.rehydrate = func(wire.NodeView) (lifecycle.Rehydration, error) {
			return lifecycle.Rehydration{}, schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond")
		}
		require.Equal(t, schema.ExitFailed, h.run(rehydrateAll("-l", "rack=r7", "--yes")...))
		require.Contains(t, h.err.String(), "1 failed, 2 not sent")
		require.Contains(t, h.err.String(), "1 rehydration failed; run the command again to retry")
	})
	t.Run("nothing matches", func(t *testing.T) {
		t.Parallel()
		h := manyAbandoned(t)
		require.Equal(t, schema.ExitNotFound, h.run(rehydrateAll("--stuck-reason", "run_failed", "--yes")...))
	})
}

func TestRehydrateManyAsks(t *testing.T) {
	t.Parallel()
	h := manyAbandoned(t)
	require.Equal(t, schema.ExitUsage, h.run(rehydrateAll("-l", "rack=r7")...), "without a terminal")
	h.onTerminal("n\n")
	require.Equal(t, schema.ExitFailed, h.run(rehydrateAll("-l", "rack=r7")...))
	require.Contains(t, h.err.String(), "rehydrate 3 operations. Continue? [y/N]")
	require.Empty(t, h.api.decided)
	h.onTerminal("y\n")
	require.Zero(t, h.run(rehydrateAll("-l", "rack=r7")...))
	require.Len(t, h.api.decided, 3)
}

func TestRehydrateManyUsage(t *testing.T) {
	t.Parallel()
	h := manyAbandoned(t)
	for _, args := range [][]string{
		{"node", "rehydrate"}, {"node", "rehydrate", "gpu-17", "--dry-run"}, {"node", "rehydrate", "gpu-17", "--max-parallel", "2"},
		{"node", "rehydrate", "gpu-17", "-l", "rack=r7"}, {"node", "rehydrate", "--stuck-reason", "task_lost"},
		rehydrateAll("-l", "rack=r7", "--max-parallel", "0"), rehydrateAll("-l", "rack=r7", "--reason", "TEXT"), rehydrateAll("-l", "rack=r7", "--direct"),
	} {
		require.Equal(t, schema.ExitUsage, h.run(args...), fmt.Sprint(args))
	}
	require.Empty(t, h.api.requests)
}
