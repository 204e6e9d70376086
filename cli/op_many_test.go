package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// parkedOn is a parked drain of gpu-N with the options.
func parkedOn(n int, options ...lifecycle.Option) wire.OperationSummary {
	return wire.OperationSummary{OperationID: fmt.Sprintf("0198f000-0000-7000-8000-0000000001%02d", n), NodeID: fmt.Sprintf("0198f000-0000-7000-8000-0000000000%02d", n),
		Host: fmt.Sprintf("gpu-%d", n), Action: lifecycle.ActionDrain, Status: lifecycle.OperationParked, Phase: lifecycle.PhaseCordon,
		Stuck: &lifecycle.Stuck{Phase: lifecycle.PhaseCordon, Reason: "service_unavailable", Since: start().Add(-time.Duration(n) * time.Minute), Options: options}}
}

func option(d lifecycle.Decision, does string, harm lifecycle.Harm) lifecycle.Option {
	return lifecycle.Option{Decision: d, Does: does, Harm: harm}
}

// manyParked has five operations to retry, one that cannot be, and one where it does
// harm. The first one listed parked last, as in the API's list.
func manyParked(t *testing.T) *harness {
	t.Helper()
	h := setup(t)
	retry := option(lifecycle.DecisionRetry, "Cordon the node again", lifecycle.HarmNone)
	for n := range 5 {
		h.api.operations = append(h.api.operations, parkedOn(n+1, retry))
	}
	h.api.operations = append(h.api.operations, parkedOn(6, option(lifecycle.DecisionCancel, "Uncordon the node", lifecycle.HarmNone)),
		parkedOn(7, option(lifecycle.DecisionRetry, "Wipe the disks again", lifecycle.HarmFinal)))
	h.temporal.resolve = func(r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
		return drainAt(0, lifecycle.OperationRunning), nil
	}
	return h
}

// oneAtATime makes the order of the messages the order of the list.
func oneAtATime(args ...string) []string {
	return append([]string{"op", "retry", "--reason", "TCK-1", "--max-parallel", "1", "--stuck-reason", "service_unavailable"}, args...)
}

func TestDecideMany(t *testing.T) {
	t.Parallel()
	t.Run("with its plan", func(t *testing.T) {
		t.Parallel()
		h := manyParked(t)
		h.golden("op-retry-many", oneAtATime("-l", "rack=r7", "--action", "drain", "--yes")...)
		for _, want := range []string{"selector=rack%3Dr7", "reason=service_unavailable", "action=drain", "status=parked"} {
			require.Contains(t, h.api.requests[0], want, "the API filters")
		}
		require.Len(t, h.temporal.resolved, 5)
		for i, r := range h.temporal.resolved { // oldest first
			op := h.api.operations[4-i]
			require.Equal(t, lifecycle.ResolveRequest{OperationID: op.OperationID, Phase: op.Stuck.Phase, StuckSince: &op.Stuck.Since,
				Decision: lifecycle.DecisionRetry, Reason: "TCK-1", By: "ops", Via: "api"}, r)
		}
	})
	t.Run("the same decision about the same park has the same key", func(t *testing.T) {
		t.Parallel()
		h := manyParked(t)
		require.Equal(t, schema.ExitRefused, h.run(oneAtATime("--yes")...))
		first := slices.Clone(h.api.keys)
		require.NotContains(t, first, "")
		h.api.keys, h.api.operations[0].Stuck.Since = nil, start()
		require.Equal(t, schema.ExitRefused, h.run(oneAtATime("--yes")...))
		require.Equal(t, first[:4], h.api.keys[:4])
		require.NotEqual(t, first[4], h.api.keys[4], "it parked again")
	})
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		h := manyParked(t)
		require.Equal(t, schema.ExitRefused, h.run(oneAtATime("--yes", "-o", "json")...))
		var result struct {
			Decision   lifecycle.Decision
			Operations []decideRow
			Summary    map[bulkOutcome]int
		}
		require.NoError(t, json.Unmarshal(h.out.Bytes(), &result))
		require.Equal(t, map[bulkOutcome]int{decideTaken: 5, decideNoOption: 1, decideHarmful: 1}, result.Summary)
		require.Equal(t, "gpu-7", result.Operations[0].Host, "oldest first")
	})
	t.Run("with harm", func(t *testing.T) {
		t.Parallel()
		h := manyParked(t)
		require.Zero(t, h.run(oneAtATime("--yes", "--allow-harm")...), h.err.String())
		require.Len(t, h.temporal.resolved, 6)
		require.Contains(t, h.err.String(), "gpu-7: drain, phase cordon (service_unavailable): Wipe the disks again [harm: final]")
	})
	t.Run("dry run", func(t *testing.T) {
		t.Parallel()
		h := manyParked(t)
		h.golden("op-retry-many-dry-run", oneAtATime("--dry-run")...)
		require.Empty(t, h.temporal.resolved)
	})
	t.Run("outdated and failed", func(t *testing.T) {
		t.Parallel()
		h := manyParked(t)
		h.temporal.resolve = func(r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
			switch {
			case strings.HasSuffix(r.OperationID, "5"):
				return lifecycle.OperationStatus{}, lifecycle.OperationOver(lifecycle.Operation{OperationID: r.OperationID}, "gpu-5")
			case strings.HasSuffix(r.OperationID, "4"):
				return lifecycle.OperationStatus{}, schema.NewError(schema.KindInvalidRequest, "the phase cannot be retried")
			}
			return drainAt(0, lifecycle.OperationRunning), nil
		}
		h.golden("op-retry-many-failed", oneAtATime("--yes")...)
	})
	t.Run("an unavailable service stops it", func(t *testing.T) {
		t.Parallel()
		h := manyParked(t)
		h.temporal.down = true
		require.Equal(t, schema.ExitFailed, h.run(oneAtATime("--yes")...))
		require.Contains(t, h.err.String(), "1 failed, 1 harmful, 1 not possible, 4 not sent")
	})
	t.Run("cancels that Temporal stored do not stop it", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		for n := range 3 {
			h.api.operations = append(h.api.operations, parkedOn(n+1, option(lifecycle.DecisionCancel, "Uncordon the node", lifecycle.HarmNone)))
		}
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
			return lifecycle.OperationStatus{}, schema.NewError(schema.KindServiceUnavailable, "no worker responded").
				WithReason(lifecycle.ReasonCancelStored)
		}
		h.golden("op-cancel-many-stored", "op", "cancel", "--reason", "TCK-1", "--max-parallel", "1", "--action", "drain", "--yes")
		require.Len(t, h.temporal.resolved, 3)
	})
	t.Run("decisions that operations accepted do not stop it", func(t *testing.T) {
		t.Parallel()
		h := manyParked(t)
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
			return lifecycle.OperationStatus{}, schema.NewError(schema.KindServiceUnavailable, "the operation accepted the decision").
				WithReason(lifecycle.ReasonDecisionAccepted)
		}
		require.Equal(t, schema.ExitPending, h.run(oneAtATime("--yes")...))
		require.Contains(t, h.err.String(), "5 decisions accepted: applied as soon as the database and a gpuaas-worker are available")
		require.Len(t, h.temporal.resolved, 5)
	})
	t.Run("nothing matches", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Equal(t, schema.ExitNotFound, h.run(oneAtATime("--yes")...))
	})
}

func TestDecideManyAsks(t *testing.T) {
	t.Parallel()
	h := manyParked(t)
	require.Equal(t, schema.ExitUsage, h.run(oneAtATime()...), "without a terminal")
	h.onTerminal("n\n")
	require.Equal(t, schema.ExitFailed, h.run(oneAtATime()...))
	require.Contains(t, h.err.String(), "retry 5 operations. Continue? [y/N]")
	require.Empty(t, h.temporal.resolved)
	h.onTerminal("y\n")
	require.Equal(t, schema.ExitRefused, h.run(oneAtATime()...))
	require.Len(t, h.temporal.resolved, 5)
}

func TestDecideManyUsage(t *testing.T) {
	t.Parallel()
	h := manyParked(t)
	for _, args := range [][]string{
		oneAtATime("gpu-17"), oneAtATime("--direct"), oneAtATime("--wait"), oneAtATime("--idempotency-key", "k"), oneAtATime("--reissue"),
		oneAtATime("--operation", operationID), oneAtATime("--max-parallel", "0"), oneAtATime("--reason", "TEXT"), oneAtATime("--reason", ""),
		{"op", "retry", "gpu-17", "--reason", "TCK-1", "--allow-harm"}, {"op", "retry", "gpu-17", "--reason", "TCK-1", "--dry-run"},
		{"op", "force", "-l", "rack=r7", "--reason", "TCK-1"}, {"op", "skip", "-l", "rack=r7", "--reason", "TCK-1"}, {"op", "retry", "--reason", "TCK-1"},
	} {
		require.Equal(t, schema.ExitUsage, h.run(args...), args)
	}
	require.Empty(t, h.api.requests)
}
