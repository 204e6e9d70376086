package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
	"github.com/gpuaas/gpuaas/test/testkit/resulttest"
)

const (
	testEnv    = "test"
	adminToken = "test-admin-token-0123456789"
)

// claimer is a Lifecycle that claims in the database as a workflow would.
type claimer struct{ store *store.Store }

func (c claimer) Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error) {
	workflow := lifecycle.WorkflowID(in.Action, in.Host, in.NodeID)
	open, _, err := c.store.Admin.ListOperations(ctx, adminapi.OperationQuery{Page: adminapi.Page{Limit: 10}, NodeID: in.NodeID, Open: true})
	if err != nil {
		return lifecycle.Operation{}, err
	}
	for _, o := range open {
		if o.WorkflowID == workflow && o.OperationID != in.OperationID {
			return lifecycle.Operation{}, schema.NewError(schema.KindOperationInProgress, "%s is in progress", o.Action)
		}
	}
	op := lifecycle.Operation{OperationID: in.OperationID, Reason: in.Reason, Options: in.Options.Requested(), WorkflowID: workflow, RunID: "run-" + in.OperationID,
		Action: in.Action, Status: lifecycle.OperationAccepted}
	claim, err := c.store.Operations.Claim(ctx, activities.ClaimRequest{OperationInput: in, WorkflowID: workflow, RunID: op.RunID,
		Document: &lifecycle.OperationStatus{Operation: op}})
	op.OpSeq = claim.Fence.OpSeq
	return op, err
}

// Resolve writes the decision into the operation's document, as a workflow would.
func (c claimer) Resolve(ctx context.Context, workflowID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	st, err := c.store.Admin.Operation(ctx, r.OperationID)
	if err == nil && (st.Operation.Stuck == nil || r.Phase != "" && r.Phase != st.Operation.Stuck.Phase) {
		return st, schema.NewError(schema.KindDecisionOutdated, "%s is not parked there", workflowID)
	}
	return st, err
}

// RunEnds has an open run for every operation.
func (claimer) RunEnds(_ context.Context, ops []lifecycle.Operation) ([]lifecycle.RunEnd, []error) {
	return make([]lifecycle.RunEnd, len(ops)), make([]error, len(ops))
}

// RunFaults has no calls.
func (claimer) RunFaults(context.Context, lifecycle.Operation) ([]wire.ControlPlaneFault, error) {
	return nil, nil
}

// Resolved finds no decision, because Resolve keeps none.
func (claimer) Resolved(context.Context, string, string, lifecycle.ResolveRequest) (lifecycle.OperationStatus, error) {
	return lifecycle.OperationStatus{}, schema.NewError(schema.KindNotFound, "no such decision")
}

// cluster is a database with replicas of the API over it.
type cluster struct {
	tb  testing.TB
	url string
	ca  *authority
	// between, when set, wraps the node API's identities.
	between    func(nodeapi.Identities) nodeapi.Identities
	archive    string // the agent package, when set
	releases   releases
	issuer     nodeapi.Issuer                               // replaces ca, when set
	heartbeats nodeapi.Heartbeater                          // instead of Temporal
	runs       runs                                         // instead of Temporal
	lifecycle  adminapi.Lifecycle                           // instead of claimer, when set
	grants     nodeapi.Grants                               // replaces ca together with follow, when set
	follow     func(context.Context, trust.StoredSet) error // replaces ca together with grants, when set
}

func newCluster(tb testing.TB) *cluster {
	tb.Helper()
	return newClusterWith(tb, firstSet())
}

// newClusterWith is newCluster with its first verifier set.
func newClusterWith(tb testing.TB, first trust.StoredSet) *cluster {
	tb.Helper()
	c := &cluster{tb: tb, url: pgtest.New(tb, store.Migrate), ca: newAuthority(tb), heartbeats: &fakeHeartbeats{}}
	s, err := store.Open(tb.Context(), store.Config{URL: c.url})
	require.NoError(tb, err)
	defer s.Close()
	require.NoError(tb, s.Identities.PutSet(tb.Context(), first, audit.Subject{Actor: "test"}))
	return c
}

// exec changes the database directly.
func (c *cluster) exec(sql string, args ...any) {
	c.tb.Helper()
	conn, err := pgx.Connect(c.tb.Context(), c.url)
	require.NoError(c.tb, err)
	defer func() { _ = conn.Close(context.WithoutCancel(c.tb.Context())) }()
	_, err = conn.Exec(c.tb.Context(), sql, args...)
	require.NoError(c.tb, err)
}

// replica is one process's worth of API on stores of its own.
type replica struct {
	tb       testing.TB
	ca       *authority
	store    *store.Store
	listener *store.Listener
	deafen   func() // closes the connection for notifications
	sets     *vault.SetFollower
	registry *prometheus.Registry
	log      *harness.Buffer
	node     string // base URL
	admin    string
	console  console.Config // without a URL
}

func (c *cluster) replica() *replica {
	c.tb.Helper()
	return c.replicaOn(c.url)
}

// replicaOn is replica with its own way to the database.
func (c *cluster) replicaOn(url string) *replica {
	c.tb.Helper()
	r := &replica{tb: c.tb, ca: c.ca, registry: prometheus.NewRegistry(), log: &harness.Buffer{}}
	log := slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	r.store, err = store.Open(c.tb.Context(), store.Config{URL: url})
	require.NoError(c.tb, err)
	nodeSide, adminSide := c.side(url, store.RoleAPINode, 0), c.side(url, store.RoleAPIAdmin, adminConns)
	r.registry.MustRegister(postgres.NewCollector(nodeSide.Pools()))
	r.listener, err = store.NewListener(pgtest.As(url, store.RoleAPINode), log)
	require.NoError(c.tb, err)
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	listening, stopListening := context.WithCancel(ctx)
	stopped := make(chan struct{})
	group.Go(func() {
		defer close(stopped)
		_ = r.listener.Run(listening)
	})
	r.deafen = func() { stopListening(); <-stopped }
	group.Go(func() { _ = nodeSide.Inventory.Sweep(ctx, r.listener) })
	grants, follow := c.grants, c.follow
	if grants == nil {
		grants, follow = delegate{c.ca}, func(context.Context, trust.StoredSet) error { return nil }
	}
	r.sets = vault.NewSetFollower(nodeSide.Identities, follow, log, func(bool) {})
	require.NoError(c.tb, r.sets.Refresh(c.tb.Context()))
	group.Go(func() { _ = r.sets.Run(ctx, r.listener.Sets()) })

	ready := func() error { return nil }
	m := metrics.New(r.registry)
	r.registry.MustRegister(metrics.NewFleetCollector(adminSide.Inventory, func() bool { return true }, log))
	issuer := c.issuer
	if issuer == nil {
		issuer = c.ca
	}
	var identities nodeapi.Identities = nodeSide.Identities
	if c.between != nil {
		identities = c.between(identities)
	}
	agent := &config{AgentArchive: c.archive, releases: c.releases}
	agent.checkPackage(&daemon.Faults{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(c.tb, err)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(c.tb, err)
	r.node = "https://localhost:" + port
	agent.NodeURL = r.node
	tokens, err := adminapi.NewTokens(sha256.Sum256([]byte(adminToken)), "admin-token", "")
	require.NoError(c.tb, err)
	var lifecycles adminapi.Lifecycle = claimer{r.store}
	if c.lifecycle != nil {
		lifecycles = c.lifecycle
	}
	adminAPI := adminapi.New(adminapi.Config{Env: testEnv, NodeURL: r.node, Auth: subjects{tokens},
		Nodes: adminSide.Admin, SKUs: adminSide.Admin, Machines: adminSide.Machines, EnrollmentTokens: adminSide.Identities, Locks: adminSide.Identities, Operations: adminSide.Admin, Tasks: adminSide.Tasks, Trail: adminSide.Admin, Signals: adminSide.Signals, Templates: adminSide.Templates, Repairs: adminSide.Repairs, Checkpoints: adminSide.Checkpoints,
		CheckpointKeys: func(context.Context) (map[string]ed25519.PublicKey, error) { return nil, nil },
		Lifecycle:      lifecycles, Rehydrator: rehydrator{adminSide, c.runs}, Trust: c.ca, Log: log, Ready: ready,
		Package: agent.packageSource(), Release: agent.releases.document})
	group.Go(func() { _ = adminAPI.Run(ctx) })
	bundles := adminapi.NewBundles(adminapi.Config{Env: testEnv, NodeURL: r.node, Nodes: nodeSide.Admin, EnrollmentTokens: nodeSide.Identities,
		Trust: c.ca, Package: agent.packageSource()})
	node := nodeapi.New(nodeapi.Config{Env: testEnv, Identities: identities, Tasks: nodeSide.Tasks, Heartbeats: nodeSide.Inventory, Notifier: r.listener, Issuer: issuer, CAs: c.ca, Metrics: m, Log: log, Ready: ready,
		Grants: grants, VerifierSets: r.sets, Heartbeater: c.heartbeats,
		IssueRate: 1e5, NodeRate: 1e5, RenewalRate: 1e5, Bundles: bundles, Packages: agent.packages(), Release: agent.releases.binary})
	cert := c.ca.server()
	server := node.Server(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil })
	group.Go(func() { _ = node.Run(ctx) })
	group.Go(func() { _ = server.ServeTLS(node.Listener(ln, nil), "", "") })
	r.console = console.Config{API: inProcess{adminAPI.Handler()}, Tokens: consoleTokens(tokens), Sessions: adminSide.Console, Trail: adminSide.Console, Log: log}
	admin := httptest.NewServer(adminAPI.Handler())
	r.admin = admin.URL + "/api/v1/admin"
	c.tb.Cleanup(func() {
		_ = server.Close()
		admin.Close()
		stop()
		group.Wait()
		for _, s := range []*store.Store{r.store, nodeSide, adminSide} {
			s.Close()
		}
	})
	return r
}

// side opens the database with the privileges and the pools of a side of the API.
func (c *cluster) side(url, role string, conns int32) *store.Store {
	c.tb.Helper()
	s, err := store.Open(c.tb.Context(), store.Config{URL: pgtest.As(url, role), MaxConns: conns, UnauthenticatedConns: unauthenticatedConns})
	require.NoError(c.tb, err)
	return s
}

// client returns an agent's HTTP client; cert may be nil.
func (r *replica) client(cert *tls.Certificate) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(r.ca.cert)
	return httpClient(r.tb, pool, cert)
}

func httpClient(tb testing.TB, pool *x509.CertPool, cert *tls.Certificate) *http.Client {
	tb.Helper()
	cfg := &tls.Config{RootCAs: pool}
	if cert != nil {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	transport := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: resulttest.Transport{Transport: transport, Cert: cert}}
}

// reply is the answer to a call.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (a reply) into(tb testing.TB, v any) {
	tb.Helper()
	require.NoError(tb, json.Unmarshal(a.body, v), string(a.body))
}

func (a reply) refusal(tb testing.TB) schema.ErrorDetail {
	tb.Helper()
	var b schema.ErrorBody
	a.into(tb, &b)
	return b.Error
}

func send(ctx context.Context, c *http.Client, method, url string, body any, headers ...string) (reply, error) {
	res, err := harness.Do(ctx, c, method, url, body, headers...)
	if err != nil {
		return reply{}, err
	}
	a := reply{res.Status, res.Header, res.Body}
	return a, undeclared(res.Request, a)
}

func (r *replica) call(c *http.Client, method, url string, body any) reply {
	r.tb.Helper()
	a, err := send(r.tb.Context(), c, method, url, body)
	require.NoError(r.tb, err)
	return a
}

func (r *replica) ask(method, path string, body any, headers ...string) reply {
	r.tb.Helper()
	a, err := send(r.tb.Context(), http.DefaultClient, method, r.admin+path, body, append([]string{"Authorization", "Bearer " + adminToken}, headers...)...)
	require.NoError(r.tb, err)
	return a
}

// machine is a node as its agent sees it.
type machine struct {
	id     string
	bundle trust.BootstrapBundle
	cert   *tls.Certificate
}

// register adds a node with a host name of its own.
func (r *replica) register() wire.NodeView {
	r.tb.Helper()
	a := r.ask(http.MethodPost, "/nodes", wire.RegisterNodeRequest{Host: "h" + schema.NewID(), SKU: "cpu-dev", RegionCode: "region-1"})
	require.Equal(r.tb, http.StatusCreated, a.status, string(a.body))
	var v wire.NodeView
	a.into(r.tb, &v)
	return v
}

// bundle registers a node and starts its enrollment.
func (r *replica) bundle() machine {
	r.tb.Helper()
	node := r.register()
	a := r.ask(http.MethodPost, "/nodes/"+node.ID+"/enroll", nil)
	require.Equal(r.tb, http.StatusAccepted, a.status, string(a.body))
	var answer wire.LifecycleResponse
	a.into(r.tb, &answer)
	return machine{id: node.ID, bundle: *answer.BootstrapBundle}
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	return key
}

func newCSR(tb testing.TB, key *ecdsa.PrivateKey, change func(*x509.CertificateRequest)) string {
	tb.Helper()
	template := &x509.CertificateRequest{}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	require.NoError(tb, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func (r *replica) enroll(nodeID string, req any) reply {
	r.tb.Helper()
	return r.call(r.client(nil), http.MethodPost, r.node+"/internal/v1/nodes/"+nodeID+"/enroll", req)
}

func certificate(tb testing.TB, a reply, key *ecdsa.PrivateKey) *tls.Certificate {
	tb.Helper()
	require.Equal(tb, http.StatusOK, a.status, string(a.body))
	var answer wire.EnrollResponse
	a.into(tb, &answer)
	block, _ := pem.Decode([]byte(answer.Certificate))
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}
}

// enrolled returns a node whose agent has polled.
func (r *replica) enrolled() machine {
	r.tb.Helper()
	m := r.bundle()
	key := newKey(r.tb)
	m.cert = certificate(r.tb, r.enroll(m.id, wire.EnrollRequest{Token: m.bundle.EnrollmentToken, CSR: newCSR(r.tb, key, nil)}), key)
	require.Equal(r.tb, http.StatusNoContent, r.wait(m, 0).status)
	r.finish(m.id, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive})
	return m
}

func (r *replica) url(m machine, rest string) string {
	return r.node + "/internal/v1/nodes/" + m.id + rest
}

func (r *replica) wait(m machine, wait time.Duration) reply {
	r.tb.Helper()
	return r.call(r.client(m.cert), http.MethodPost, r.url(m, "/tasks/wait"), pollRequest(wait))
}

// report polls with a heartbeat and without a wait.
func (r *replica) report(m machine, h wire.Heartbeat) reply {
	r.tb.Helper()
	poll := pollRequest(0)
	poll.Heartbeat = &h
	return r.call(r.client(m.cert), http.MethodPost, r.url(m, "/tasks/wait"), poll)
}

// pollRequest is a valid poll with a fresh nonce.
func pollRequest(wait time.Duration) wire.PollRequest {
	var nonce [wire.NonceBytes]byte
	_, _ = rand.Read(nonce[:])
	return wire.PollRequest{Nonce: base64.RawURLEncoding.EncodeToString(nonce[:]), AgentSession: "boot-1700000000", VerifierSet: 1,
		WaitSeconds: wait.Seconds()}
}

// poll waits in the background.
func (r *replica) poll(m machine, held ...string) <-chan reply {
	poll := pollRequest(wire.MaxPollTimeout)
	poll.HeldTasks = held
	c, out := r.client(m.cert), make(chan reply, 1)
	go func() {
		a, err := send(r.tb.Context(), c, http.MethodPost, r.url(m, "/tasks/wait"), poll)
		if err != nil {
			a.body = []byte(err.Error())
		}
		out <- a
	}()
	return out
}

// parked waits until n polls are open at this replica.
func (r *replica) parked(n float64) {
	r.tb.Helper()
	harness.Eventually(r.tb, "open polls", func() bool { return r.metric("gpuaas_waiting_agents") == n })
}

func (r *replica) metric(name string) float64 {
	families, err := r.registry.Gather()
	require.NoError(r.tb, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}

// fence returns the fence of the operation that holds the node.
func (r *replica) fence(nodeID string) activities.Fence {
	r.tb.Helper()
	node, err := r.store.Admin.Node(r.tb.Context(), nodeID)
	require.NoError(r.tb, err)
	require.NotNil(r.tb, node.Operation)
	return activities.Fence{NodeID: nodeID, OperationID: node.Operation.OperationID, OpSeq: node.Operation.OpSeq, Actor: "test"}
}

// finish ends the operation that holds the node, as its workflow would.
func (r *replica) finish(nodeID string, f activities.Finish) {
	r.tb.Helper()
	require.NoError(r.tb, r.store.Operations.Finish(r.tb.Context(), r.fence(nodeID), "", f))
}

// operate runs an action from start to end.
func (r *replica) operate(nodeID string, action lifecycle.Action, f activities.Finish) {
	r.tb.Helper()
	a := r.ask(http.MethodPost, "/nodes/"+nodeID+"/"+string(action), nil)
	require.Equal(r.tb, http.StatusAccepted, a.status, string(a.body))
	r.finish(nodeID, f)
}

// remove takes the node through retire and remove.
func (r *replica) remove(nodeID string) {
	r.tb.Helper()
	r.operate(nodeID, lifecycle.ActionRetire, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired})
	r.operate(nodeID, lifecycle.ActionRemove, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRemoved, DenyIdentity: true})
}

func receive[T any](tb testing.TB, ch <-chan T) T {
	tb.Helper()
	return harness.Receive(tb, "an answer", ch)
}
