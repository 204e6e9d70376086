package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func TestOpShow(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		with func(h *harness)
	}{
		"parked": {func(h *harness) { h.temporal.statuses = []schema.OperationStatus{parkedDrain()} }},
		"completed": {func(h *harness) {
			h.temporal.statuses = []schema.OperationStatus{drainAt(3, schema.OperationCompleted)}
		}},
		"no-worker": {func(h *harness) {
			h.temporal.statusErr = noWorker()
			h.api.operations = []schema.OperationSummary{{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", WorkflowID: schema.NodeWorkflowID(nodeID),
				RunID: runID, Action: schema.ActionRetire, Status: schema.OperationRunning, Phase: schema.PhaseDrain, StartedAt: start(), Actor: "bob@desk"}}
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
		h.temporal.statuses = []schema.OperationStatus{parkedDrain()}
		h.golden("op-show-json", "op", "show", "gpu-17", "-o", "json")
	})
}

func TestPhasesOfRow(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		action schema.Action
		status schema.OperationState
		phase  string
		want   string
	}{
		"just claimed":   {schema.ActionDrain, schema.OperationAccepted, "", "cordon=pending drain=pending drained=pending"},
		"running":        {schema.ActionDrain, schema.OperationRunning, schema.PhaseDrain, "cordon=completed drain=running drained=pending"},
		"parked":         {schema.ActionDrain, schema.OperationParked, schema.PhaseCordon, "cordon=parked drain=pending drained=pending"},
		"failed":         {schema.ActionDrain, schema.OperationFailed, schema.PhaseDrain, "cordon=completed drain=failed drained=pending"},
		"cancelled":      {schema.ActionDrain, schema.OperationCancelled, schema.PhaseDrain, "cordon=completed drain=cancelled drained=pending"},
		"retired":        {schema.ActionRetire, schema.OperationCompleted, "", "retire=completed"},
		"retire, drains": {schema.ActionRetire, schema.OperationRunning, schema.PhaseCordon, "cordon=running drain=pending retire=pending"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, p := range phasesOfRow(schema.OperationSummary{Action: tc.action, Status: tc.status, Phase: tc.phase}, schema.OperationOptions{}) {
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
		again := drainAt(1, schema.OperationRunning)
		again.Operation.Phases[1].Attempt = 2
		h.temporal.statuses = []schema.OperationStatus{parkedDrain(), parkedDrain(), again, drainAt(3, schema.OperationCompleted)}
		h.golden("op-watch", "op", "watch", "gpu-17")
	})
	t.Run("timeout", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statuses = []schema.OperationStatus{parkedDrain()}
		h.golden("op-watch-timeout", "op", "watch", "gpu-17", "--timeout", "1m")
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, schema.ExitNotFound, setup(t).run("op", "watch", "gpu-17"))
	})
}

func TestOpResolve(t *testing.T) {
	t.Parallel()
	for _, d := range schema.Decisions() {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.resolve = func(schema.ResolveRequest) (schema.OperationStatus, error) {
				return drainAt(1, schema.OperationRunning), nil
			}
			args := []string{"op", string(d), "gpu-17", "--reason", "TCK-99"}
			if d == schema.DecisionForce || d == schema.DecisionSkip {
				args = append(args, "--yes")
			}
			h.golden("op-"+string(d), args...)
			require.Equal(t, []schema.ResolveRequest{{Decision: d, Reason: "TCK-99", By: "alice@desk"}}, h.temporal.resolved)
		})
	}
	for _, d := range schema.Decisions() {
		t.Run(string(d)+" without a reason", func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.resolve = func(schema.ResolveRequest) (schema.OperationStatus, error) {
				return drainAt(1, schema.OperationRunning), nil
			}
			if d == schema.DecisionForce || d == schema.DecisionSkip {
				require.Equal(t, schema.ExitUsage, h.run("op", string(d), "gpu-17", "--yes"))
				require.Equal(t, schema.ExitUsage, h.run("op", string(d), "gpu-17", "--yes", "--reason", " "))
				require.Empty(t, h.temporal.resolved)
				require.Empty(t, h.api.requests, "nothing is asked or sent before")
				return
			}
			require.Zero(t, h.run("op", string(d), "gpu-17"))
			require.Equal(t, []schema.ResolveRequest{{Decision: d, By: "alice@desk"}}, h.temporal.resolved)
		})
	}
	t.Run("nothing runs", func(t *testing.T) {
		t.Parallel()
		setup(t).golden("op-cancel-none", "op", "cancel", "gpu-17")
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.resolve = func(schema.ResolveRequest) (schema.OperationStatus, error) {
			return schema.OperationStatus{}, schema.NewError(schema.KindInvalidRequest, "the operation is not parked: there is nothing to retry")
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
		h.temporal.resolve = func(schema.ResolveRequest) (schema.OperationStatus, error) {
			return drainAt(1, schema.OperationRunning), nil
		}
		h.temporal.statuses = []schema.OperationStatus{drainAt(1, schema.OperationCancelled)}
		h.golden("op-cancel-wait", "op", "cancel", "gpu-17", "--wait")
	})
}

func TestStuck(t *testing.T) {
	t.Parallel()
	parkedRow := schema.OperationSummary{OperationID: "0198f000-0000-7000-8000-0000000000a2", NodeID: "0198f000-0000-7000-8000-000000000018",
		Host: "gpu-18", Action: schema.ActionProvision, Status: schema.OperationParked, Phase: schema.PhaseSKU, StartedAt: start().Add(-time.Hour),
		Stuck: &schema.Stuck{Phase: schema.PhaseSKU, Attention: schema.AttentionOperator, Reason: "unfit", Message: "6 GPUs found, 8 registered",
			Since: start().Add(-50 * time.Minute), Next: "gpuaas op retry NODE"}}
	overdue := schema.OperationSummary{OperationID: "0198f000-0000-7000-8000-0000000000a3", NodeID: "0198f000-0000-7000-8000-000000000019",
		Host: "gpu-19", Action: schema.ActionReactivate, Status: schema.OperationRunning, Phase: schema.PhaseProbe, StartedAt: start().Add(-time.Hour)}
	fine := overdue
	fine.OperationID, fine.StartedAt = "0198f000-0000-7000-8000-0000000000a4", start().Add(-time.Minute)
	same := schema.OperationSummary{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", Action: schema.ActionDrain,
		Status: schema.OperationParked, StartedAt: start(), Stuck: parkedDrain().Operation.Stuck}
	both := func(h *harness) {
		h.temporal.parked = []schema.OperationStatus{parkedDrain()}
		h.api.operations = []schema.OperationSummary{parkedRow, overdue, fine, same}
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
			st.Operation.Stuck = &schema.Stuck{Attention: schema.AttentionOperator, Reason: "drain_blocked", Since: start(),
				Message: "no worker answers for this operation", Next: "start a gpuaas-worker"}
			h.temporal.parked = []schema.OperationStatus{st}
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
