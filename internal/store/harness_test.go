package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// env is one test's database: the store under test and a plain connection pool
// for what no operator and no caller may do.
type env struct {
	*store.Store
	*store.Operations
	*store.Tasks
	*store.Identities
	*store.Inventory
	*store.Admin
	*store.Signals
	*store.Insights
	t     testing.TB
	url   string
	raw   *pgxpool.Pool
	hosts atomic.Int64
}

func setup(t *testing.T) *env {
	t.Helper()
	t.Parallel()
	return open(t)
}

func open(t testing.TB) *env {
	t.Helper()
	return openWith(t, 20)
}

// openWith is open with a number of connections.
func openWith(t testing.TB, conns int32) *env {
	t.Helper()
	dsn := pgtest.New(t, store.Migrate)
	s, err := store.Open(t.Context(), store.Config{URL: restricted(t, dsn), MaxConns: conns})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	kept, err := s.Inventory.PutProviders(t.Context(), []machines.Info{{Name: "manual"}, {Name: "libvirt", Creates: true,
		Catalog: machines.Catalog{Regions: []string{"here"}, TakesSSHKeys: true, Types: []machines.Type{{ID: "small", CPUs: 1, MemoryMiB: 512}, {ID: "large", CPUs: 2, MemoryMiB: 4096}}}}})
	require.NoError(t, err)
	require.Empty(t, kept)
	raw, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(raw.Close)
	t.Cleanup(func() { checkDetails(t, raw) })
	return &env{Store: s, Operations: s.Operations, Tasks: s.Tasks, Identities: s.Identities, Inventory: s.Inventory, Admin: s.Admin, Signals: s.Signals, Insights: s.Insights,
		t: t, url: dsn, raw: raw}
}

// checkDetails checks that schema/audit describes the keys of the details that the test wrote. It skips a
// database that the test has stopped or changed, and claims of actions that are no operations, which only tests make.
func checkDetails(t testing.TB, raw *pgxpool.Pool) {
	t.Helper()
	rows, err := raw.Query(context.WithoutCancel(t.Context()), `SELECT DISTINCT action, key FROM audit_events, jsonb_object_keys(detail) AS key
		WHERE NOT (action IN ('nodes.register', 'nodes.heartbeat-lost', 'nodes.heartbeat-back') AND detail ? 'requested_reason')`)
	if err != nil {
		return
	}
	written, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Action, Key string }])
	if err != nil {
		return
	}
	described := map[string][]string{}
	for _, i := range audit.Infos() {
		described[i.Action] = i.Detail
	}
	for _, w := range written {
		keys, known := described[w.Action]
		if known && !slices.ContainsFunc(keys, func(k string) bool {
			prefix, open := strings.CutSuffix(k, "*")
			return k == w.Key || open && strings.HasPrefix(w.Key, prefix)
		}) {
			t.Errorf("schema/audit does not describe the detail %q of %s", w.Key, w.Action)
		}
	}
}

// unaudited stands for the stream of a refusal without an audit row: any client can send
// the request, so the node API counts it.
const unaudited = ""

// restricted is the URL with the privileges of the processes, and no others.
func restricted(t testing.TB, dsn string) string {
	t.Helper()
	require.NoError(t, postgres.Run(t.Context(), dsn, `DO $$ BEGIN
		CREATE ROLE processes IN ROLE gpuaas_worker, gpuaas_api_admin, gpuaas_api_node;
	EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`))
	return pgtest.As(dsn, "processes")
}

var operator = audit.Subject{Actor: "alice@ops", CorrelationID: "corr-1"}

// register adds a node on the SKU cpu-dev.
func (e *env) register(change ...func(*wire.RegisterNodeRequest)) wire.NodeView {
	e.t.Helper()
	r := wire.RegisterNodeRequest{Host: fmt.Sprintf("gpu-%d", e.hosts.Add(1)), SKU: "cpu-dev", RegionCode: "region-1"}
	for _, f := range change {
		f(&r)
	}
	n, err := e.Register(e.t.Context(), schema.NewID(), r, operator)
	require.NoError(e.t, err)
	return n
}

// inState adds a node and puts it into a state past every rule.
func (e *env) inState(s lifecycle.NodeState) wire.NodeView {
	e.t.Helper()
	n := e.register()
	e.exec("UPDATE nodes SET state = $2 WHERE node_id = $1", n.ID, s)
	n.State = s
	return n
}

func (e *env) exec(sql string, args ...any) {
	e.t.Helper()
	_, err := e.raw.Exec(e.t.Context(), sql, args...)
	require.NoError(e.t, err)
}

// number runs a query for one number.
func (e *env) number(sql string, args ...any) int64 {
	e.t.Helper()
	var n int64
	require.NoError(e.t, e.raw.QueryRow(e.t.Context(), sql, args...).Scan(&n))
	return n
}

// text runs a query for one text.
func (e *env) text(sql string, args ...any) (s string) {
	e.t.Helper()
	require.NoError(e.t, e.raw.QueryRow(e.t.Context(), sql, args...).Scan(&s))
	return s
}

func (e *env) node(id string) wire.NodeView {
	e.t.Helper()
	n, err := e.Node(e.t.Context(), id)
	require.NoError(e.t, err)
	return n
}

// all is a page that holds every row of a test.
var all = adminapi.Page{Limit: 1000}

// nodes lists all nodes by host name.
func (e *env) nodes() []wire.NodeView {
	e.t.Helper()
	nodes, _, err := e.ListNodes(e.t.Context(), adminapi.NodeQuery{Page: all, View: adminapi.ViewFull, Removed: true})
	require.NoError(e.t, err)
	return nodes
}

// operations lists the operations of a node, newest first; of all nodes if nodeID
// is empty.
func (e *env) operations(nodeID string, open bool) []wire.OperationSummary {
	e.t.Helper()
	ops, _, err := e.ListOperations(e.t.Context(), adminapi.OperationQuery{Page: all, NodeID: nodeID, Open: open})
	require.NoError(e.t, err)
	return ops
}

// tasks lists the tasks of a node, newest first; of all nodes if nodeID is empty.
func (e *env) tasks(nodeID string, open bool) []wire.TaskView {
	e.t.Helper()
	tasks, _, err := e.ListTasks(e.t.Context(), adminapi.TaskQuery{Page: all, NodeID: nodeID, Open: open})
	require.NoError(e.t, err)
	return tasks
}

func request(nodeID string, a lifecycle.Action) activities.ClaimRequest {
	return activities.ClaimRequest{RunID: schema.NewID(), OperationInput: lifecycle.OperationInput{
		OperationID: schema.NewID(), NodeID: nodeID, Action: a, Actor: "alice@ops", Reason: "RMA-4411", CorrelationID: "corr-1",
	}}
}

// Claim claims with the node's workflow ID unless the request has one.
func (e *env) Claim(ctx context.Context, r activities.ClaimRequest) (activities.Claim, error) {
	if n, err := e.Node(ctx, r.NodeID); err == nil && r.WorkflowID == "" {
		r.WorkflowID = lifecycle.WorkflowID(r.Action, n.Host, r.NodeID)
	}
	return e.Store.Operations.Claim(ctx, r)
}

// Advance records progress of an unknown run, as the next step unless it has one.
func (e *env) Advance(ctx context.Context, f activities.Fence, a activities.Advance) error {
	if a.Step == 0 {
		a.Step = e.number("SELECT coalesce(max(step), 0) + 1 FROM operations WHERE operation_id = $1", f.OperationID)
	}
	return e.Operations.Advance(ctx, f, "", a)
}

// Finish ends an operation of an unknown run.
func (e *env) Finish(ctx context.Context, f activities.Fence, end activities.Finish) error {
	return e.Operations.Finish(ctx, f, "", end)
}

// claim takes the node for a new operation.
func (e *env) claim(nodeID string, a lifecycle.Action) activities.Claim {
	e.t.Helper()
	c, err := e.Claim(e.t.Context(), request(nodeID, a))
	require.NoError(e.t, err)
	return c
}

// audit returns the rows of a stream as "action result reason", checked as a
// chain.
func (e *env) audit(stream string) []string {
	e.t.Helper()
	rows := []string{}
	for _, ev := range e.chain(stream) {
		rows = append(rows, strings.TrimSpace(ev.Action+" "+ev.Result+" "+ev.Reason))
	}
	return rows
}

func (e *env) chain(stream string) []audit.Event {
	e.t.Helper()
	events, err := e.AuditStream(e.t.Context(), stream, 0, 10_000)
	require.NoError(e.t, err)
	require.NoError(e.t, audit.VerifyChain(nil, events))
	return events
}

// changes runs fn and returns the audit rows it added to the stream.
func (e *env) changes(stream string, fn func()) []string {
	e.t.Helper()
	before := len(e.audit(stream))
	fn()
	return e.audit(stream)[before:]
}

// token mints and issues a token for the node.
func (e *env) token(nodeID string) (id string, hash []byte) {
	e.t.Helper()
	_, id, hash = trust.NewToken()
	require.NoError(e.t, e.IssueToken(e.t.Context(), trust.MintedToken{NodeID: nodeID, TokenID: id, Hash: hash,
		Purpose: trust.PurposeEnroll, ExpiresAt: time.Now().Add(trust.TokenTTL)}, operator))
	return id, hash
}

func tokenClaim(nodeID, id string, hash []byte, spki string) nodeapi.TokenClaim {
	return nodeapi.TokenClaim{NodeID: nodeID, TokenID: id, Hash: hash, SPKI: spki, CorrelationID: "corr-2",
		AgentVersion: "v1", RemoteAddr: "192.0.2.7:999"}
}

func certificate(nodeID string, incarnation int64, spki string) (trust.Identity, trust.CertFacts) {
	id := trust.Identity{Env: "test", NodeID: nodeID, Incarnation: incarnation}
	serial := strings.ReplaceAll(schema.NewID(), "-", "")
	return id, trust.CertFacts{Subject: "", URI: id.URI(), Issuer: "CN=node CA", Serial: serial, SPKI: spki,
		Fingerprint: "f" + serial, NotBefore: time.Now().Add(-time.Minute).UTC().Truncate(time.Microsecond),
		NotAfter: time.Now().Add(72 * time.Hour).UTC().Truncate(time.Microsecond)}
}

// recoveryKey is the recovery key of every node here; signatures are checked
// before the store.
var recoveryKey = make([]byte, 32)

// key is the hash of a node's n-th key.
func key(nodeID string, n int) string { return fmt.Sprintf("spki-%d-of-%s", n, nodeID) }

// enroll takes a new node through enrollment to active and returns its caller
// and certificate.
func (e *env) enroll() (nodeapi.Caller, trust.Identity, trust.CertFacts) {
	e.t.Helper()
	m := e.machine()
	return m.caller, m.id, m.cert
}

// heartbeat sends a heartbeat with the caller's identity and certificate.
func (e *env) heartbeat(c nodeapi.Caller, h wire.Heartbeat) error {
	c, err := e.Authenticate(e.t.Context(), trust.Identity{Env: "test", NodeID: c.NodeID, Incarnation: c.Incarnation},
		trust.CertFacts{Serial: c.Serial})
	if err != nil {
		return err
	}
	return e.Heartbeat(e.t.Context(), c, h)
}

func spec(f activities.Fence, step string, kind task.Type) activities.TaskSpec {
	return activities.TaskSpec{OperationID: f.OperationID, OpSeq: f.OpSeq, NodeID: f.NodeID, Step: step, Type: kind,
		Params: json.RawMessage(`{"x": 1}`), Deadline: time.Now().Add(time.Hour), CorrelationID: f.CorrelationID}
}

func taskOwner(step string) task.Owner {
	return task.Owner{WorkflowID: "wf", RunID: "run", ActivityID: step}
}

// dispatch prepares, signs and stores a task.
func (e *env) dispatch(f activities.Fence, step string, kind task.Type) activities.TaskRow {
	e.t.Helper()
	return e.enqueue(spec(f, step, kind))
}

func (e *env) enqueue(s activities.TaskSpec) activities.TaskRow {
	e.t.Helper()
	row, err := e.Prepare(e.t.Context(), s, taskOwner(s.Step))
	require.NoError(e.t, err)
	require.NoError(e.t, e.Enqueue(e.t.Context(), s, taskOwner(s.Step), row, []byte(`{"payload":  "`+s.Step+`"}`)))
	return row
}

// take hands the node its next task, which must exist.
func (e *env) take(c nodeapi.Caller, lease time.Duration, have ...string) *nodeapi.Dispatch {
	e.t.Helper()
	offer, err := e.NextTask(e.t.Context(), c, wire.PollRequest{HeldTasks: have}, lease, nil)
	require.NoError(e.t, err)
	require.NotNil(e.t, offer)
	return offer
}

// Result stores a result without its proof.
func (e *env) Result(ctx context.Context, c nodeapi.Caller, taskID string, r task.Result) (task.Type, error) {
	return e.Store.Tasks.Result(ctx, c, taskID, nodeapi.ReceivedResult{Result: r})
}

func (e *env) takeNone(c nodeapi.Caller, have ...string) {
	e.t.Helper()
	offer, err := e.NextTask(e.t.Context(), c, wire.PollRequest{HeldTasks: have}, time.Minute, nil)
	require.NoError(e.t, err)
	require.Nil(e.t, offer)
}

func succeeded(epoch int64, output any) task.Result {
	raw, err := json.Marshal(output)
	if err != nil {
		panic(err)
	}
	now := time.Now().UTC()
	return task.Result{LeaseEpoch: epoch, Status: task.Succeeded, Output: raw,
		StartedAt: now.Add(-time.Second), FinishedAt: now}
}

// race runs fn n times at the same instant and returns the errors in order.
func race(n int, fn func(i int) error) []error {
	var wg sync.WaitGroup
	errs, gate := make([]error, n), make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-gate
			errs[i] = fn(i)
		})
	}
	close(gate)
	wg.Wait()
	return errs
}

// requireKind requires an error of the kind and, when given, the reason.
func requireKind(t testing.TB, err error, kind schema.Kind, reason string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, kind, schema.KindOf(err), "%v", err)
	if reason != "" {
		require.Equal(t, reason, schema.AsError(err).Reason, "%v", err)
	}
}

func count(rows []string, row string) int {
	n := 0
	for _, r := range rows {
		if r == row {
			n++
		}
	}
	return n
}

func listen(ctx context.Context, l *store.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Run(ctx) // ends with the context
	}()
	return func() { cancel(); <-done }
}
