package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// retries runs a retry with --direct for each idempotency key, "" for none, and
// returns the ids of the decisions.
func (h *harness) retries(keys ...string) (ids []string) {
	h.t.Helper()
	for _, key := range keys {
		args := []string{"--direct", "op", "retry", "gpu-17", "--reason", "TCK-99"}
		if key != "" {
			args = append(args, "--idempotency-key", key)
		}
		require.Zero(h.t, h.run(args...), h.err.String())
		ids = append(ids, h.temporal.resolved[len(h.temporal.resolved)-1].ID)
	}
	return ids
}

// A key is one decision, even about an operation that has parked again since: Temporal
// delivers one id once.
func TestDirectDecisionWithKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.temporal.hosts["gpu-17"] = nodeID
	again := parkedDrain()
	again.Operation.Stuck.Since = again.Operation.Stuck.Since.Add(time.Minute)
	h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain(), again}
	h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
		return drainAt(1, lifecycle.OperationRunning), nil
	}
	ids := h.retries("k", "k", "other", "", "")
	require.Equal(t, lifecycle.DecisionID(operationID, "alice@laptop", "k"), ids[0])
	require.Equal(t, ids[0], ids[1])
	for i, id := range ids[1:] {
		require.True(t, schema.IsID(id))
		require.NotContains(t, ids[i+2:], id, "a new decision")
	}
}

// An operation that has ended, before or after it was read, has the first response to
// a repeated decision and rejects a new one.
func TestDirectDecisionAfterTheEnd(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]lifecycle.OperationStatus{
		"ended before": drainAt(3, lifecycle.OperationCompleted), "ends meanwhile": parkedDrain()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.hosts["gpu-17"] = nodeID
			h.temporal.statuses = []lifecycle.OperationStatus{read}
			h.temporal.first = map[string]lifecycle.OperationStatus{
				lifecycle.DecisionID(operationID, "alice@laptop", "k"): drainAt(1, lifecycle.OperationRunning)}
			retry := []string{"--direct", "op", "retry", "gpu-17", "--reason", "TCK-99"}
			require.Zero(t, h.run(append(retry, "--idempotency-key", "k")...), h.err.String())
			require.Contains(t, h.out.String(), "drain gpu-17: running")
			for _, args := range [][]string{retry, append(retry, "--idempotency-key", "other")} {
				require.Equal(t, schema.ExitRefused, h.run(args...))
				require.Contains(t, h.err.String(), "decision_outdated")
			}
		})
	}
}

// Without a worker, a decision is addressed to the open operation that Temporal lists.
func TestDirectCancelWithoutWorker(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.temporal.hosts["gpu-17"] = nodeID
	h.temporal.statusErr = noWorker()
	open := drainAt(0, lifecycle.OperationAccepted)
	h.temporal.described = &open
	h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
		return lifecycle.OperationStatus{}, noWorker()
	}
	require.Equal(t, schema.ExitUnreachable, h.run("--direct", "op", "cancel", "gpu-17", "--reason", "wrong node"))
	require.Len(t, h.temporal.resolved, 1, h.err.String())
	require.Equal(t, operationID, h.temporal.resolved[0].OperationID)
}

// Of a run that was terminated, Temporal has the operation and how the run ended: the
// commands show that, with the command that resolves it.
func TestDirectTerminatedRun(t *testing.T) {
	t.Parallel()
	for name, statusErr := range map[string]error{
		"with a worker":    schema.NewError(schema.KindServiceUnavailable, "run was reset or terminated").WithReason("run_terminated"),
		"without a worker": noWorker()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.api.server.Close()
			h.temporal.hosts["gpu-17"] = nodeID
			ended := operation(lifecycle.ActionDrain, "")
			ended.EndedAt, ended.Stuck = at(0), &lifecycle.Stuck{Phase: lifecycle.PhaseDrain}
			h.temporal.statusErr, h.temporal.runEnd = statusErr, lifecycle.RunTerminated
			h.temporal.described = &lifecycle.OperationStatus{Operation: ended, Node: lifecycle.NodeRef{NodeID: nodeID, Host: "gpu-17"}}
			h.golden("direct-op-show-terminated", "--direct", "op", "show", "gpu-17")
			require.Equal(t, schema.ExitRefused, h.run("--direct", "op", "cancel", "gpu-17", "--reason", "TCK-99"))
			require.Contains(t, h.err.String(), "next:  gpuaas node rehydrate gpu-17\n")
			require.Equal(t, schema.ExitFailed, h.run("--direct", "op", "watch", "gpu-17"))
			require.Contains(t, h.err.String(), "next:  gpuaas node rehydrate gpu-17\n")
			require.Zero(t, h.run("--direct", "op", "show", "gpu-17", "-o", "jsonpath=$.operation.stuck.next"))
			require.Equal(t, "gpuaas node rehydrate gpu-17\n", h.out.String())
		})
	}
}

// TestDirectLostTask: without the admin API no task can be resumed, so another option is the
// next step, if one does no harm.
func TestDirectLostTask(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		harm lifecycle.Harm
		want string
	}{
		"a harmless option": {lifecycle.HarmNone, "gpuaas --direct op cancel gpu-17 --reason TEXT\n"},
		"a harmful option":  {lifecycle.HarmWork, "gpuaas task resume t-1 --reason TEXT\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.hosts["gpu-17"] = nodeID
			lost := parkedDrain()
			resume := lifecycle.ResumeTask("t-1")
			lost.Operation.Stuck.Next = resume.Command
			lost.Operation.Stuck.Options = []lifecycle.Option{resume,
				{Decision: lifecycle.DecisionCancel, Harm: tc.harm, Command: "gpuaas op cancel gpu-17 --reason TEXT"}}
			h.temporal.statuses, h.temporal.parked = []lifecycle.OperationStatus{lost}, []lifecycle.OperationStatus{lost}
			require.Zero(t, h.run("--direct", "op", "show", "gpu-17", "-o", "jsonpath=$.operation.stuck.next"))
			require.Equal(t, tc.want, h.out.String())
			require.Zero(t, h.run("--direct", "stuck", "-o", "jsonpath=$.stuck[0].stuck.next"), h.err.String())
			require.Equal(t, tc.want, h.out.String())
		})
	}
}
