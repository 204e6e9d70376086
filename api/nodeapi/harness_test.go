package nodeapi_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/resulttest"
)

const env = "test"

// proxyAddress is the address of a load balancer in front of a site.
const proxyAddress = "127.9.9.9"

// ca is a certificate authority of the test.
type ca struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	return key
}

func serial(tb testing.TB) *big.Int {
	tb.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 150))
	require.NoError(tb, err)
	return n
}

func newCA(tb testing.TB, name string) *ca {
	tb.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(tb), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	c := &ca{key: newKey(tb)}
	c.cert = c.sign(tb, template, template, c.key.Public())
	return c
}

func (c *ca) sign(tb testing.TB, template, parent *x509.Certificate, key crypto.PublicKey) *x509.Certificate {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, c.key)
	require.NoError(tb, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(tb, err)
	return cert
}

// leaf returns a node certificate for the identity; change may invalidate it.
func (c *ca) leaf(tb testing.TB, id trust.Identity, change func(*x509.Certificate)) *tls.Certificate {
	tb.Helper()
	uri, err := url.Parse(id.URI())
	require.NoError(tb, err)
	template := &x509.Certificate{
		SerialNumber: serial(tb), URIs: []*url.URL{uri},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if change != nil {
		change(template)
	}
	key := newKey(tb)
	cert := c.sign(tb, template, c.cert, key.Public())
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// server returns a server certificate for localhost.
func (c *ca) server(tb testing.TB) *tls.Certificate {
	tb.Helper()
	return c.leaf(tb, trust.Identity{Env: env, NodeID: schema.NewID(), Incarnation: 1}, func(t *x509.Certificate) {
		t.URIs, t.DNSNames = nil, []string{"localhost"}
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
}

// fakeStore calls the functions that a test sets. By default it has an active node
// and no tasks.
type fakeStore struct {
	authenticate func(trust.Identity, trust.CertFacts) (nodeapi.Caller, error)
	claim        func(nodeapi.TokenClaim) (nodeapi.ClaimResult, error)
	renew        func(nodeapi.RenewClaim) (nodeapi.ClaimResult, error)
	facts        func(nodeID string) (nodeapi.RecoveryFacts, error)
	recover      func(nodeapi.RecoveryClaim) (nodeapi.ClaimResult, error)
	pending      func(nodeapi.NewIdentity) (int64, error)
	next         func(held []string) (*nodeapi.Dispatch, error)
	nextFor      func(wire.PollRequest) (*nodeapi.Dispatch, error)
	recordPoll   func() error
	heartbeat    func(nodeapi.Caller, wire.Heartbeat) error
	canceled     func(held []string) ([]string, error)
	result       func(nodeapi.ReceivedResult) (task.Type, error)
	progress     func(task.Progress) (wire.ProgressResponse, error)
	progressed   func(task.Progress) (nodeapi.ProgressResult, error)
	setState     func(taskID string, s nodeapi.ActivityState) error
	removal      func(nodeID string) ([]byte, error)
	issueForTask func(c nodeapi.Caller, taskID string, m trust.MintedToken, life time.Duration) (time.Time, error)
	refused      func([]nodeapi.RefusedRequests)
}

func (f *fakeStore) Removal(_ context.Context, nodeID string) ([]byte, error) {
	if f.removal == nil {
		return nil, nil
	}
	return f.removal(nodeID)
}

func (f *fakeStore) Authenticate(_ context.Context, id trust.Identity, facts trust.CertFacts) (nodeapi.Caller, error) {
	if f.authenticate != nil {
		return f.authenticate(id, facts)
	}
	return nodeapi.Caller{NodeID: id.NodeID, Incarnation: id.Incarnation, State: lifecycle.NodeActive, Serial: facts.Serial}, nil
}

func (f *fakeStore) ClaimToken(_ context.Context, c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
	if f.claim != nil {
		return f.claim(c)
	}
	return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: 1}, nil
}

func (f *fakeStore) ClaimRenewal(_ context.Context, c nodeapi.RenewClaim) (nodeapi.ClaimResult, error) {
	if f.renew != nil {
		return f.renew(c)
	}
	return nodeapi.ClaimResult{NodeID: c.Caller.NodeID, Incarnation: c.Caller.Incarnation, Recoverable: true}, nil
}

func (f *fakeStore) RecoveryFacts(_ context.Context, nodeID string) (nodeapi.RecoveryFacts, error) {
	if f.facts != nil {
		return f.facts(nodeID)
	}
	return nodeapi.RecoveryFacts{}, schema.NewError(schema.KindUnauthenticated, "unknown")
}

func (f *fakeStore) ClaimRecovery(_ context.Context, c nodeapi.RecoveryClaim) (nodeapi.ClaimResult, error) {
	if f.recover != nil {
		return f.recover(c)
	}
	return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: c.Incarnation, Recoverable: true}, nil
}

func (f *fakeStore) RecordRefusals(_ context.Context, r []nodeapi.RefusedRequests) error {
	if f.refused != nil {
		f.refused(r)
	}
	return nil
}

func (f *fakeStore) IssueForTask(_ context.Context, c nodeapi.Caller, taskID string, m trust.MintedToken, life time.Duration) (time.Time, error) {
	if f.issueForTask != nil {
		return f.issueForTask(c, taskID, m, life)
	}
	return time.Now().Add(life), nil
}

func (f *fakeStore) StorePending(_ context.Context, n nodeapi.NewIdentity) (int64, error) {
	if f.pending != nil {
		return f.pending(n)
	}
	return 1, nil
}

func (f *fakeStore) RecordSession(context.Context, nodeapi.Caller, wire.PollRequest) error {
	return nil
}

func (f *fakeStore) RecordPoll(context.Context, nodeapi.Caller, wire.PollRequest) error {
	if f.recordPoll != nil {
		return f.recordPoll()
	}
	return nil
}

func (f *fakeStore) NextTask(_ context.Context, _ nodeapi.Caller, poll wire.PollRequest, _ time.Duration, _ []string) (*nodeapi.Dispatch, error) {
	if f.nextFor != nil {
		return f.nextFor(poll)
	}
	if f.next != nil {
		return f.next(poll.HeldTasks)
	}
	return nil, nil
}

func (f *fakeStore) Progress(_ context.Context, _ nodeapi.Caller, _ string, p task.Progress, lease time.Duration) (nodeapi.ProgressResult, error) {
	if f.progressed != nil {
		return f.progressed(p)
	}
	if f.progress != nil {
		a, err := f.progress(p)
		return nodeapi.ProgressResult{Response: a}, err
	}
	return nodeapi.ProgressResult{Response: wire.ProgressResponse{Lease: task.Lease{Epoch: p.LeaseEpoch, ExpiresAt: time.Now().Add(lease)}}}, nil
}

func (f *fakeStore) SetActivityState(_ context.Context, taskID string, b nodeapi.ActivityState) error {
	if f.setState != nil {
		return f.setState(taskID, b)
	}
	return nil
}

func (f *fakeStore) Result(_ context.Context, _ nodeapi.Caller, _ string, r nodeapi.ReceivedResult) (task.Type, error) {
	if f.result != nil {
		return f.result(r)
	}
	return task.NodeProbe, nil
}

func (f *fakeStore) Heartbeat(_ context.Context, c nodeapi.Caller, h wire.Heartbeat) error {
	if f.heartbeat != nil {
		return f.heartbeat(c, h)
	}
	return nil
}

// fakeWakes is a Notifier that counts its subscriptions.
type fakeWakes struct {
	mu   sync.Mutex
	subs map[string]map[chan struct{}]bool
}

func (f *fakeWakes) Subscribe(nodeID string, _ int64) (<-chan struct{}, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan struct{}, 1)
	if f.subs[nodeID] == nil {
		f.subs[nodeID] = map[chan struct{}]bool{}
	}
	f.subs[nodeID][ch] = true
	return ch, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.subs[nodeID], ch)
	}
}

func (f *fakeWakes) wake(nodeID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ch := range f.subs[nodeID] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (f *fakeWakes) waiting(nodeID string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subs[nodeID])
}

// fakeIssuer issues certificates with a CA of the test.
type fakeIssuer struct {
	tb testing.TB
	mu sync.Mutex
	ca *ca
	// down makes every call fail.
	roots, retired []*x509.Certificate
	down           bool
}

func (f *fakeIssuer) set(down bool, roots ...*x509.Certificate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down, f.roots = down, roots
}

func (f *fakeIssuer) Issue(_ context.Context, csr *x509.CertificateRequest, id trust.Identity) (trust.IssuedCertificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return trust.IssuedCertificate{}, schema.NewError(schema.KindServiceUnavailable, "Vault is sealed")
	}
	uri, err := url.Parse(id.URI())
	if err != nil {
		return trust.IssuedCertificate{}, err
	}
	cert := f.ca.sign(f.tb, &x509.Certificate{SerialNumber: serial(f.tb), URIs: []*url.URL{uri},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, f.ca.cert, csr.PublicKey)
	return trust.IssuedCertificate{LeafPEM: certPEM(cert), ChainPEM: certPEM(f.ca.cert), Facts: trust.CertFactsOf(cert)}, nil
}

func (f *fakeIssuer) Roots(context.Context) ([]*x509.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.roots, nil
}

func (f *fakeIssuer) Retired(context.Context) ([]*x509.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.retired, nil
}

// retire retires the live generations and replaces them with next.
func (f *fakeIssuer) retire(next ...*x509.Certificate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retired, f.roots = append(f.retired, f.roots...), next
}

func certPEM(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

// site is a node API on a real TLS listener.
type site struct {
	tb       testing.TB
	nodeCA   *ca
	serverCA *ca
	store    *fakeStore
	wakes    *fakeWakes
	issuer   *fakeIssuer
	trust    *fakeTrust
	registry *prometheus.Registry
	log      *harness.Buffer
	proxies  []netip.Prefix
	server   *http.Server
	base     string
	node     trust.Identity
}

func newSite(tb testing.TB, store *fakeStore) *site {
	tb.Helper()
	return newSiteWith(tb, store, func(*nodeapi.Config) {})
}

// newSiteWith is newSite with a changed configuration.
func newSiteWith(tb testing.TB, store *fakeStore, change func(*nodeapi.Config)) *site {
	tb.Helper()
	s, api := newAPI(tb, store, change)
	s.proxies = []netip.Prefix{netip.MustParsePrefix(proxyAddress + "/32")}
	cert := s.serverCA.server(tb)
	s.server = api.Server(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(tb, err)
	s.base = "https://localhost:" + port
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.server.ServeTLS(api.Listener(ln, s.proxies), "", "")
	}()
	tb.Cleanup(func() {
		_ = s.server.Close()
		<-done
	})
	return s
}

// newAPI returns a site without a listener.
func newAPI(tb testing.TB, store *fakeStore, change func(*nodeapi.Config)) (*site, *nodeapi.API) {
	tb.Helper()
	s := &site{tb: tb, nodeCA: newCA(tb, "node CA 1"), serverCA: newCA(tb, "API CA"), store: store,
		wakes: &fakeWakes{subs: map[string]map[chan struct{}]bool{}}, registry: prometheus.NewRegistry(), log: &harness.Buffer{},
		node: trust.Identity{Env: env, NodeID: schema.NewID(), Incarnation: 1}}
	s.issuer = &fakeIssuer{tb: tb, ca: s.nodeCA, roots: []*x509.Certificate{s.nodeCA.cert}}
	s.trust = newFakeTrust()
	cfg := nodeapi.Config{Env: env, Identities: store, Tasks: store, Heartbeats: store, Notifier: s.wakes, Issuer: s.issuer, CAs: s.issuer, Grants: s.trust, VerifierSets: s.trust, Heartbeater: s.trust, NodeRate: 1e4, RenewalRate: 1e4, IssueRate: 1e4,
		Metrics: metrics.New(s.registry), Ready: func() error { return nil },
		Log: slog.New(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	change(&cfg)
	return s, nodeapi.New(cfg)
}

// metric returns a counter's or gauge's value, or a histogram's count.
func (s *site) metric(name string, labels ...string) float64 {
	s.tb.Helper()
	families, err := s.registry.Gather()
	require.NoError(s.tb, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(values, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

// cert is a valid certificate of the node.
func (s *site) cert() *tls.Certificate { return s.nodeCA.leaf(s.tb, s.node, nil) }

// client returns a client that always sends the certificate; nil sends none.
func (s *site) client(cert *tls.Certificate) *http.Client { return s.clientWith(cert, true, nil) }

func (s *site) clientWith(cert *tls.Certificate, h2 bool, change func(*tls.Config)) *http.Client {
	pool := x509.NewCertPool()
	pool.AddCert(s.serverCA.cert)
	cfg := &tls.Config{RootCAs: pool}
	if cert != nil {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	if change != nil {
		change(cfg)
	}
	transport := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: h2}
	s.tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: resulttest.Transport{Transport: transport, Cert: cert}}
}

func (s *site) path(rest string) string { return s.base + "/internal/v1/nodes/" + s.node.NodeID + rest }

// answer is the response to a call.
type answer struct {
	status int
	header http.Header
	body   []byte
	proto  int
}

func (a answer) refusal(tb testing.TB) schema.ErrorDetail {
	tb.Helper()
	var b schema.ErrorBody
	require.NoError(tb, json.Unmarshal(a.body, &b), string(a.body))
	return b.Error
}

func call(tb testing.TB, c *http.Client, method, url string, body any, headers ...string) answer {
	tb.Helper()
	a, err := try(tb.Context(), c, method, url, body, headers...)
	require.NoError(tb, err)
	return a
}

func try(ctx context.Context, c *http.Client, method, url string, body any, headers ...string) (answer, error) {
	res, err := harness.Do(ctx, c, method, url, body, headers...)
	return answer{status: res.Status, header: res.Header, body: res.Body, proto: res.Proto}, err
}

// endpoint is a request that requires a certificate.
type endpoint struct {
	method, path string
	body         any
}

func endpoints() []endpoint {
	nodeTask := schema.NewID()
	return []endpoint{
		{http.MethodPost, "/tasks/wait", pollRequest(waitFor(0))},
		{http.MethodGet, "/tasks/wait", nil},
		{http.MethodPost, "/tasks/" + nodeTask + "/result", task.Result{LeaseEpoch: 1, Status: task.Succeeded}},
		{http.MethodPost, "/tasks/" + nodeTask + "/progress", task.Progress{LeaseEpoch: 1}},
		{http.MethodPost, "/tasks/" + nodeTask + "/identity-token", nil},
		{http.MethodGet, "/verifier-sets", nil},
		{http.MethodGet, "/trust", nil},
		{http.MethodPost, "/certificates/renew", renewal()},
	}
}

// pollRequest is a valid poll of 55 s with the changes.
func pollRequest(changes ...func(*wire.PollRequest)) wire.PollRequest {
	r := wire.PollRequest{Nonce: "AAAAAAAAAAAAAAAAAAAAAA", AgentSession: "boot-1700000000", VerifierSet: 1, WaitSeconds: 55}
	for _, change := range changes {
		change(&r)
	}
	return r
}

func waitFor(d time.Duration) func(*wire.PollRequest) {
	return func(r *wire.PollRequest) { r.WaitSeconds = d.Seconds() }
}

func holding(tasks ...string) func(*wire.PollRequest) {
	return func(r *wire.PollRequest) { r.HeldTasks = tasks }
}

// renewal is a valid renewal request.
func renewal() wire.RenewRequest {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		panic(err)
	}
	return wire.RenewRequest{CSR: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))}
}
