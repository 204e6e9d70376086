package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/signal"
)

// recoveryAPI answers by path and keeps the last request that changes something.
type recoveryAPI struct {
	answers map[string]any
	path    string
	body    map[string]any
}

func (a *recoveryAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		a.path, a.body = r.URL.Path, nil
		json.NewDecoder(r.Body).Decode(&a.body) //nolint:errcheck // the test compares it
	}
	w.Header().Set("Content-Type", "application/json")
	answer, ok := a.answers[r.Method+" "+r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		answer = schema.NewError(schema.KindNotFound, "no %s", r.URL.Path).Body("c")
	}
	json.NewEncoder(w).Encode(answer) //nolint:errcheck // a test's connection
}

const recoveryPath = "/api/v1/admin/recovery"

func recovering(t *testing.T, answers map[string]any) (*harness, *recoveryAPI) {
	t.Helper()
	a := &recoveryAPI{answers: answers}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	h := setup(t)
	h.vars["GPUAAS_API_URL"] = s.URL
	return h, a
}

func fellOffTheBus() recovery.Fault {
	return recovery.Fault{Checker: "gpu_xid", Component: "GPU-1", Reason: "XID", Code: 79, Repair: health.RepairReboot, Since: start().Add(-time.Hour)}
}

func storedPolicy(t *testing.T, mode recovery.Mode, version int64) record.Policy {
	t.Helper()
	p := recovery.Default()
	p.Mode = mode
	s, err := record.Stored(p)
	require.NoError(t, err)
	if s.Version = version; version > 0 {
		s.Actor, s.Reason, s.At = "alice", "CHG-204", start().Add(-24*time.Hour)
	}
	return s
}

func decided(t *testing.T) record.Decision {
	t.Helper()
	return record.Decision{DecisionID: operationID, At: start().Add(-time.Minute), NodeID: nodeID, Host: "gpu-17", SKU: "h100", PolicyVersion: 2, Mode: recovery.ModeArmed,
		Phase: health.PhaseUnhealthy, Fault: fellOffTheBus(), Rung: recovery.RungReboot, Brake: recovery.BrakeBudget, Why: "1 of 1 repairs run in rack r7"}
}

// TestRecoveryStatus: the mode, the breaker, incidents, budgets, and each node with what stops its repair.
func TestRecoveryStatus(t *testing.T) {
	t.Parallel()
	p := storedPolicy(t, recovery.ModeArmed, 2)
	p.Body = nil
	st := record.Status{Policy: p, DecidedAt: start().Add(-20 * time.Second), Breaker: recovery.BreakerState{OpenSince: start().Add(-time.Hour), Why: "30 nodes within 1m share rack r7"},
		Incidents: []recovery.Incident{{Scope: recovery.ScopeRack, Key: "r7", Fault: fellOffTheBus(), Nodes: []string{"gpu-17"}, Why: "rack r7: 12 of 20 nodes have gpu_xid"}},
		Budgets: []record.Budget{{Size: recovery.Size{Scope: recovery.ScopeFleet, Nodes: 1000, Busy: 1}, Limit: new(5)},
			{Size: recovery.Size{Scope: recovery.ScopeRack, Key: "r7", Nodes: 20, Busy: 1}}},
		Nodes: []record.NodeState{{Decision: decided(t), PhaseSince: start().Add(-30 * time.Minute)}}}
	for brake, why := range map[recovery.Brake]string{recovery.BrakeRack: st.Incidents[0].Why, recovery.BrakeBreaker: "the breaker is open: " + st.Breaker.Why} {
		d := decided(t)
		d.Host, d.Brake, d.Why = "gpu-"+string(brake), brake, why
		st.Nodes = append(st.Nodes, record.NodeState{Decision: d, PhaseSince: start().Add(-time.Minute)})
	}
	slices.SortFunc(st.Nodes, func(a, b record.NodeState) int { return strings.Compare(a.Host, b.Host) })
	h, _ := recovering(t, map[string]any{"GET " + recoveryPath: st})
	require.Zero(t, h.golden("recovery-status", "recovery", "status"))
	require.Zero(t, h.golden("recovery-status-name", "recovery", "status", "-o", "name"))
	require.Zero(t, h.run("recovery", "status", "-o", "json"))
	require.JSONEq(t, jsonOf(t, st), h.out.String())

	p = storedPolicy(t, recovery.ModeMonitor, 0)
	h, _ = recovering(t, map[string]any{"GET " + recoveryPath: record.Status{Policy: p}})
	require.Zero(t, h.golden("recovery-status-healthy", "recovery", "status"))
}

// TestStatusOfUnreadablePolicy: the status says what is wrong with the policy, and no limit that it does not know.
func TestStatusOfUnreadablePolicy(t *testing.T) {
	t.Parallel()
	st := record.Status{Policy: storedPolicy(t, recovery.ModeArmed, 7), PolicyFault: "version 7 of the recovery policy cannot be read: unknown field",
		Budgets: []record.Budget{{Size: recovery.Size{Scope: recovery.ScopeFleet, Nodes: 100, Busy: 2}}}}
	h, _ := recovering(t, map[string]any{"GET " + recoveryPath: st})
	require.Zero(t, h.run("recovery", "status"), h.err.String())
	require.Contains(t, h.out.String(), "version 7 of the recovery policy cannot be read: unknown field")
	require.Contains(t, h.out.String(), "fleet: 2 in use, 100 nodes")
	require.NotContains(t, h.out.String(), "no limit")
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

// TestRecoveryLists: the decisions, the outcomes and the versions of the policy.
func TestRecoveryLists(t *testing.T) {
	t.Parallel()
	attempt := recovery.Attempt{OperationID: operationID, NodeID: nodeID, SKU: "h100", Rung: recovery.RungReboot, Fault: fellOffTheBus(),
		StartedAt: start().Add(-time.Hour), EndedAt: start(), Outcome: recovery.OutcomeCured}
	listed := storedPolicy(t, recovery.ModeArmed, 2)
	listed.Body = nil
	h, _ := recovering(t, map[string]any{
		"GET " + recoveryPath + "/decisions": record.Decisions{Decisions: []record.Decision{decided(t)}},
		"GET " + recoveryPath + "/facts":     record.Facts{Attempts: []recovery.Attempt{attempt}, Truncated: true},
		"GET " + recoveryPath + "/policies":  record.Policies{Policies: []record.Policy{listed}},
	})
	require.Zero(t, h.golden("recovery-decisions", "recovery", "decisions", "--node", "gpu-17", "--since", "24h", "-o", "wide"))
	require.Zero(t, h.golden("recovery-outcomes", "recovery", "outcomes"))
	require.Zero(t, h.golden("recovery-policy-history", "recovery", "policy", "history"))
}

// TestRecoveryChanges: arm, disarm and the close of the breaker need a reason, which is sent.
func TestRecoveryChanges(t *testing.T) {
	t.Parallel()
	h, a := recovering(t, map[string]any{
		"POST " + recoveryPath + "/disarm":        storedPolicy(t, recovery.ModeMonitor, 4),
		"POST " + recoveryPath + "/breaker/close": recovery.BreakerState{ClosedAt: start(), Why: "closed by alice: switch replaced"},
	})
	for _, command := range [][]string{{"disarm"}, {"breaker", "close"}} {
		args := append([]string{"recovery"}, command...)
		require.Equal(t, schema.ExitUsage, h.run(args...), command)
		require.Contains(t, h.err.String(), "missing --reason")
		require.Zero(t, h.golden("recovery-"+command[len(command)-1], append(args, "--reason", "switch replaced")...))
		require.Equal(t, map[string]any{"reason": "switch replaced"}, a.body)
	}
}

// TestRecoveryPolicy: a policy is shown as a file that the command set accepts. A malformed one is
// rejected before it is sent, with the field.
func TestRecoveryPolicy(t *testing.T) {
	t.Parallel()
	now := storedPolicy(t, recovery.ModeMonitor, 0)
	changed := recovery.Default()
	changed.Samples = 7
	stored, err := record.Stored(changed)
	require.NoError(t, err)
	stored.Version, stored.Actor, stored.Reason, stored.At = 1, "alice", "CHG-1", start()
	h, a := recovering(t, map[string]any{"GET " + recoveryPath + "/policy": now, "POST " + recoveryPath + "/policy": stored})
	require.Zero(t, h.run("recovery", "policy", "show"))
	file := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(file, h.out.Bytes(), 0o600))
	require.Zero(t, h.run("recovery", "policy", "set", "--file", file, "--reason", "CHG-1"))
	require.Contains(t, h.out.String(), "samples: 3 → 7")
	require.Equal(t, "CHG-1", a.body["reason"])
	sent, err := json.Marshal(a.body["body"])
	require.NoError(t, err)
	p, err := recovery.DecodePolicy(sent)
	require.NoError(t, err)
	require.Equal(t, recovery.Default().Digest(), p.Digest())

	require.NotContains(t, h.err.String(), "warning")

	require.NoError(t, os.WriteFile(file, []byte("disabled_checkers: [heartbeet, heartbeat, gpu_xid, node_ready]\nthresholds: {gpu_fam: 5m, gpu_fan: 5m}\n"), 0o600))
	require.Zero(t, h.run("recovery", "policy", "set", "--file", file, "--dry-run"))
	require.Contains(t, h.err.String(), `warning: disabled_checkers names "heartbeet", which is no known checker`)
	require.Contains(t, h.err.String(), `warning: thresholds names "gpu_fam"`)
	require.Contains(t, h.err.String(), "does not say from which policy it was made")
	require.Equal(t, 3, strings.Count(h.err.String(), "warning"))

	a.path = ""
	for text, message := range map[string]string{"mode: noisy": "mode", "samplez: 3": "samplez", "{": "neither YAML nor JSON"} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.NotZero(t, h.run("recovery", "policy", "set", "--file", file, "--reason", "CHG-1"))
		require.Contains(t, h.err.String(), message)
	}
	require.Equal(t, schema.ExitUsage, h.run("recovery", "policy", "set", "--reason", "CHG-1"))
	require.Contains(t, h.err.String(), "missing --file")
	require.Empty(t, a.path, "nothing was sent")
}

// TestRecoveryReplay: a policy with a higher threshold starts the repair later, and one without a
// ladder starts none.
func TestRecoveryReplay(t *testing.T) {
	t.Parallel()
	node := recovery.Node{NodeID: nodeID, Host: "gpu-17", SKU: "h100", Region: "fra1", Class: "persistent", GPUs: 8, State: "active"}
	var sizes []recovery.Size
	for scope, key := range map[recovery.Scope]string{recovery.ScopeFleet: "", recovery.ScopeSKU: "h100", recovery.ScopeRegion: "fra1"} {
		sizes = append(sizes, recovery.Size{Scope: scope, Key: key, Nodes: 100, GPUNodes: 100})
	}
	xid := health.Signal{SignalID: operationID, Type: health.ConditionSignal("gpu_xid"), NodeID: nodeID, Host: "gpu-17", At: start().Add(-2 * time.Hour),
		Status: health.Unhealthy, Component: "GPU-1", Reason: "XID", Code: 79, Repair: health.RepairReboot}
	facts := record.Facts{At: start(), Policy: storedPolicy(t, recovery.ModeMonitor, 0), Sizes: sizes, Nodes: []recovery.Node{node}}
	h, _ := recovering(t, map[string]any{"GET " + recoveryPath + "/facts": facts, "GET /api/v1/admin/signals": signal.List{Signals: []health.Signal{xid}}})
	file := filepath.Join(h.env.dir, "policy.yaml")
	require.NoError(t, os.WriteFile(file, []byte("ladders: []\n"), 0o600))
	require.Zero(t, h.golden("recovery-replay", "recovery", "replay", "--policy", file))
	require.NoError(t, os.WriteFile(file, []byte("samples: 3\n"), 0o600))
	require.Zero(t, h.run("recovery", "replay", "--policy", file))
	require.Contains(t, h.out.String(), "Both policies decide the same.")
	require.Equal(t, schema.ExitUsage, h.run("recovery", "replay", "--policy", file, "--step", "1ms"))
	require.Equal(t, schema.ExitUsage, h.run("recovery", "replay"))
}
