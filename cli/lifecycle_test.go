package cli

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestLifecycleStarts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args    []string
		action  lifecycle.Action
		options lifecycle.Options
	}{
		"provision":    {[]string{"provision", "gpu-17"}, lifecycle.ActionProvision, lifecycle.Options{}},
		"drain":        {[]string{"drain", "gpu-17", "--yes", "--deadline", "30m"}, lifecycle.ActionDrain, lifecycle.Options{DrainTimeoutSeconds: 1800}},
		"cordon-only":  {[]string{"drain", "gpu-17", "--yes", "--cordon-only"}, lifecycle.ActionDrain, lifecycle.Options{DrainTimeoutSeconds: 600, CordonOnly: true}},
		"retire":       {[]string{"retire", "gpu-17", "--yes"}, lifecycle.ActionRetire, lifecycle.Options{}},
		"retire-drain": {[]string{"retire", "gpu-17", "--yes", "--drain"}, lifecycle.ActionRetire, lifecycle.Options{Drain: true, DrainTimeoutSeconds: 600}},
		"reactivate":   {[]string{"reactivate", "gpu-17"}, lifecycle.ActionReactivate, lifecycle.Options{}},
		"quarantine":   {[]string{"quarantine", "gpu-17"}, lifecycle.ActionQuarantine, lifecycle.Options{}},
		"release":      {[]string{"release", "gpu-17"}, lifecycle.ActionRelease, lifecycle.Options{}},
		"uncordon":     {[]string{"uncordon", "gpu-17"}, lifecycle.ActionUncordon, lifecycle.Options{}},
		"upgrade-agent": {[]string{"upgrade-agent", "gpu-17", "--version", "v2.0.0", "--downgrade"}, lifecycle.ActionUpgradeAgent,
			lifecycle.Options{AgentVersion: "v2.0.0", Downgrade: true}},
		"terminate": {[]string{"terminate", "gpu-17", "--yes", "--force"}, lifecycle.ActionTerminate, lifecycle.Options{Force: true}},
		"remove":    {[]string{"remove", "gpu-17", "--yes"}, lifecycle.ActionRemove, lifecycle.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			args := append([]string{"node"}, tc.args...)
			h.golden("start-"+name, append(args, "--no-wait", "--reason", "RMA-4411", "--idempotency-key", "k1")...)
			require.Equal(t, []lifecycle.OperationInput{{
				OperationID: lifecycle.OperationID(nodeID, tc.action, "ops", "k1"), NodeID: nodeID, Action: tc.action, Actor: "ops", Via: "api",
				Reason: "RMA-4411", CorrelationID: h.env.correlationID, Host: "gpu-17", Provider: "manual", Region: "fra1", Options: tc.options,
			}}, h.temporal.submitted)
		})
	}
}

func TestLifecycleFormats(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "yaml"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.statuses = []lifecycle.OperationStatus{drainAt(3, lifecycle.OperationCompleted)}
			h.golden("drain-"+format, "node", "drain", "gpu-17", "--yes", "--wait", "-o", format)
		})
	}
}

func TestLifecycleWaits(t *testing.T) {
	t.Parallel()
	drain := []string{"node", "drain", "gpu-17", "--yes", "--wait"}

	t.Run("done", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		final := drainAt(3, lifecycle.OperationCompleted)
		final.Operation.Outcome = "1 workload stopped"
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(0, lifecycle.OperationRunning), drainAt(1, lifecycle.OperationRunning),
			drainAt(1, lifecycle.OperationRunning), drainAt(2, lifecycle.OperationRunning), drainAt(3, lifecycle.OperationCompleted)}
		h.temporal.result = &final
		h.golden("wait-done", drain...)
	})
	t.Run("parked", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(0, lifecycle.OperationRunning), parkedDrain()}
		h.golden("wait-parked", drain...)
	})
	t.Run("parked in JSON", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
		require.Equal(t, schema.ExitPending, h.run(append(drain, "-o", "json")...))
		require.Contains(t, h.out.String(), `"reason": "drain_blocked"`)
	})
	for _, s := range []lifecycle.OperationState{lifecycle.OperationFailed, lifecycle.OperationCanceled, lifecycle.OperationRejected} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.statuses = []lifecycle.OperationStatus{drainAt(1, s)}
			h.golden("wait-"+string(s), drain...)
		})
	}
	t.Run("timeout", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		st := drainAt(0, lifecycle.OperationRunning)
		st.Operation.Action = lifecycle.ActionReactivate
		h.temporal.statuses = []lifecycle.OperationStatus{st}
		h.golden("wait-timeout", "node", "reactivate", "gpu-17", "--wait", "--timeout", "5s")
		require.Equal(t, 5*time.Second, h.clock.waited())
	})
	t.Run("a drain's deadline does not bound the wait", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(1, lifecycle.OperationRunning)}
		require.Equal(t, schema.ExitPending, h.run(append(drain, "--deadline", "1m")...))
		want := budgetOf(lifecycle.ActionDrain, lifecycle.Options{DrainTimeoutSeconds: 60}) + waitGrace
		require.Equal(t, want, h.clock.waited())
	})
	t.Run("interrupt", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(0, lifecycle.OperationRunning)}
		ctx, cancel := context.WithCancel(t.Context())
		h.clock.onWait = func(n int) {
			if n == 2 {
				cancel()
			}
		}
		h.goldenCtx(ctx, "wait-interrupt", drain...)
		require.Empty(t, h.temporal.resolved)
	})
}

// TestDirect: --direct uses Temporal alone, while the admin API is down.
func TestDirect(t *testing.T) {
	t.Parallel()
	drain := []string{"--direct", "node", "drain", "gpu-17", "--yes", "--reason", "RMA-4411"}
	direct := func(t *testing.T) *harness {
		t.Helper()
		h := setup(t)
		h.api.server.Close()
		h.temporal.hosts["gpu-17"] = nodeID
		return h
	}
	t.Run("starts and waits", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(1, lifecycle.OperationRunning), drainAt(3, lifecycle.OperationCompleted)}
		h.golden("direct-drain", drain...)
		require.Equal(t, []any{"alice@laptop", "temporal"}, []any{h.temporal.submitted[0].Actor, h.temporal.submitted[0].Via})
	})
	t.Run("closed run", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.statusErr = noWorker()
		final := drainAt(3, lifecycle.OperationCompleted)
		h.temporal.result = &final
		require.Zero(t, h.run(drain...))
	})
	t.Run("no worker", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.statusErr = noWorker()
		h.golden("no-worker", drain...)
		require.Equal(t, silenceBudget, h.clock.waited().Truncate(pollEvery))
	})
	t.Run("names its operation", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.submitErr = noWorker()
		require.Equal(t, schema.ExitUnreachable, h.run(drain...))
		require.Contains(t, h.err.String(), "see: gpuaas --direct op watch gpu-17 --operation "+h.temporal.submitted[0].OperationID+"\n")
	})
	t.Run("decides", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) { return parkedDrain(), nil }
		require.Zero(t, h.run("--direct", "op", "retry", "gpu-17", "--reason", "TCK-99"))
		want := addressed(lifecycle.DecisionRetry, "TCK-99")
		want.ID, want.By, want.Via = h.temporal.resolved[0].ID, "alice@laptop", "temporal"
		require.Equal(t, []lifecycle.ResolveRequest{want}, h.temporal.resolved)
	})
	t.Run("an operation's id in place of the node", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		require.Equal(t, schema.ExitUsage, h.run("--direct", "op", "show", operationID))
		require.Contains(t, h.err.String(), "NODE --operation "+operationID)
		require.Empty(t, h.temporal.queried)
	})
	t.Run("the commands it prints have the flag too", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
		h.golden("direct-op-show", "--direct", "op", "show", "gpu-17")
		h.golden("direct-op-show-json", "--direct", "--address", "temporal.test:7233", "op", "show", "gpu-17", "-o", "jsonpath=$.operation.stuck.next")
		h.golden("direct-drain-parked", drain...)
	})
	t.Run("a finished operation", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(3, lifecycle.OperationCompleted)}
		h.golden("direct-decide-finished", "--direct", "op", "retry", "gpu-17", "--reason", "TCK-99", "-o", "json")
		require.Empty(t, h.temporal.resolved)
	})
	t.Run("an operation that finishes before the decision", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain(), drainAt(3, lifecycle.OperationCompleted)}
		require.Equal(t, schema.ExitRefused, h.run("--direct", "op", "retry", "gpu-17", "--reason", "TCK-99"))
		require.Contains(t, h.err.String(), "decision_outdated")
		require.Contains(t, h.err.String(), "gpuaas --direct op show gpu-17")
	})
	t.Run("a failed run", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(1, lifecycle.OperationRunning)}
		h.temporal.runEnd = lifecycle.RunFailed
		h.golden("direct-abandoned", drain...)
		require.Equal(t, schema.ExitRefused, h.run("--direct", "op", "retry", "gpu-17", "--reason", "TCK-99"))
		require.Contains(t, h.err.String(), "gpuaas node rehydrate gpu-17")
	})
	t.Run("a terminated run", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.terminated, h.temporal.runEnd = runID, lifecycle.RunTerminated
		h.golden("direct-terminated", drain...)
	})
	t.Run("a repeated start", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(3, lifecycle.OperationCompleted)}
		require.Zero(t, h.run(append(drain, "--no-wait", "--idempotency-key", "k1")...))
		require.Contains(t, h.out.String(), "drain gpu-17: completed")
	})
	t.Run("a command that needs the API", func(t *testing.T) {
		t.Parallel()
		for _, args := range []string{"node list", "node show gpu-17", "node register gpu-18", "node enroll gpu-17", "node bootstrap-script gpu-17",
			"op list", "task list", "task resume " + taskID, "audit", "config view", "version", "node drain gpu-17 --dry-run"} {
			h := direct(t)
			require.Equal(t, schema.ExitUsage, h.run(append(strings.Fields(args), "--direct")...), args)
			require.Contains(t, h.err.String(), "does not work with --direct", args)
			require.Empty(t, h.out.String())
		}
		direct(t).golden("usage-direct", "--direct", "node", "list")
	})
	t.Run("another reissue", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		require.Equal(t, schema.ExitNotFound, h.run("--direct", "op", "show", "gpu-17", "--reissue", "--operation", operationID))
		for _, id := range h.temporal.queried {
			require.Equal(t, lifecycle.ReissueWorkflowID("gpu-17", nodeID), id)
		}
	})
	t.Run("unknown host", func(t *testing.T) {
		t.Parallel()
		h := direct(t)
		require.Equal(t, schema.ExitNotFound, h.run("--direct", "op", "show", "gpu-99"))
	})
}

func TestLifecycleRefusals(t *testing.T) {
	t.Parallel()
	busy := schema.NewError(schema.KindOperationInProgress, "cannot drain: retire is in progress on this node").WithNext("gpuaas op watch gpu-17")
	for name, tc := range map[string]struct {
		args []string
		with func(h *harness)
	}{
		"busy":      {[]string{"node", "drain", "gpu-17", "--yes"}, func(h *harness) { h.temporal.submitErr = busy }},
		"busy-json": {[]string{"node", "drain", "gpu-17", "--yes", "-o", "json"}, func(h *harness) { h.temporal.submitErr = busy }},
		"illegal-move": {[]string{"node", "remove", "gpu-17", "--yes"}, func(h *harness) {
			_, h.temporal.submitErr = lifecycle.CheckStart(lifecycle.ActionRemove, lifecycle.NodeActive)
		}},
		"busy-by-id": {[]string{"node", "drain", "gpu-17", "--yes"}, func(h *harness) {
			h.temporal.submitErr = schema.NewError(schema.KindOperationInProgress, "cannot drain").WithNext("gpuaas op watch " + nodeID)
		}},
		"in-use-yaml": {[]string{"node", "retire", "gpu-17", "--yes", "-o", "yaml"}, func(h *harness) {
			h.temporal.submitErr = schema.NewError(schema.KindNodeInUse, "the node holds process train-1")
		}},
		"unknown-node":      {[]string{"node", "drain", "gpu-99", "--yes"}, func(*harness) {}},
		"unknown-node-json": {[]string{"node", "show", "gpu-99", "-o", "json"}, func(*harness) {}},
		"temporal-down":     {[]string{"node", "provision", "gpu-17"}, func(h *harness) { h.temporal.down = true }},
		"no-token":          {[]string{"node", "list"}, func(h *harness) { h.vars["GPUAAS_API_TOKEN"] = "" }},
		"not-our-api": {[]string{"node", "list"}, func(h *harness) {
			h.api.refuse = &schema.Error{Kind: schema.KindServiceUnavailable, Message: "Vault is sealed"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			tc.with(h)
			h.golden("refusal-"+name, tc.args...)
		})
	}
}

func TestUnreachableAPI(t *testing.T) {
	t.Parallel()
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.server.Close()
		require.Equal(t, schema.ExitUnreachable, h.run("node", "list"))
		require.Contains(t, h.err.String(), h.api.server.URL)
		require.Contains(t, h.err.String(), "gpuaas dev status")
	})
}

// TestStartUnknown: after a start that got no response, no command shows another operation as
// the one that was started.
func TestStartUnknown(t *testing.T) {
	t.Parallel()
	start := []string{"node", "drain", "gpu-17", "--yes"}
	t.Run("no response", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.env.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPost {
				return nil, context.DeadlineExceeded
			}
			return http.DefaultTransport.RoundTrip(r)
		})
		h.golden("start-no-response", start...)
	})
	t.Run("interrupted", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		h.env.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPost {
				cancel()
			}
			return http.DefaultTransport.RoundTrip(r)
		})
		h.goldenCtx(ctx, "start-interrupted", start...)
	})
	t.Run("not on record", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		before := drainAt(3, lifecycle.OperationCompleted).Operation
		h.api.operations = []wire.OperationSummary{{OperationID: before.OperationID, NodeID: nodeID, Host: "gpu-17",
			Action: before.Action, Status: before.Status, StartedAt: *before.StartedAt, EndedAt: before.EndedAt}}
		h.temporal.statusErr = schema.NewError(schema.KindNotFound, "no such operation")
		h.golden("op-watch-not-on-record", "op", "watch", "gpu-17", "--operation", "0198f000-0000-7000-8000-0000000000a9")
	})
}

func TestConfirmation(t *testing.T) {
	t.Parallel()
	destructive := [][]string{{"node", "drain", "gpu-17"}, {"node", "retire", "gpu-17"}, {"node", "terminate", "gpu-17"}, {"node", "remove", "gpu-17"},
		{"op", "force", "gpu-17", "--reason", "r"}, {"op", "skip", "gpu-17", "--reason", "r"},
		{"task", "resume", taskID, "--reason", "r"}, {"task", "cancel", taskID, "--reason", "r"}}
	for _, args := range destructive {
		name := args[0] + "-" + args[1]
		t.Run(name+" without a terminal", func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
			h.api.tasks = []wire.TaskView{lostTask()}
			h.golden("confirm-"+name, args...)
			require.Empty(t, h.temporal.submitted)
			require.Empty(t, h.temporal.resolved)
			require.Empty(t, h.api.decided)
		})
		t.Run(name+" refused on a terminal", func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
			h.api.tasks = []wire.TaskView{lostTask()}
			h.onTerminal("\n")
			require.Equal(t, schema.ExitFailed, h.run(args...))
			require.Contains(t, h.err.String(), "Continue? [y/N] nothing was changed\n")
			require.Empty(t, h.temporal.submitted)
			require.Empty(t, h.temporal.resolved)
			require.Empty(t, h.api.decided)
		})
	}
	t.Run("granted on a terminal", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.onTerminal("y\n")
		require.Zero(t, h.run("node", "drain", "gpu-17", "--no-wait"))
		require.Len(t, h.temporal.submitted, 1)
	})
}

// abandonedNode is a node whose drain is abandoned.
func abandonedNode(n *wire.NodeView) {
	n.State, n.Operation = lifecycle.NodeDraining, &wire.OperationSummary{OperationID: operationID, Action: lifecycle.ActionDrain,
		Status: lifecycle.OperationAbandoned, Actor: "bob@laptop", PriorState: lifecycle.NodeActive}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	warned := func(n *wire.NodeView) {
		n.Workloads = []task.Workload{train(), train()}
		n.Workloads[1].Name, n.Workloads[1].Warning = "front", "its data\x1b[2J is lost"
	}
	for name, tc := range map[string]struct {
		args []string
		with func(n *wire.NodeView)
	}{
		"drain":              {[]string{"drain"}, func(n *wire.NodeView) { n.Workloads = []task.Workload{train()} }},
		"drain-json":         {[]string{"drain", "-o", "json"}, func(n *wire.NodeView) { n.Workloads = []task.Workload{train()} }},
		"drain-warning":      {[]string{"drain"}, warned},
		"drain-warning-json": {[]string{"drain", "-o", "json"}, warned},
		"drain-blocked": {[]string{"drain"}, func(n *wire.NodeView) {
			n.Workloads = []task.Workload{{Name: "no other control plane node is ready and schedulable", Kind: task.KindLastServer, Warning: "a drain is refused: add a second server first, or terminate the node"},
				{Name: "unknown workloads since 09:00", Kind: task.KindUnknown}, {Name: "pid 7", Kind: task.KindGPUProcess}, train()}
		}},
		"cordon-only": {[]string{"drain", "--cordon-only"}, func(*wire.NodeView) {}},
		"retire-busy": {[]string{"retire"}, func(n *wire.NodeView) { n.Workloads = []task.Workload{train()} }},
		"retire-busy-json": {[]string{"retire", "-o", "json"}, func(n *wire.NodeView) {
			n.Workloads = []task.Workload{train()}
		}},
		"terminate": {[]string{"terminate"}, func(n *wire.NodeView) {
			n.OnboardingMode, n.Instance = "libvirt", &lifecycle.Instance{State: lifecycle.InstanceRunning}
		}},
		"terminate-busy": {[]string{"terminate"}, func(n *wire.NodeView) {
			n.OnboardingMode, n.Instance = "libvirt", &lifecycle.Instance{State: lifecycle.InstanceRunning}
			n.Workloads = []task.Workload{train()}
		}},
		"terminate-nothing": {[]string{"terminate"}, func(n *wire.NodeView) { n.OnboardingMode, n.State = "libvirt", lifecycle.NodeRegistered }},
		"terminate-adopted": {[]string{"terminate"}, func(n *wire.NodeView) { n.OnboardingMode = "manual" }},
		"remove-active":     {[]string{"remove"}, func(*wire.NodeView) {}},
		"remove-busy": {[]string{"remove"}, func(n *wire.NodeView) {
			n.State, n.Workloads, n.LastHeartbeatAt = lifecycle.NodeRetired, []task.Workload{train()}, at(-time.Minute)
		}},
		"enroll": {[]string{"enroll"}, func(n *wire.NodeView) { n.State = lifecycle.NodeRegistered }},
		"running": {[]string{"provision"}, func(n *wire.NodeView) {
			n.Operation = &wire.OperationSummary{OperationID: operationID, Action: lifecycle.ActionProvision, Status: lifecycle.OperationRunning, Actor: "bob@laptop"}
		}},
		"abandoned": {[]string{"drain"}, abandonedNode},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			tc.with(&h.api.nodes[0])
			args := append([]string{"node", tc.args[0], "gpu-17", "--dry-run"}, tc.args[1:]...)
			h.golden("plan-"+name, args...)
			require.Empty(t, h.temporal.submitted)
			require.Empty(t, h.api.enrolled)
		})
	}
	t.Run("without the api", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.server.Close()
		require.Equal(t, schema.ExitUnreachable, h.run("node", "drain", nodeID, "--dry-run"))
	})
}

func TestStartWithin(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.temporal.hosts["gpu-17"] = nodeID
	drain := []string{"--direct", "node", "drain", "gpu-17", "--yes", "--no-wait"}
	require.Zero(t, h.run(drain...), h.err.String())
	require.Zero(t, h.temporal.submitted[0].StartWithinSeconds, "Submit sets the default")
	require.Zero(t, h.run(append(drain, "--start-within", "1h")...), h.err.String())
	require.Equal(t, time.Hour, h.temporal.submitted[1].StartWithin())
	for _, bad := range []string{"0s", "25h"} {
		require.Equal(t, schema.ExitUsage, h.run(append(drain, "--start-within", bad)...))
		require.Contains(t, h.err.String(), "--start-within")
	}
}

// TestGPUsNeedAReset: GPUs that no rung resets are a mistake.
func TestGPUsNeedAReset(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.nodes = []wire.NodeView{enrolled()}
	for _, rungs := range [][]string{nil, {"--rung", "reboot,quarantine"}} {
		require.Equal(t, schema.ExitUsage, h.run(append([]string{"node", "recover", "gpu-17", "--yes", "--gpu", "GPU-1"}, rungs...)...))
		require.Contains(t, h.err.String(), "--gpu needs the rung reset_gpu")
	}
	require.Zero(t, h.run("node", "recover", "gpu-17", "--yes", "--no-wait", "--gpu", "GPU-1", "--rung", "reset_gpu"), h.err.String())
}
