package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestOpShow(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		with func(h *harness)
	}{
		"parked": {func(h *harness) { h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()} }},
		"completed": {func(h *harness) {
			h.temporal.statuses = []lifecycle.OperationStatus{drainAt(3, lifecycle.OperationCompleted)}
		}},
		"no-worker": {func(h *harness) {
			h.temporal.statusErr = noWorker()
			h.api.operations = []wire.OperationSummary{{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", WorkflowID: lifecycle.NodeWorkflowID("gpu-17", nodeID),
				RunID: runID, Action: lifecycle.ActionRetire, Status: lifecycle.OperationRunning, Phase: lifecycle.PhaseDrain, StartedAt: start(), Actor: "bob@desk"}}
		}},
		"none": {func(*harness) {}},
		"down": {func(h *harness) { h.temporal.down = true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			tc.with(h)
			h.golden("op-show-"+name, "op", "show", "gpu-17")
		})
	}
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
		h.golden("op-show-json", "op", "show", "gpu-17", "-o", "json")
	})
}

func TestPhasesOfRow(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		action lifecycle.Action
		status lifecycle.OperationState
		phase  string
		want   string
	}{
		"just claimed":   {lifecycle.ActionDrain, lifecycle.OperationAccepted, "", "cordon=pending drain=pending drained=pending"},
		"running":        {lifecycle.ActionDrain, lifecycle.OperationRunning, lifecycle.PhaseDrain, "cordon=completed drain=running drained=pending"},
		"parked":         {lifecycle.ActionDrain, lifecycle.OperationParked, lifecycle.PhaseCordon, "cordon=parked drain=pending drained=pending"},
		"failed":         {lifecycle.ActionDrain, lifecycle.OperationFailed, lifecycle.PhaseDrain, "cordon=completed drain=failed drained=pending"},
		"cancelled":      {lifecycle.ActionDrain, lifecycle.OperationCanceled, lifecycle.PhaseDrain, "cordon=completed drain=cancelled drained=pending"},
		"retired":        {lifecycle.ActionRetire, lifecycle.OperationCompleted, "", "retire=completed"},
		"retire, drains": {lifecycle.ActionRetire, lifecycle.OperationRunning, lifecycle.PhaseCordon, "cordon=running drain=pending retire=pending"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, p := range phasesOfRow(wire.OperationSummary{Action: tc.action, Status: tc.status, Phase: tc.phase}, lifecycle.Options{}) {
				got = append(got, p.Name+"="+string(p.State))
			}
			require.Equal(t, tc.want, strings.Join(got, " "))
		})
	}
}

func TestOpWatch(t *testing.T) {
	t.Parallel()
	t.Run("through a park", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		again := drainAt(1, lifecycle.OperationRunning)
		again.Operation.Phases[1].Attempt = 2
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain(), parkedDrain(), again, drainAt(3, lifecycle.OperationCompleted)}
		h.golden("op-watch", "op", "watch", "gpu-17")
	})
	t.Run("timeout", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
		h.golden("op-watch-timeout", "op", "watch", "gpu-17", "--timeout", "1m")
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, schema.ExitNotFound, setup(t).run("op", "watch", "gpu-17"))
	})
}

func TestOpResolve(t *testing.T) {
	t.Parallel()
	for _, d := range lifecycle.Decisions() {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
				return drainAt(1, lifecycle.OperationRunning), nil
			}
			args := []string{"op", string(d), "gpu-17", "--reason", "TCK-99"}
			if d == lifecycle.DecisionForce || d == lifecycle.DecisionSkip {
				args = append(args, "--yes")
			}
			h.golden("op-"+string(d), args...)
			require.Equal(t, []lifecycle.ResolveRequest{{Decision: d, Reason: "TCK-99", By: "alice@desk"}}, h.temporal.resolved)
		})
	}
	for _, d := range lifecycle.Decisions() {
		t.Run(string(d)+" without a reason", func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
				return drainAt(1, lifecycle.OperationRunning), nil
			}
			if d == lifecycle.DecisionForce || d == lifecycle.DecisionSkip {
				require.Equal(t, schema.ExitUsage, h.run("op", string(d), "gpu-17", "--yes"))
				require.Equal(t, schema.ExitUsage, h.run("op", string(d), "gpu-17", "--yes", "--reason", " "))
				require.Empty(t, h.temporal.resolved)
				require.Empty(t, h.api.requests, "nothing is asked or sent before")
				return
			}
			require.Zero(t, h.run("op", string(d), "gpu-17"))
			require.Equal(t, []lifecycle.ResolveRequest{{Decision: d, By: "alice@desk"}}, h.temporal.resolved)
		})
	}
	t.Run("nothing runs", func(t *testing.T) {
		t.Parallel()
		setup(t).golden("op-cancel-none", "op", "cancel", "gpu-17")
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
			return lifecycle.OperationStatus{}, schema.NewError(schema.KindInvalidRequest, "the operation is not parked: there is nothing to retry")
		}
		h.golden("op-retry-refused", "op", "retry", "gpu-17", "-o", "json")
	})
	t.Run("temporal down", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.down = true
		require.Equal(t, schema.ExitUnreachable, h.run("op", "retry", "gpu-17"))
		require.Contains(t, h.err.String(), "temporal.test:7233")
	})
	t.Run("then waits", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
			return drainAt(1, lifecycle.OperationRunning), nil
		}
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(1, lifecycle.OperationCanceled)}
		h.golden("op-cancel-wait", "op", "cancel", "gpu-17", "--wait")
	})
}

func TestStuck(t *testing.T) {
	t.Parallel()
	parkedRow := wire.OperationSummary{OperationID: "0198f000-0000-7000-8000-0000000000a2", NodeID: "0198f000-0000-7000-8000-000000000018",
		Host: "gpu-18", Action: lifecycle.ActionProvision, Status: lifecycle.OperationParked, Phase: lifecycle.PhaseSKU, StartedAt: start().Add(-time.Hour),
		Stuck: &lifecycle.Stuck{Phase: lifecycle.PhaseSKU, WaitingOn: lifecycle.AttentionOperator, Reason: "unfit", Message: "6 GPUs found, 8 registered",
			Since: start().Add(-50 * time.Minute), Next: "gpuaas op retry NODE"}}
	overdue := wire.OperationSummary{OperationID: "0198f000-0000-7000-8000-0000000000a3", NodeID: "0198f000-0000-7000-8000-000000000019",
		Host: "gpu-19", Action: lifecycle.ActionReactivate, Status: lifecycle.OperationRunning, Phase: lifecycle.PhaseProbe, StartedAt: start().Add(-time.Hour)}
	fine := overdue
	fine.OperationID, fine.StartedAt = "0198f000-0000-7000-8000-0000000000a4", start().Add(-time.Minute)
	same := wire.OperationSummary{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", Action: lifecycle.ActionDrain,
		Status: lifecycle.OperationParked, StartedAt: start(), Stuck: parkedDrain().Operation.Stuck}
	both := func(h *harness) {
		h.temporal.parked = []lifecycle.OperationStatus{parkedDrain()}
		h.api.operations = []wire.OperationSummary{parkedRow, overdue, fine, same}
	}
	for name, tc := range map[string]struct {
		args []string
		with func(h *harness)
	}{
		"both":         {nil, both},
		"json":         {[]string{"-o", "json"}, both},
		"nothing":      {nil, func(*harness) {}},
		"nothing-json": {[]string{"-o", "json"}, func(*harness) {}},
		"no-worker": {nil, func(h *harness) {
			both(h)
			st := parkedDrain()
			st.Operation.Phases = nil
			st.Node.State = ""
			st.Operation.Stuck = &lifecycle.Stuck{WaitingOn: lifecycle.AttentionOperator, Reason: "drain_blocked", Since: start(),
				Message: "no worker answers for this operation", Next: "start a gpuaas-worker"}
			h.temporal.parked = []lifecycle.OperationStatus{st}
		}},
		"temporal-down": {nil, func(h *harness) { both(h); h.temporal.down = true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			tc.with(h)
			h.golden("stuck-"+name, append([]string{"stuck"}, tc.args...)...)
		})
	}
	t.Run("both down", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.down = true
		h.api.server.Close()
		require.Equal(t, schema.ExitUnreachable, h.run("stuck"))
	})
	t.Run("api down", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		both(h)
		h.api.server.Close()
		require.Zero(t, h.run("stuck"))
		require.Contains(t, h.out.String(), "gpuaas op force gpu-17")
		require.Contains(t, h.err.String(), "only what Temporal knows")
	})
}
