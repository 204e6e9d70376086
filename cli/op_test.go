package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestOpShow(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		with func(h *harness)
	}{
		"parked": {func(h *harness) { h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()} }},
		"retried": {func(h *harness) {
			st := parkedDrain()
			s := st.Operation.Stuck
			s.Reason, s.Message, s.Retrying = "agent_silent", "the node's agent did not respond within 5m", &lifecycle.Retrying{Tries: 3, NextAt: at(-time.Hour)}
			h.temporal.statuses = []lifecycle.OperationStatus{st}
		}},
		"completed": {func(h *harness) {
			h.temporal.statuses = []lifecycle.OperationStatus{drainAt(3, lifecycle.OperationCompleted)}
		}},
		"no-worker": {func(h *harness) {
			h.temporal.statusErr = noWorker()
			h.api.operations = []wire.OperationSummary{{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", WorkflowID: lifecycle.NodeWorkflowID("gpu-17", nodeID),
				RunID: runID, Action: lifecycle.ActionRetire, Status: lifecycle.OperationRunning, Phase: lifecycle.PhaseDrain, StartedAt: start(), Actor: "bob@laptop"}}
		}},
		"failing": {func(h *harness) {
			h.temporal.statuses = []lifecycle.OperationStatus{drainAt(1, lifecycle.OperationRunning)}
			h.temporal.runFaults = []wire.ControlPlaneFault{{Component: "tasks", Reason: "service_unavailable", Message: "the activity EnqueueTask fails and is retried, now in attempt 7: Vault at vault.test\x1b[2J does not respond"}}
		}},
		"draining": {func(h *harness) {
			n := node()
			n.State, n.Workloads = lifecycle.NodeDraining, []task.Workload{{Name: "train-1", Kind: "container"}, {Name: "train-2\x1b[2J", Kind: "container"}}
			h.api.nodes, h.temporal.statuses = []wire.NodeView{n}, []lifecycle.OperationStatus{drainAt(1, lifecycle.OperationRunning)}
		}},
		"draining-empty": {func(h *harness) {
			n := node()
			n.State, n.Workloads = lifecycle.NodeDraining, nil
			h.api.nodes, h.temporal.statuses = []wire.NodeView{n}, []lifecycle.OperationStatus{drainAt(1, lifecycle.OperationRunning)}
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
	t.Run("a call that is retried, without the API", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statuses, h.temporal.hosts["gpu-17"] = []lifecycle.OperationStatus{drainAt(1, lifecycle.OperationRunning)}, nodeID
		h.temporal.runFaults = []wire.ControlPlaneFault{{Component: "tasks", Reason: "service_unavailable", Message: "Vault does not respond"}}
		require.Zero(t, h.run("--direct", "op", "show", "gpu-17"), h.err.String())
		require.Regexp(t, `Fault: +Vault does not respond \(service_unavailable\)`, h.out.String())
	})
	t.Run("page in the Web UI", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		page := "http://web.test/" + lifecycle.NodeWorkflowID("gpu-17", nodeID) + "/" + runID
		h.temporal.statuses, h.temporal.hosts["gpu-17"] = []lifecycle.OperationStatus{parkedDrain()}, nodeID
		for _, args := range [][]string{{"op", "show", "gpu-17"}, {"op", "show", operationID}, {"--direct", "op", "show", "gpu-17"}, {"--direct", "stuck"}} {
			h.vars["GPUAAS_WEB_UI_URL"] = "http://web.test"
			h.temporal.parked = h.temporal.statuses
			require.Zero(t, h.run(args...), h.err.String())
			if args[len(args)-1] != "stuck" {
				require.Regexp(t, `Web: +`+regexp.QuoteMeta(page)+"\n", h.out.String())
			}
			require.Zero(t, h.run(append(args, "-o", "json")...))
			require.Contains(t, h.out.String(), `"web_url": "`+page+`"`)
			if args[0] == "--direct" { // no address is configured
				delete(h.vars, "GPUAAS_WEB_UI_URL")
				require.Zero(t, h.run(append(args, "-o", "json")...))
				require.NotContains(t, h.out.String(), "web_url")
			}
		}
	})
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
	for name, terminal := range map[string]bool{"on a terminal": true, "in a log": false} {
		t.Run("each park "+name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			if terminal {
				h.onTerminal("")
			}
			again := parkedSince(parkedDrain(), start())
			again.Operation.Phases[1].Attempt = 2
			other := parkedSince(parkedDrain(), start()) // a retry in the background failed for another reason
			other.Operation.Stuck.Reason, other.Operation.Stuck.Message = "task_lost", "the node lost the task"
			h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain(), parkedDrain(), drainAt(1, lifecycle.OperationRunning), again, again, other}
			require.Equal(t, schema.ExitPending, h.run("op", "watch", "gpu-17", "--timeout", "1m", "--no-color"))
			require.Equal(t, 3, strings.Count(h.err.String(), "options, the least harmful first:"), h.err.String())
			require.Contains(t, h.err.String(), again.Operation.Stuck.Options[0].Command[len("gpuaas op extend NODE"):])
			require.Contains(t, h.err.String(), "the node lost the task (task_lost)")
		})
	}
	t.Run("no command is cut on a terminal", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.onTerminal("")
		h.env.tty.width = func() int { return 40 }
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
		require.Equal(t, schema.ExitPending, h.run("op", "watch", "gpu-17", "--timeout", "1m", "--no-color"))
		for _, o := range parkedDrain().Operation.Stuck.Options {
			require.Contains(t, h.err.String(), preview.Fill(o.Command, "gpu-17")+"\n")
		}
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
			h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
			h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
				return drainAt(1, lifecycle.OperationRunning), nil
			}
			args := []string{"op", string(d), "gpu-17", "--reason", "TCK-99"}
			if d == lifecycle.DecisionForce || d == lifecycle.DecisionSkip {
				args = append(args, "--yes")
			}
			h.golden("op-"+string(d), args...)
			require.Equal(t, []lifecycle.ResolveRequest{addressed(d, "TCK-99")}, h.temporal.resolved)
		})
	}
	for _, d := range lifecycle.Decisions() {
		t.Run(string(d)+" without a reason", func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
			require.Equal(t, schema.ExitUsage, h.run("op", string(d), "gpu-17"))
			require.Equal(t, schema.ExitUsage, h.run("op", string(d), "gpu-17", "--reason", " "))
			require.Empty(t, h.temporal.resolved)
			require.Empty(t, h.api.requests, "no request precedes the check")
		})
	}
	t.Run("nothing runs", func(t *testing.T) {
		t.Parallel()
		setup(t).golden("op-cancel-none", "op", "cancel", "gpu-17", "--reason", "TCK-99")
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(1, lifecycle.OperationRunning)}
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
			return lifecycle.OperationStatus{}, schema.NewError(schema.KindInvalidRequest, "the operation is not parked: there is nothing to retry")
		}
		h.golden("op-retry-refused", "op", "retry", "gpu-17", "--reason", "TCK-99", "-o", "json")
	})
	t.Run("temporal down", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.down = true
		require.Equal(t, schema.ExitUnreachable, h.run("op", "retry", "gpu-17", "--reason", "TCK-99"))
		require.Contains(t, h.err.String(), "temporal.test:7233")
	})
	t.Run("answers that are older than the decision", func(t *testing.T) {
		t.Parallel()
		for _, wait := range []bool{false, true} {
			h := setup(t)
			h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) { return parkedDrain(), nil }
			h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain(), parkedDrain(), drainAt(1, lifecycle.OperationRunning), drainAt(3, lifecycle.OperationCompleted)}
			want := "drain gpu-17: running"
			if wait {
				want = "drain gpu-17: completed"
			}
			require.Zero(t, h.run("op", "extend", "gpu-17", "--reason", "TCK-99", fmt.Sprintf("--wait=%t", wait)), h.err.String())
			require.Contains(t, h.out.String(), want)
		}
	})
	t.Run("a park that stays", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) { return parkedDrain(), nil }
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
		require.Zero(t, h.run("op", "extend", "gpu-17", "--reason", "TCK-99", "-o", "name"))
		require.Equal(t, operationID+"\n", h.out.String())
		require.Equal(t, reloadReads*reloadEvery, h.clock.waited(), "the reads are bounded")
	})
	t.Run("then waits", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
			return drainAt(1, lifecycle.OperationRunning), nil
		}
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain(), parkedDrain(), drainAt(1, lifecycle.OperationCanceled)}
		h.golden("op-cancel-wait", "op", "cancel", "gpu-17", "--reason", "TCK-99", "--wait")
	})
}

// addressed is the decision as the admin API gets it: about the park that was
// read, by the authenticated subject.
func addressed(d lifecycle.Decision, reason string) lifecycle.ResolveRequest {
	return lifecycle.ResolveRequest{OperationID: operationID, Phase: lifecycle.PhaseDrain, StuckSince: at(-12 * time.Minute),
		Decision: d, Reason: reason, By: "ops", Via: "api"}
}

func TestOpAddress(t *testing.T) {
	t.Parallel()
	run := func(args ...string) (*harness, int) {
		h := setup(t)
		h.temporal.statuses = []lifecycle.OperationStatus{parkedDrain()}
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) { return parkedDrain(), nil }
		code := h.run(append([]string{"op", "retry", "--reason", "TCK-99"}, args...)...)
		return h, code
	}
	for _, args := range [][]string{{"gpu-17", "--operation", operationID}, {nodeID}, {operationID}} {
		h, code := run(args...)
		require.Zero(t, code, h.err.String())
		require.Len(t, h.temporal.resolved, 1)
	}
	h, code := run("gpu-17", "--operation", "0198f000-0000-7000-8000-0000000000ff")
	require.Equal(t, schema.ExitRefused, code)
	require.Contains(t, h.err.String(), "decision_outdated")
	require.Empty(t, h.temporal.resolved)
	for _, args := range [][]string{{"--reason", "TEXT"}, {"--stuck-since", "12m"}} {
		_, code = run(append([]string{"gpu-17"}, args...)...)
		require.Equal(t, schema.ExitUsage, code)
	}
}

// A command that was printed for a park and is typed later, while the operation is parked
// again, is about the park for which it was printed: the operation rejects it.
func TestPrintedDecisionIsAboutItsPark(t *testing.T) {
	t.Parallel()
	printed := parkedDrain().Operation.Stuck
	for _, direct := range []bool{false, true} {
		for _, o := range printed.Options {
			t.Run(fmt.Sprintf("%s, direct %t", o.Decision, direct), func(t *testing.T) {
				t.Parallel()
				h := setup(t)
				h.temporal.hosts["gpu-17"] = nodeID
				h.temporal.statuses = []lifecycle.OperationStatus{parkedSince(parkedDrain(), start())}
				h.temporal.resolve = func(r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
					if r.StuckSince.Equal(start()) {
						return drainAt(1, lifecycle.OperationRunning), nil
					}
					return lifecycle.OperationStatus{}, schema.NewError(schema.KindDecisionOutdated, "it was parked again")
				}
				args := strings.Fields(strings.NewReplacer("gpuaas ", "", "NODE", "gpu-17", "TEXT", "TCK-99").Replace(o.Command))
				require.Equal(t, schema.ExitRefused, h.run(append(args, "--yes", fmt.Sprintf("--direct=%t", direct))...))
				require.Contains(t, h.err.String(), "decision_outdated")
				require.Len(t, h.temporal.resolved, 1)
				require.Equal(t, lifecycle.PhaseDrain, h.temporal.resolved[0].Phase)
				require.Equal(t, printed.Since, *h.temporal.resolved[0].StuckSince)
			})
		}
	}
}

// A decision to skip or force a phase that still runs names that phase.
func TestDecisionAboutRunningPhase(t *testing.T) {
	t.Parallel()
	for d, phase := range map[lifecycle.Decision]string{lifecycle.DecisionSkip: lifecycle.PhaseDrain, lifecycle.DecisionForce: lifecycle.PhaseDrain,
		lifecycle.DecisionCancel: ""} {
		h := setup(t)
		h.temporal.statuses = []lifecycle.OperationStatus{drainAt(1, lifecycle.OperationRunning)}
		h.temporal.resolve = func(lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
			return drainAt(1, lifecycle.OperationRunning), nil
		}
		require.Zero(t, h.run("op", string(d), "gpu-17", "--reason", "TCK-99", "--yes"), h.err.String())
		require.Equal(t, phase, h.temporal.resolved[0].Phase, d)
		require.Nil(t, h.temporal.resolved[0].StuckSince)
	}
}

// A decision that may cause damage shows what it does in this park and asks first.
func TestHarmfulDecisionAsks(t *testing.T) {
	t.Parallel()
	run := func(st lifecycle.OperationStatus, args ...string) *harness {
		h := setup(t)
		h.onTerminal("n\n")
		h.temporal.statuses = []lifecycle.OperationStatus{st}
		require.Equal(t, schema.ExitFailed, h.run(append([]string{"op"}, args...)...), h.err.String())
		require.Empty(t, h.temporal.resolved)
		return h
	}
	h := run(parkedDrain(), "force", "gpu-17", "--reason", "TCK-99")
	require.Contains(t, h.err.String(), "force the drain of gpu-17 in phase drain: kill the workloads that do not end within 10s. Continue? [y/N]")
	h = run(parkedDrain(), "force", "gpu-17", "--reason", "TCK-99", "--phase", "cordon")
	require.Contains(t, h.err.String(), "force the drain of gpu-17: a forced drain kills the workloads that block it. Continue? [y/N]")
	provision := lifecycle.OperationStatus{Operation: operation(lifecycle.ActionProvision, lifecycle.OperationRunning)}
	h = run(provision, "cancel", "gpu-17", "--reason", "TCK-99")
	require.Contains(t, h.err.String(), "cancel the provision of gpu-17: return the machine to its provider, which deletes a machine that it created. Continue? [y/N]")
}

func TestOpList(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.operations = []wire.OperationSummary{{OperationID: operationID, NodeID: nodeID, Host: "gpu-17", Action: lifecycle.ActionDrain,
		Status: lifecycle.OperationParked, Phase: lifecycle.PhaseDrain, Actor: "bob", StartedAt: start().Add(-time.Hour), Stuck: parkedDrain().Operation.Stuck}}
	h.golden("op-list", "op", "list", "--node", "gpu-17", "--open", "-l", "rack=r7")
	require.Contains(t, h.api.requests[0], "selector=rack%3Dr7")
}

func TestStuck(t *testing.T) {
	t.Parallel()
	both := func(h *harness) {
		unfit := parkedDrain()
		unfit.Node.Host, unfit.Operation.Action = "gpu-18", lifecycle.ActionProvision
		unfit.Operation.Stuck = &lifecycle.Stuck{Phase: lifecycle.PhaseSKU, WaitingOn: lifecycle.AttentionOperator, Reason: "unfit",
			Message: "6 GPUs found, 8 registered", Since: start().Add(-50 * time.Minute), Next: "gpuaas op retry NODE"}
		h.temporal.parked = []lifecycle.OperationStatus{unfit, parkedDrain()}
	}
	for name, tc := range map[string]struct {
		args []string
		with func(h *harness)
	}{
		"both": {nil, both},
		"json": {[]string{"-o", "json"}, both},
		"nodes": {nil, func(h *harness) {
			both(h)
			row, _ := stuck.Find(stuck.RowSilent, stuck.ScopeNode)
			h.api.stuckNodes = []stuck.Node{{Row: row.Name, NodeID: nodeID, Host: "gpu-19", State: lifecycle.NodeOffline,
				Stuck: row.Stuck("gpu-19", "the node, which is offline, has sent no heartbeat for 1h", "", start().Add(-time.Hour))}}
		}},
		"nothing":       {nil, func(*harness) {}},
		"nothing-json":  {[]string{"-o", "json"}, func(*harness) {}},
		"temporal-down": {nil, func(h *harness) { h.temporal.down = true }},
		"direct":        {[]string{"--direct"}, func(h *harness) { both(h); h.api.server.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			tc.with(h)
			h.golden("stuck-"+name, append([]string{"stuck"}, tc.args...)...)
		})
	}
	t.Run("direct names a stopped API", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		var limit time.Duration
		h.env.transport = roundTrip(func(r *http.Request) (*http.Response, error) { // as a stopped process: no response
			deadline, _ := r.Context().Deadline()
			limit = time.Until(deadline)
			return nil, context.DeadlineExceeded
		})
		require.Equal(t, schema.ExitPending, h.run("--direct", "stuck", "--exit-code", "-o", "json"))
		var list wire.StuckList
		require.NoError(t, json.Unmarshal(h.out.Bytes(), &list))
		require.Len(t, list.Faults, 1)
		require.Equal(t, []string{"api", "api_unreachable"}, []string{list.Faults[0].Component, list.Faults[0].Reason})
		require.LessOrEqual(t, limit, apiProbeLimit)
		h.api.refuse = schema.NewError(schema.KindServiceUnavailable, "the database does not respond").WithReason("postgres_unreachable")
		h.env.transport = http.DefaultTransport
		require.Zero(t, h.run("--direct", "stuck"))
		require.Contains(t, h.err.String(), "warning: the database does not respond\n")
		delete(h.vars, "GPUAAS_API_URL") // no API is configured
		require.Zero(t, h.run("--direct", "stuck", "--exit-code"), h.err.String())
	})
	t.Run("exit code", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Zero(t, h.run("stuck", "--exit-code"))
		both(h)
		require.Zero(t, h.run("stuck"))
		require.Equal(t, schema.ExitPending, h.run("stuck", "--exit-code"))
	})
	t.Run("api down", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.server.Close()
		require.Equal(t, schema.ExitUnreachable, h.run("stuck"))
		require.Contains(t, h.err.String(), "gpuaas stuck --direct")
	})
	t.Run("database down", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.refuse = schema.NewError(schema.KindServiceUnavailable, "the database does not respond")
		for _, args := range []string{"op show gpu-17", "op retry gpu-17 --reason fixed", "node drain gpu-17 --yes"} {
			require.Equal(t, schema.ExitUnreachable, h.run(strings.Fields(args)...), args)
			require.Contains(t, h.err.String(), "next:  without the admin API and its database: repeat the command with --direct", args)
		}
		require.Equal(t, schema.ExitUnreachable, h.run("node", "drain", "gpu-17", "--dry-run"))
		require.NotContains(t, h.err.String(), "--direct", "a plan needs the admin API")
		h.api.refuse.Next = "repeat the request; gpuaas stuck shows the cause"
		require.Equal(t, schema.ExitUnreachable, h.run("stuck"))
		require.Contains(t, h.err.String(), "next:  gpuaas admin check names the service; without the admin API and its database: gpuaas stuck --direct\n")
	})
	t.Run("no match", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		for _, args := range [][]string{{"--stuck-reason", "drain_blocked"}, {"--action", "remove"}, {"-l", "rack=none"}} {
			require.Zero(t, h.run(append([]string{"stuck"}, args...)...), args)
			require.Equal(t, "no operation that needs attention matches; all of them: gpuaas stuck\n", h.err.String(), args)
		}
		for _, args := range []string{"stuck", "op list", "op retry --yes --reason TCK-1"} {
			h.run(append(strings.Fields(args), "--stuck-reason", "drain_blocked,drain_blocke")...)
			require.Contains(t, h.err.String(), "; drain_blocke is not among the documented reasons: agent_silent, ", args)
			require.Contains(t, h.err.String(), ", drain_blocked, ", args)
		}
	})
	t.Run("more than the limit", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{nil, {"--direct"}} {
			h := setup(t)
			both(h)
			require.Zero(t, h.run(append([]string{"stuck", "--limit", "1"}, args...)...), h.err.String())
			require.Contains(t, h.out.String(), "gpu-18")
			require.NotContains(t, h.out.String(), "gpu-17")
			require.Contains(t, h.err.String(), strings.Join(append([]string{"and 1 more: gpuaas"}, args...), " ")+" stuck --limit 0\n")
			require.Zero(t, h.run(append([]string{"stuck", "--limit", "0"}, args...)...))
			require.NotContains(t, h.err.String(), "more")
		}
	})
	t.Run("filters", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		both(h)
		args := []string{"stuck", "--stuck-reason", "unfit,drain_blocked", "--action", "drain"}
		require.Zero(t, h.run(append(args, "--direct")...), h.err.String())
		require.NotContains(t, h.out.String(), "gpu-18")
		require.Contains(t, h.out.String(), "gpu-17")
		require.Equal(t, schema.ExitUsage, h.run("stuck", "--direct", "-l", "rack=r7"))
		require.Zero(t, h.run(append(args, "--limit", "1", "-l", "rack in (r7,r8)")...))
		for _, want := range []string{"selector=rack+in+%28r7%2Cr8%29", "reason=unfit&reason=drain_blocked", "action=drain"} {
			require.Contains(t, h.api.requests[len(h.api.requests)-1], want)
		}
		require.Contains(t, h.err.String(), "stuck --limit 0 --selector 'rack in (r7,r8)' --stuck-reason unfit,drain_blocked --action drain\n")
	})
	t.Run("incomplete", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		both(h)
		h.temporal.truncated = true
		require.Zero(t, h.run("stuck", "--direct"))
		require.Contains(t, h.err.String(), "warning: Temporal listed 2 operations before the time limit: older ones may be missing\n")
	})
}

func TestNodeSet(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.golden("node-set", "node", "set", "gpu-17", "--label", "rack=r7", "--label", "old-", "--gpus", "4", "--reason", "moved")
	require.Equal(t, []wire.NodeChange{{GPUsTotal: new(4), Labels: map[string]string{"rack": "r7"}, RemoveLabels: []string{"old"}, Reason: "moved"}}, h.api.changed)
	h.golden("node-set-sku", "node", "set", "gpu-17", "--sku", "a100", "--region", "fra2", "--reason", "wrong rack")
	require.Equal(t, wire.NodeChange{SKU: "a100", RegionCode: "fra2", Reason: "wrong rack"}, h.api.changed[1])
	h.golden("node-set-unchanged", "node", "set", "gpu-17", "--region", "fra2", "--label", "rack=r7")
	h.golden("node-set-driver", "node", "set", "gpu-17", "--workload-driver", "docker")
	h.api.nodes[0].Driver = "docker"
	h.golden("node-set-unset-driver", "node", "set", "gpu-17", "--unset-workload-driver", "--reason", "set by mistake")
	require.Equal(t, wire.NodeChange{UnsetWorkloadDriver: true, Reason: "set by mistake"}, h.api.changed[len(h.api.changed)-1])
	for _, args := range [][]string{{}, {"--label", "x"}, {"--label", "=y"}, {"--unset-workload-driver=false"}} {
		require.Equal(t, schema.ExitUsage, h.run(append([]string{"node", "set", "gpu-17"}, args...)...))
	}
	h.golden("node-set-driver-empty", "node", "set", "gpu-17", "--workload-driver", "")
	h.golden("node-set-driver-both", "node", "set", "gpu-17", "--workload-driver", "docker", "--unset-workload-driver")
}

func TestAdminTokenNew(t *testing.T) {
	t.Parallel()
	h := setup(t)
	require.Zero(t, h.run("admin", "token", "new", "alice", "--role", "operator", "-o", "json"))
	var made newToken
	require.NoError(t, json.Unmarshal(h.out.Bytes(), &made))
	sum := sha256.Sum256([]byte(made.Token))
	require.Equal(t, "alice operator "+hex.EncodeToString(sum[:]), made.Line)
	require.Equal(t, schema.ExitUsage, h.run("admin", "token", "new", "alice", "--role", "king"))
	require.Equal(t, schema.ExitUsage, h.run("admin", "token", "new", "a b"))
}

// An operation may park for a reason that the completion does not list.
func TestOpListByReason(t *testing.T) {
	t.Parallel()
	h := setup(t)
	require.Zero(t, h.run("op", "list", "--stuck-reason", "vault_sealed,drain_blocked"), h.err.String())
	require.Contains(t, h.api.requests[len(h.api.requests)-1], "reason=vault_sealed")
}
