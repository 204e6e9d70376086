package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
)

var update = flag.Bool("update", false, "write the golden files")

// Fixed values of the tests.
const (
	nodeID      = "0198f000-0000-7000-8000-000000000017"
	operationID = "0198f000-0000-7000-8000-0000000000a1"
	runID       = "0198f000-0000-7000-8000-0000000000b1"
	apiToken    = "canary-api-token"
	enrollToken = "gpuet_canary-enrollment-token"
)

// start is when every test begins.
func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func at(d time.Duration) *time.Time {
	t := start().Add(d)
	return &t
}

// harness is a command line's whole world.
type harness struct {
	t        *testing.T
	env      *env
	out, err bytes.Buffer
	vars     map[string]string
	temporal *fakeTemporal
	api      *fakeAPI
	clock    *fakeClock
}

// setup returns an environment without a terminal, with the node gpu-17 active, and with a
// Temporal that accepts everything.
func setup(t *testing.T) *harness {
	t.Helper()
	fake := newFakeTemporal()
	h := &harness{t: t, temporal: fake, api: newFakeAPI(t, fake), clock: &fakeClock{now: start()}}
	h.vars = map[string]string{"GPUAAS_API_URL": h.api.server.URL, "GPUAAS_API_TOKEN": apiToken}
	h.env = &env{console: &console{
		stdin: strings.NewReader(""), stdout: &h.out, stderr: &h.err,
		tty: terminal{width: func() int { return 100 }, outWidth: func() int { return 100 }},
		clock: clock{now: h.clock.read, after: h.clock.after,
			spin: func() (<-chan time.Time, func()) { return nil, func() {} }},
		correlationID: "0198f000-0000-7000-8000-0000000000c1",
	},
		settings: settings{getenv: func(k string) string { return h.vars[k] }},
		platform: Platform{Dial: func(o temporal.Config) (Lifecycle, error) {
			h.temporal.dialled = o
			return h.temporal, nil
		}},
		actor: "alice@laptop", dir: t.TempDir(), completionLimit: time.Minute, transport: http.DefaultTransport,
	}
	return h
}

// run runs one command line and returns its exit code.
func (h *harness) run(args ...string) int {
	h.t.Helper()
	return h.runCtx(h.t.Context(), args...)
}

func (h *harness) runCtx(ctx context.Context, args ...string) int {
	h.t.Helper()
	h.out.Reset()
	h.err.Reset()
	h.env.admin = nil
	code := run(ctx, h.env, args)
	for _, secret := range []string{apiToken} {
		require.NotContains(h.t, h.out.String()+h.err.String(), secret)
	}
	require.NotContains(h.t, h.err.String(), enrollToken)
	return code
}

// golden runs a command line and compares stdout, stderr and exit code with
// testdata/golden/NAME.txt. It returns the exit code.
func (h *harness) golden(name string, args ...string) int {
	h.t.Helper()
	return h.goldenCtx(h.t.Context(), name, args...)
}

func (h *harness) goldenCtx(ctx context.Context, name string, args ...string) int {
	h.t.Helper()
	code := h.runCtx(ctx, args...)
	got := fmt.Sprintf("$ gpuaas %s\n-- stdout --\n%s-- stderr --\n%s-- exit %d --\n",
		strings.Join(args, " "), h.out.String(), h.err.String(), code)
	for _, in := range h.temporal.submitted { // the fake starts it as operationID
		got = strings.ReplaceAll(got, in.OperationID, operationID)
	}
	got = strings.NewReplacer(h.api.server.URL, "http://api.test", strings.TrimPrefix(h.api.server.URL, "http://"), "api.test",
		h.env.dir, "DIR", "\x1b", "^[").Replace(got)
	compareGolden(h.t, filepath.Join("testdata", "golden", name+".txt"), got)
	return code
}

func compareGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run: go test ./cli -update")
	require.Equal(t, string(want), got)
}

// onTerminal makes every stream a terminal and types the answer.
func (h *harness) onTerminal(answer string) {
	h.env.tty.in, h.env.tty.out, h.env.tty.err = true, true, true
	h.env.stdin = strings.NewReader(answer)
}

// fakeClock moves only while commands wait.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
	// onWait is called at every wait, with how many there were.
	onWait func(n int)
	waits  int
}

func (c *fakeClock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// waited is how long commands waited altogether.
func (c *fakeClock) waited() time.Duration { return c.read().Sub(start()) }

func (c *fakeClock) after(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	c.now = c.now.Add(d)
	c.waits++
	fired := make(chan time.Time, 1)
	fired <- c.now
	n, hook := c.waits, c.onWait
	c.mu.Unlock()
	if hook != nil {
		hook(n)
	}
	return fired
}

// operation is an operation on gpu-17 that started at the tests' begin.
func operation(a lifecycle.Action, s lifecycle.OperationState) lifecycle.Operation {
	return lifecycle.Operation{OperationID: operationID, WorkflowID: lifecycle.NodeWorkflowID("gpu-17", nodeID), RunID: runID,
		Action: a, Status: s, Phases: []lifecycle.Phase{}, StartedAt: at(0), Actor: "alice@laptop"}
}

// drainAt is a drain of gpu-17 whose phases before the i-th are completed.
func drainAt(i int, s lifecycle.OperationState) lifecycle.OperationStatus {
	op := operation(lifecycle.ActionDrain, s)
	for k, p := range lifecycle.PhasesOf(lifecycle.ActionDrain, lifecycle.Options{}) {
		phase := lifecycle.Phase{Name: p.Name, Title: p.Title, State: lifecycle.PhasePending, Attempt: 1}
		begin := time.Duration(k) * 10 * time.Second
		switch {
		case k < i:
			phase.State, phase.StartedAt, phase.EndedAt = lifecycle.PhaseCompleted, at(begin), at(begin+8*time.Second)
		case k == i:
			phase.State, phase.StartedAt = lifecycle.PhaseRunning, at(begin)
		}
		op.Phases = append(op.Phases, phase)
	}
	node := lifecycle.NodeRef{NodeID: nodeID, Host: "gpu-17", State: lifecycle.NodeDraining}
	if s.Ended() {
		op.EndedAt = at(30 * time.Second)
	}
	return lifecycle.OperationStatus{Operation: op, Node: node}
}

// parkedDrain is a drain that work blocks.
func parkedDrain() lifecycle.OperationStatus {
	st := drainAt(1, lifecycle.OperationParked)
	st.Operation.Phases[1].State = lifecycle.PhaseParked
	st.Operation.Phases[1].Reason = "process train-1 does not end"
	st.Operation.Stuck = &lifecycle.Stuck{Phase: lifecycle.PhaseDrain, WaitingOn: lifecycle.AttentionOperator, Reason: "drain_blocked",
		Message: "1 workload does not end: process train-1", Since: start().Add(-12 * time.Minute),
		Cause: "workloads do not end", Options: []lifecycle.Option{
			option(lifecycle.DecisionExtend, "Give the workloads another 10m0s to end", lifecycle.HarmNone),
			option(lifecycle.DecisionCancel, "Lift the cordon and restore the node's state", lifecycle.HarmNone),
			option(lifecycle.DecisionForce, "Kill the workloads that do not end within 10s", lifecycle.HarmWork)}}
	return parkedSince(st, st.Operation.Stuck.Since)
}

// parkedSince is an operation that parked at a time, with the commands of its options.
func parkedSince(st lifecycle.OperationStatus, since time.Time) lifecycle.OperationStatus {
	s := st.Operation.Stuck
	s.Since = since
	for i := range s.Options {
		s.Options[i].Command = s.Command(s.Options[i].Decision, st.Operation.Action, "NODE", operationID)
	}
	s.Next = s.Options[0].Command
	return st
}

// fakeAPI is an admin API over a few rows. It refuses what the real one would.
type fakeAPI struct {
	stuckNodes []stuck.Node
	durations  []insight.Duration
	t          *testing.T
	temporal   *fakeTemporal // what operations are
	evidence   *evidence.Bundle
	keys       []string // the idempotency keys that were sent
	changed    []wire.NodeChange
	server     *httptest.Server
	nodes      []wire.NodeView
	operations []wire.OperationSummary
	streams    []string
	heads      map[string]audit.Head // instead of the last events
	checkpoint []audit.StoredCheckpoint
	public     map[string]ed25519.PublicKey
	audit      map[string][]audit.Event
	pageSize   int  // 0 means all
	repeats    bool // every page is the first
	bundle     *trust.BootstrapBundle
	refuse     *schema.Error // answers every call
	registered []wire.RegisterNodeRequest
	enrolled   []wire.LifecycleRequest
	recovery   *wire.RecoveryBundle
	// reissued are the requests by host; refuseReissue refuses some.
	mu            sync.Mutex
	reissued      map[string]wire.LifecycleRequest
	refuseReissue map[string]*schema.Error
	scripts       []wire.BootstrapScriptRequest
	requests      []string
	// decided are the decisions about tasks, as verb, task and reason.
	tasks   []wire.TaskView
	decided []string
	// rehydrated is the response to every rehydration.
	rehydrated lifecycle.Rehydration
	// rehydrate, if not nil, answers instead, by node.
	rehydrate func(n wire.NodeView) (lifecycle.Rehydration, error)
	skus      []inventory.SKU
	providers []machine.Provider
	note      string // of an enrollment
	instances []instance.View
	added     []inventory.NewSKU
	// templates are the stored ones, drift that of every node and fleetDrift of all.
	templates  []template.Template
	drift      template.Report
	fleetDrift template.Fleet
	// signals are the signals of every node.
	signals []health.Signal
	// provisioned, if not nil, is the end of the provisioning of each host that is registered.
	provisioned map[string]lifecycle.OperationStatus
}

func newFakeAPI(t *testing.T, fake *fakeTemporal) *fakeAPI {
	t.Helper()
	a := &fakeAPI{t: t, temporal: fake, nodes: []wire.NodeView{node()}, audit: map[string][]audit.Event{},
		bundle: &trust.BootstrapBundle{NodeID: nodeID, EnrollmentToken: enrollToken, APIURL: "https://node-api.test:8443",
			ExpiresAt: "2026-03-02T12:00:00Z"}, reissued: map[string]wire.LifecycleRequest{}, refuseReissue: map[string]*schema.Error{}}
	a.recovery = &wire.RecoveryBundle{BootstrapBundle: *a.bundle, RestartCommand: "gpuaas-apply <<'END'\nTOKEN=" + enrollToken + "\nEND"}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/admin/nodes", a.postNode)
	mux.HandleFunc("GET /api/v1/admin/nodes", func(w http.ResponseWriter, r *http.Request) {
		list := wire.NodeList{Nodes: []wire.NodeView{}}
		for _, n := range a.nodes {
			if a.matches(r, n) {
				list.Nodes = append(list.Nodes, n)
			}
		}
		var limit int
		fmt.Sscan(r.URL.Query().Get("limit"), &limit) //nolint:errcheck // the client always sends one
		list.Nodes = list.Nodes[:min(limit, len(list.Nodes))]
		a.answer(w, http.StatusOK, list)
	})
	mux.HandleFunc("GET /api/v1/admin/nodes/{node}", func(w http.ResponseWriter, r *http.Request) {
		if n := a.find(w, r); n != nil {
			a.answer(w, http.StatusOK, *n)
		}
	})
	mux.HandleFunc("POST /api/v1/admin/nodes/{node}/enroll", a.postEnroll)
	mux.HandleFunc("POST /api/v1/admin/nodes/{node}/reissue-enrollment", a.postReissue)
	mux.HandleFunc("POST /api/v1/admin/nodes/{node}/rehydrate", a.postRehydrate)
	for _, verb := range []string{"lock", "unlock"} {
		mux.HandleFunc("POST /api/v1/admin/nodes/{node}/"+verb, func(w http.ResponseWriter, r *http.Request) {
			r.SetPathValue("verb", verb)
			a.postLock(w, r)
		})
	}
	mux.HandleFunc("POST /api/v1/admin/nodes/{node}/bootstrap-script", a.postScript)
	mux.HandleFunc("GET /api/v1/admin/operations", a.getOperations)
	mux.HandleFunc("GET /api/v1/admin/nodes/{node}/signals", a.listSignals)
	mux.HandleFunc("GET /api/v1/admin/audit", a.listAudit)
	mux.HandleFunc("GET /api/v1/admin/audit/streams", func(w http.ResponseWriter, _ *http.Request) {
		a.answer(w, http.StatusOK, wire.AuditStreamList{Streams: a.streams})
	})
	mux.HandleFunc("GET /api/v1/admin/audit/streams/{stream}", a.getStream)
	mux.HandleFunc("GET /api/v1/admin/audit/checkpoints", a.getCheckpoints)
	mux.HandleFunc("POST /api/v1/admin/audit/accept-gap", func(w http.ResponseWriter, r *http.Request) {
		var gap audit.Gap
		_ = json.NewDecoder(r.Body).Decode(&gap) // an empty one shows
		gap.Checkpoints = 3
		a.answer(w, http.StatusOK, gap)
	})
	mux.HandleFunc("PATCH /api/v1/admin/nodes/{node}", a.patchNode)
	mux.HandleFunc("POST /api/v1/admin/nodes/{node}/{verb}", a.postVerb)
	mux.HandleFunc("GET /api/v1/admin/operations/{id}", a.getOperation)
	mux.HandleFunc("POST /api/v1/admin/operations/{id}/{decision}", a.postDecision)
	mux.HandleFunc("GET /api/v1/admin/stuck", a.getStuck)
	mux.HandleFunc("GET /api/v1/admin/nodes/{node}/rma", func(w http.ResponseWriter, _ *http.Request) {
		if a.evidence == nil {
			a.fail(w, schema.NewError(schema.KindNotFound, "there is no evidence of a repair of node gpu-17"))
			return
		}
		a.answer(w, http.StatusOK, a.evidence)
	})
	mux.HandleFunc("GET /api/v1/admin/nodes/{node}/cause", func(w http.ResponseWriter, _ *http.Request) { a.answer(w, http.StatusOK, causeOf()) })
	mux.HandleFunc("GET /api/v1/admin/nodes/{node}/runbook", func(w http.ResponseWriter, r *http.Request) {
		book := insight.RunbookOf(causeOf(), parkedDrain().Operation.Stuck)
		if id := r.URL.Query().Get("cve"); id != "" {
			book = insight.CVERunbook("gpu-17", id)
		}
		a.answer(w, http.StatusOK, book)
	})
	mux.HandleFunc("GET /api/v1/admin/capacity", func(w http.ResponseWriter, _ *http.Request) {
		a.answer(w, http.StatusOK, insight.CapacityList{Capacity: []insight.Capacity{{SKU: "h100", Region: "fra1", Nodes: 3, Free: 1, Busy: 2, GPUsFree: 8, Recommendation: "place workloads on the 1 free node"}}})
	})
	mux.HandleFunc("GET /api/v1/admin/durations", func(w http.ResponseWriter, r *http.Request) {
		a.answer(w, http.StatusOK, insight.DurationList{Action: lifecycle.Action(r.URL.Query().Get("action")), Provider: "manual", Durations: a.durations})
	})
	mux.HandleFunc("GET /api/v1/admin/version", func(w http.ResponseWriter, _ *http.Request) {
		a.answer(w, http.StatusOK, version.Build{Version: "v0.9.0", Commit: "0123456789abcdef", Go: "go1.26", Platform: "linux/arm64"})
	})
	mux.HandleFunc("GET /api/v1/healthz", func(w http.ResponseWriter, _ *http.Request) {
		a.answer(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	a.serveTasks(mux)
	a.serveSKUs(mux)
	a.serveTemplates(mux)
	a.serveMachines(mux)
	a.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.requests = append(a.requests, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get(wire.HeaderCorrelationID))
		switch {
		case a.refuse != nil:
			a.fail(w, a.refuse)
		case r.Header.Get("Authorization") != "Bearer "+apiToken:
			a.fail(w, schema.NewError(schema.KindUnauthenticated, "the bearer token is missing or wrong"))
		default:
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(a.server.Close)
	return a
}

// node is gpu-17 as the API shows it.
func node() wire.NodeView {
	return wire.NodeView{ID: nodeID, Host: "gpu-17", Port: 22, SKU: "h100", GPUsTotal: 8, RegionCode: "fra1",
		OnboardingMode: "manual", LifecycleClass: inventory.ClassPersistent, State: lifecycle.NodeActive,
		StateSince: start().Add(-26 * time.Hour), Incarnation: 1, Workloads: []task.Workload{}, CreatedAt: start().Add(-48 * time.Hour)}
}

func train() task.Workload {
	return task.Workload{Name: "train-1", Kind: "process", Since: start().Add(-time.Hour)}
}

func (a *fakeAPI) answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v) //nolint:errcheck // a test's connection
}

func (a *fakeAPI) fail(w http.ResponseWriter, e *schema.Error) {
	a.answer(w, e.Kind.Info().HTTP, e.Body("from-the-server"))
}

func (a *fakeAPI) read(w http.ResponseWriter, r *http.Request, v any) bool {
	var body bytes.Buffer
	body.ReadFrom(r.Body) //nolint:errcheck // a test's connection
	if err := schema.DecodeStrict(body.Bytes(), 64<<10, v); err != nil {
		a.fail(w, schema.AsError(err))
		return false
	}
	return true
}

func (a *fakeAPI) find(w http.ResponseWriter, r *http.Request) *wire.NodeView {
	name := r.PathValue("node")
	for i, n := range a.nodes {
		if n.ID == name || n.Host == name {
			return &a.nodes[i]
		}
	}
	a.fail(w, schema.NewError(schema.KindNotFound, "no node %q", name))
	return nil
}

func (a *fakeAPI) postNode(w http.ResponseWriter, r *http.Request) {
	var req wire.RegisterNodeRequest
	if !a.read(w, r, &req) {
		return
	}
	a.registered = append(a.registered, req)
	if req.SKU != "h100" && a.provisioned == nil {
		a.fail(w, schema.NewError(schema.KindInvalidRequest, "the catalog has no SKU %q", req.SKU).WithReason("sku_unknown").WithNext("gpuaas sku list"))
		return
	}
	n := node()
	n.Host, n.SKU, n.State, n.StateSince, n.OnboardingMode = req.Host, req.SKU, lifecycle.NodeRegistered, start(), cmp.Or(req.OnboardingMode, n.OnboardingMode)
	if a.provisioned != nil && !a.keep(w, &n) {
		return
	}
	a.answer(w, http.StatusCreated, n)
}

func (a *fakeAPI) postEnroll(w http.ResponseWriter, r *http.Request) {
	var req wire.LifecycleRequest
	n := a.find(w, r)
	if n == nil || !a.read(w, r, &req) {
		return
	}
	a.enrolled = append(a.enrolled, req)
	a.answer(w, http.StatusAccepted, wire.LifecycleResponse{
		Note:      a.note,
		Operation: operation(lifecycle.ActionEnroll, lifecycle.OperationAccepted), Node: *n, BootstrapBundle: a.bundle})
}

func (a *fakeAPI) postReissue(w http.ResponseWriter, r *http.Request) {
	var req wire.LifecycleRequest
	n := a.find(w, r)
	if n == nil || !a.read(w, r, &req) {
		return
	}
	if e := a.refuseReissue[n.Host]; e != nil {
		a.fail(w, e)
		return
	}
	a.reissued[n.Host] = req
	op := operation(lifecycle.ActionReissueEnrollment, lifecycle.OperationAccepted)
	op.OperationID, op.WorkflowID = reissueOf+n.ID, lifecycle.ReissueWorkflowID(n.Host, n.ID)
	a.answer(w, http.StatusAccepted, wire.LifecycleResponse{Operation: op, Node: *n, RecoveryBundle: a.recovery})
}

func (a *fakeAPI) postScript(w http.ResponseWriter, r *http.Request) {
	var req wire.BootstrapScriptRequest
	if a.find(w, r) == nil || !a.read(w, r, &req) {
		return
	}
	a.scripts = append(a.scripts, req)
	a.answer(w, http.StatusOK, wire.BootstrapScriptResponse{Note: a.note, Script: "#!/bin/sh\nTOKEN=" + enrollToken + "\n", ExpiresAt: *at(24 * time.Hour)})
}

// matches applies the filters that tests use.
func (a *fakeAPI) matches(r *http.Request, n wire.NodeView) bool {
	q := r.URL.Query()
	if n.State == lifecycle.NodeRemoved && q.Get("removed") != "true" {
		return false
	}
	for part := range strings.SplitSeq(q.Get("selector"), ",") {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "region":
			if n.RegionCode != value {
				return false
			}
		case "host":
			if ok, _ := path.Match(value, n.Host); !ok {
				return false
			}
		}
	}
	issuer := q.Get("issuer")
	return strings.HasPrefix(n.Host, q.Get("host_prefix")) && (issuer == "" || n.Identity != nil && n.Identity.Issuer == issuer)
}

func (a *fakeAPI) patchNode(w http.ResponseWriter, r *http.Request) {
	var c wire.NodeChange
	n := a.find(w, r)
	if n == nil || !a.read(w, r, &c) {
		return
	}
	a.changed = append(a.changed, c)
	n.SKU, n.RegionCode, n.WorkloadDriver = cmp.Or(c.SKU, n.SKU), cmp.Or(c.RegionCode, n.RegionCode), cmp.Or(c.WorkloadDriver, n.WorkloadDriver)
	if c.UnsetWorkloadDriver {
		n.WorkloadDriver = ""
	}
	if c.GPUsTotal != nil {
		n.GPUsTotal = *c.GPUsTotal
	}
	labels := maps.Clone(n.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, c.Labels)
	for _, key := range c.RemoveLabels {
		delete(labels, key)
	}
	n.Labels = labels
	a.answer(w, http.StatusOK, *n)
}

// postVerb starts an action as the real API would: through Temporal.
func (a *fakeAPI) postVerb(w http.ResponseWriter, r *http.Request) {
	var req wire.LifecycleRequest
	n := a.find(w, r)
	if n == nil || !a.read(w, r, &req) {
		return
	}
	key := r.Header.Get(wire.HeaderIdempotencyKey)
	a.keys = append(a.keys, key)
	action := lifecycle.Action(r.PathValue("verb"))
	if a.provisioned != nil && n.Operation != nil {
		a.fail(w, schema.NewError(schema.KindOperationInProgress, "%s is in progress on this node", n.Operation.Action))
		return
	}
	if a.provisioned != nil && n.Instance != nil && n.Instance.State == lifecycle.InstanceRunning {
		a.fail(w, schema.NewError(schema.KindInvalidRequest, "node %s is already provisioned", n.Host).WithReason("already_provisioned"))
		return
	}
	op, err := a.temporal.Submit(r.Context(), lifecycle.OperationInput{OperationID: lifecycle.OperationID(n.ID, action, "ops", key), NodeID: n.ID,
		Action: action, Actor: "ops", Via: "api", Reason: req.Reason, CorrelationID: r.Header.Get(wire.HeaderCorrelationID), Host: n.Host,
		Provider: n.OnboardingMode, Region: n.RegionCode, Options: req.Options})
	if err != nil {
		a.fail(w, schema.AsError(err))
		return
	}
	if st, ok := a.provisioned[n.Host]; ok {
		op = st.Operation
		a.hold(n, op)
	}
	a.answer(w, http.StatusAccepted, wire.LifecycleResponse{Operation: op, Node: *n})
}

// status is what Temporal says of the operation, or the row that a test gave.
func (a *fakeAPI) status(r *http.Request, id string) (lifecycle.OperationStatus, error) {
	for _, o := range a.operations {
		if o.OperationID == id {
			started := o.StartedAt
			return lifecycle.OperationStatus{Node: lifecycle.NodeRef{NodeID: o.NodeID, Host: o.Host}, Operation: lifecycle.Operation{
				OperationID: o.OperationID, WorkflowID: o.WorkflowID, RunID: o.RunID, Action: o.Action, Status: o.Status, Stuck: o.Stuck,
				Actor: o.Actor, Reason: o.Reason, StartedAt: &started, EndedAt: o.EndedAt, Outcome: o.Outcome,
				Phases: []lifecycle.Phase{{Name: o.Phase, State: lifecycle.PhaseRunning, Attempt: 1}}}}, nil
		}
	}
	if host, ok := strings.CutPrefix(id, provisionOf); ok {
		return a.provisioned[host], nil
	}
	if node, ok := strings.CutPrefix(id, reissueOf); ok {
		return a.temporal.Status(r.Context(), lifecycle.ReissueWorkflowID(a.hostOf(node), node), "")
	}
	return a.temporal.Status(r.Context(), lifecycle.NodeWorkflowID("gpu-17", nodeID), "")
}

func (a *fakeAPI) getOperation(w http.ResponseWriter, r *http.Request) {
	st, err := a.status(r, r.PathValue("id"))
	if err != nil {
		a.fail(w, schema.AsError(err))
		return
	}
	a.answer(w, http.StatusOK, wire.OperationView{OperationStatus: st, WebURL: a.temporal.WebURL(st.Operation.WorkflowID, st.Operation.RunID),
		Faults: a.temporal.runFaults})
}

func (a *fakeAPI) postDecision(w http.ResponseWriter, r *http.Request) {
	var req wire.ResolveOperation
	if !a.read(w, r, &req) {
		return
	}
	workflowID := lifecycle.NodeWorkflowID("gpu-17", nodeID)
	if node, ok := strings.CutPrefix(r.PathValue("id"), reissueOf); ok {
		workflowID = lifecycle.ReissueWorkflowID(a.hostOf(node), node)
	}
	a.keys = append(a.keys, r.Header.Get(wire.HeaderIdempotencyKey))
	st, err := a.temporal.Resolve(r.Context(), workflowID, lifecycle.ResolveRequest{OperationID: r.PathValue("id"), Phase: req.Phase,
		StuckSince: req.StuckSince, Decision: lifecycle.Decision(r.PathValue("decision")), Reason: req.Reason, By: "ops", Via: "api"})
	if err != nil {
		a.fail(w, schema.AsError(err))
		return
	}
	a.answer(w, http.StatusOK, wire.OperationView{OperationStatus: st})
}

func (a *fakeAPI) getStuck(w http.ResponseWriter, r *http.Request) {
	var q stuckQuery
	fmt.Sscan(r.URL.Query().Get("limit"), &q.limit) //nolint:errcheck // the client always sends one
	list, err := directControl{&env{console: &console{}, settings: settings{getenv: func(name string) string {
		return map[string]string{"GPUAAS_WEB_UI_URL": "http://web.test"}[name]
	}}}, a.temporal}.stuck(r.Context(), q)
	if err != nil {
		a.fail(w, schema.AsError(err))
		return
	}
	list.Nodes = append(list.Nodes, a.stuckNodes...)
	a.answer(w, http.StatusOK, list)
}

func (a *fakeAPI) hostOf(nodeID string) string {
	for _, n := range a.nodes {
		if n.ID == nodeID {
			return n.Host
		}
	}
	return ""
}

// reissueOf and a node's id are the operation id of the node's reissue.
const reissueOf = "reissue-of-"

func (a *fakeAPI) getOperations(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	list := wire.OperationList{Operations: []wire.OperationSummary{}}
	for _, o := range a.operations {
		isReissue := o.Action == lifecycle.ActionReissueEnrollment
		if want := q.Get("node"); want != "" && want != o.NodeID && want != o.Host || q.Get("open") == "true" && o.Status.Ended() ||
			q.Get("holds") == "true" && isReissue || q.Get("holds") == "false" && !isReissue {
			continue
		}
		list.Operations = append(list.Operations, o)
	}
	if len(a.operations) == 0 && q.Get("holds") != "" { // what Temporal has
		id := map[string]string{"true": operationID, "false": reissueOf + nodeID}[q.Get("holds")]
		switch {
		case a.temporal.down:
			a.fail(w, schema.AsError(a.temporal.unreachable()))
			return
		case id == operationID && len(a.temporal.statuses) > 0 || id != operationID && a.temporal.reissue != nil:
			list.Operations = append(list.Operations, wire.OperationSummary{OperationID: id, NodeID: nodeID})
		}
	}
	a.answer(w, http.StatusOK, list)
}

func (a *fakeAPI) listAudit(w http.ResponseWriter, r *http.Request) {
	page := wire.AuditPage{Events: []audit.Row{}}
	node := r.URL.Query().Get("node")
	if node != "" && node != audit.SystemStream && !schema.IsID(node) {
		found := ""
		for _, n := range a.nodes {
			if n.Host == node {
				found = n.ID
			}
		}
		if node = found; node == "" {
			a.fail(w, schema.NewError(schema.KindNotFound, "no such node"))
			return
		}
	}
	for _, stream := range slices.Sorted(maps.Keys(a.audit)) {
		events := a.audit[stream]
		if node == "" || node == stream {
			for _, v := range events {
				page.Events = append(page.Events, audit.Row{Event: v, Host: map[string]string{nodeID: "gpu-17"}[stream]})
			}
		}
	}
	if actions := r.URL.Query()["action"]; len(actions) > 0 {
		page.Events = slices.DeleteFunc(page.Events, func(v audit.Row) bool { return !slices.Contains(actions, v.Action) })
	}
	slices.SortFunc(page.Events, func(x, y audit.Row) int { return y.At.Compare(x.At) })
	var limit int
	fmt.Sscan(r.URL.Query().Get("limit"), &limit) //nolint:errcheck // the client always sends one
	page.Events = page.Events[:min(limit, len(page.Events))]
	a.answer(w, http.StatusOK, page)
}

// listSignals filters by type, and pages of two rows follow each other.
func (a *fakeAPI) listSignals(w http.ResponseWriter, r *http.Request) {
	if a.find(w, r) == nil {
		return
	}
	var limit, from int
	fmt.Sscan(r.URL.Query().Get("limit"), &limit)     //nolint:errcheck // the client always sends one
	fmt.Sscan(r.URL.Query().Get("page_token"), &from) //nolint:errcheck // none on the first page
	all := slices.DeleteFunc(slices.Clone(a.signals), func(s health.Signal) bool {
		types := r.URL.Query()["type"]
		return len(types) > 0 && !slices.Contains(types, string(s.Type))
	})
	to := min(from+min(limit, 2), len(all))
	page := signal.List{Signals: append([]health.Signal{}, all[min(from, to):to]...)}
	if to < len(all) {
		page.NextPageToken = fmt.Sprint(to)
	}
	a.answer(w, http.StatusOK, page)
}

func (a *fakeAPI) getCheckpoints(w http.ResponseWriter, r *http.Request) {
	after := 0
	fmt.Sscan(r.URL.Query().Get("after"), &after) //nolint:errcheck // 0 when it is none
	page := audit.CheckpointPage{Checkpoints: []audit.StoredCheckpoint{}, Keys: a.public}
	for i, c := range a.checkpoint {
		if i >= after && len(page.Checkpoints) < a.pageSize { // the numbers of a test's checkpoints have no gaps
			page.Checkpoints = append(page.Checkpoints, c)
		}
	}
	page.More = after+len(page.Checkpoints) < len(a.checkpoint)
	a.answer(w, http.StatusOK, page)
}

func (a *fakeAPI) getStream(w http.ResponseWriter, r *http.Request) {
	var after int64
	fmt.Sscan(r.URL.Query().Get("after"), &after) //nolint:errcheck // 0 when it is none
	page := wire.AuditStreamPage{Events: []audit.Event{}}
	if all := a.audit[r.PathValue("stream")]; len(all) > 0 {
		page.HeadSeq, page.HeadHash = all[len(all)-1].Seq, all[len(all)-1].Hash
	}
	if h, ok := a.heads[r.PathValue("stream")]; ok {
		page.HeadSeq, page.HeadHash = h.Seq, h.Hash
	}
	for _, v := range a.audit[r.PathValue("stream")] {
		if v.Seq <= after && !a.repeats {
			continue
		}
		if a.pageSize > 0 && len(page.Events) == a.pageSize {
			page.More = true
			break
		}
		page.Events = append(page.Events, v)
	}
	a.answer(w, http.StatusOK, page)
}
