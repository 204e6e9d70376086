package server

import (
	"context"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
	"github.com/gpuaas/gpuaas/test/testkit/vaulttest"
)

// The servers of the test process.
var (
	sharedVault    vaulttest.Shared
	sharedTemporal temporaltest.Shared
)

func TestMain(m *testing.M) {
	defer sharedTemporal.Close()
	sharedVault.Run(m)
}

// process is the whole program on real servers, without Temporal.
type process struct {
	t              *testing.T
	vault          *vaulttest.Server
	vars           map[string]string
	args           []string
	admin, metrics string
	node, temporal string
	log            *harness.Buffer
}

func newProcess(t *testing.T, databaseURL string) *process {
	t.Helper()
	v := sharedVault.Get(t)
	dir := t.TempDir()
	require.NoError(t, vaultAdmin(t, v).Setup(t.Context(), []string{"localhost"}, dir))
	p := &process{t: t, vault: v, log: &harness.Buffer{}, temporal: harness.FreeAddress(t)}
	t.Setenv("TEMPORAL_ADDRESS", p.temporal)
	admin, node, metrics := harness.FreeAddress(t), harness.FreeAddress(t), harness.FreeAddress(t)
	_, port, err := net.SplitHostPort(node)
	require.NoError(t, err)
	p.admin, p.node, p.metrics = "http://"+admin, "https://localhost:"+port, "http://"+metrics
	p.vars = map[string]string{
		"GPUAAS_DATABASE_URL": pgtest.As(databaseURL, store.RoleAPIAdmin), "GPUAAS_NODE_DATABASE_URL": pgtest.As(databaseURL, store.RoleAPINode),
		"VAULT_ADDR":                  v.Address,
		"GPUAAS_VAULT_ROLE_ID_FILE":   filepath.Join(dir, "api-role-id"),
		"GPUAAS_VAULT_SECRET_ID_FILE": filepath.Join(dir, "api-secret-id"),
		"GPUAAS_ADMIN_TOKEN_FILE":     write(t, adminToken),
		"GPUAAS_ADMIN_ADDR":           admin, "GPUAAS_NODE_ADDR": node, "GPUAAS_METRICS_ADDR": metrics,
		"GPUAAS_NODE_PUBLIC_URL": p.node, "GPUAAS_ENV": testEnv, "GPUAAS_LAME_DUCK": "0s", "GPUAAS_HEALTH_INTERVAL": "50ms",
		"GPUAAS_DRAIN_TIMEOUT": "30s", // shorter than a poll
	}
	return p
}

// start runs the program; stop ends it as SIGTERM would and returns its exit
// code.
func (p *process) start() (stop func() int) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	code := make(chan int, 1)
	go func() { code <- Main(ctx, p.args, environ(p.vars), io.Discard, p.log) }()
	stop = sync.OnceValue(func() int {
		cancel()
		select {
		case c := <-code:
			return c
		case <-time.After(harness.Timeout):
			return -1
		}
	})
	p.t.Cleanup(func() { stop() })
	return stop
}

// becomes waits until the admin listener's readiness check answers the status,
// Temporal excluded.
func (p *process) becomes(status int, contains string) {
	p.t.Helper()
	p.answers(p.admin+"/readyz?exclude=temporal", status, contains)
}

func (p *process) answers(url string, status int, contains string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		a, err := send(p.t.Context(), http.DefaultClient, http.MethodGet, url, nil)
		return err == nil && a.status == status && strings.Contains(string(a.body), contains)
	}, harness.Timeout, 20*time.Millisecond, "%s: %d %s", url, status, contains)
}

func (p *process) ask(method, path string, body any) reply {
	p.t.Helper()
	a, err := send(p.t.Context(), http.DefaultClient, method, p.admin+"/api/v1/admin"+path, body, "Authorization", "Bearer "+adminToken)
	require.NoError(p.t, err)
	return a
}

// newestSet makes Vault's first verifier set.
func newestSet(tb testing.TB, v *vaulttest.Server) trust.StoredSet {
	tb.Helper()
	set, err := vaultAdmin(tb, v).First(tb.Context(), time.Now())
	require.NoError(tb, err)
	return set
}

func vaultAdmin(tb testing.TB, v *vaulttest.Server) *vault.Admin {
	tb.Helper()
	a, err := vault.NewAdmin(vault.AdminConfig{Address: v.Address, TokenFile: v.TokenFile, Env: testEnv, Log: slog.New(slog.DiscardHandler)})
	require.NoError(tb, err)
	return a
}

// publish stores Vault's first verifier set, as a setup does.
func publish(t *testing.T, databaseURL string, v *vaulttest.Server) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{URL: databaseURL})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Identities.PutSet(t.Context(), newestSet(t, v), audit.Subject{Actor: "test"}))
}

func TestProcess(t *testing.T) {
	databaseURL := pgtest.New(t, store.Migrate)
	p := newProcess(t, databaseURL)
	stop := p.start()
	p.becomes(http.StatusOK, "ok")
	a := p.ask(http.MethodPost, "/nodes", `{"host":"gpu-1","sku":"cpu-dev","region_code":"r"}`)
	require.Equal(t, http.StatusCreated, a.status, string(a.body))
	var node wire.NodeView
	a.into(t, &node)

	// There is no verifier set: no bundle, and no lease key.
	a = p.ask(http.MethodPost, "/nodes/gpu-1/enroll", nil)
	assert.Equal(t, "no_verifier_set", a.refusal(t).Reason)
	assert.Contains(t, p.scrape(), "\ngpuaas_lease_key_ok 0\n")
	assert.Contains(t, p.scrape(), "\ngpuaas_task_signer_ok 0\n")
	// A published set takes effect at once, not at the next refresh.
	publish(t, databaseURL, p.vault)
	harness.Eventually(t, "a lease key", func() bool { return strings.Contains(p.scrape(), "\ngpuaas_lease_key_ok 1\n") })
	assert.Contains(t, p.scrape(), "\ngpuaas_task_signer_ok 1\n")

	// Temporal is unavailable: the refusal names it, and nothing changed.
	a = p.ask(http.MethodPost, "/nodes/gpu-1/enroll", nil)
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Equal(t, schema.KindServiceUnavailable, a.refusal(t).Code)
	assert.Contains(t, a.refusal(t).Message, p.temporal)
	a = p.ask(http.MethodGet, "/nodes/gpu-1", nil)
	assert.Contains(t, string(a.body), `"state":"registered"`)

	// An agent enrolls over the real Vault's certificates, and polls.
	s, err := store.Open(t.Context(), store.Config{URL: databaseURL})
	require.NoError(t, err)
	defer s.Close()
	text, id, hash := trust.NewToken()
	require.NoError(t, s.Identities.IssueToken(t.Context(), trust.MintedToken{NodeID: node.ID, TokenID: id, Hash: hash,
		Purpose: trust.PurposeEnroll, ExpiresAt: time.Now().Add(time.Hour)}, audit.Subject{Actor: "test"}))
	base := p.node + "/internal/v1/nodes/" + node.ID
	key := newKey(t)
	a, err = send(t.Context(), p.client(), http.MethodPost, base+"/enroll", wire.EnrollRequest{Token: text, CSR: newCSR(t, key, nil)})
	require.NoError(t, err)
	agent := httpClient(t, p.serverCA(), certificate(t, a, key))
	polled := make(chan reply, 1)
	go func() {
		a, _ := send(t.Context(), agent, http.MethodPost, base+"/tasks/wait", pollRequest(wire.MaxPollTimeout))
		polled <- a
	}()
	harness.Eventually(t, "an open poll", func() bool { return strings.Contains(p.scrape(), "gpuaas_waiting_agents 1") })
	// The gauges from the database are up to 15 s old.
	require.Eventually(t, func() bool {
		return strings.Contains(p.scrape(), `gpuaas_nodes{region="r",sku="cpu-dev",state="enrolling"} 1`)
	}, harness.Timeout, 100*time.Millisecond)
	text2 := p.scrape()
	for _, name := range []string{`gpuaas_enrollments_total{result="issued"} 1`,
		`gpuaas_vault_request_duration_seconds_count{op="`, "gpuaas_task_dispatch_seconds_count 0",
		"gpuaas_state_age_seconds{", "go_goroutines", "gpuaas_build_info{", `gpuaas_dependency_up{name="postgres"} 1`,
		`gpuaas_http_request_duration_seconds_count{code="200",listener="node",route="POST /internal/v1/nodes/{node_id}/enroll"} 1`} {
		assert.Contains(t, text2, name)
	}

	assert.Equal(t, 0, stop(), "within the drain timeout")
	assert.Equal(t, http.StatusNoContent, receive(t, polled).status, "the open poll was answered")
	for _, secret := range []string{adminToken, text, databaseURL} {
		assert.NotContains(t, p.log.String(), secret)
	}
}

func (p *process) scrape() string {
	a, err := send(p.t.Context(), http.DefaultClient, http.MethodGet, p.metrics+"/metrics", nil)
	require.NoError(p.t, err)
	return string(a.body)
}

// serverCA returns what a bundle would verify the node API with.
func (p *process) serverCA() *x509.CertPool {
	p.t.Helper()
	c, err := vault.Login(p.t.Context(), vault.Config{Address: p.vault.Address, Env: testEnv,
		RoleIDFile: p.vars["GPUAAS_VAULT_ROLE_ID_FILE"], SecretIDFile: p.vars["GPUAAS_VAULT_SECRET_ID_FILE"]})
	require.NoError(p.t, err)
	defer c.Close()
	text, err := c.ServerCA(p.t.Context())
	require.NoError(p.t, err)
	pool := x509.NewCertPool()
	require.True(p.t, pool.AppendCertsFromPEM([]byte(text)))
	return pool
}

func (p *process) client() *http.Client { return httpClient(p.t, p.serverCA(), nil) }

// The process may start before its servers: readiness names the one it waits for,
// and turns true once all of them are available.
func TestStartBeforeServers(t *testing.T) {
	target, err := url.Parse(pgtest.New(t, store.Migrate))
	require.NoError(t, err)
	address := harness.FreeAddress(t)
	through := *target
	through.Host = address
	p := newProcess(t, through.String())
	p.vault.Stop(t)
	stop := p.start()
	p.becomes(http.StatusServiceUnavailable, "waiting for Postgres")
	harness.Eventually(t, "a log line", func() bool { return strings.Contains(p.log.String(), `"msg":"waiting"`) })
	a := p.ask(http.MethodGet, "/nodes", nil)
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	newProxy(t, address, target.Host).open()
	p.becomes(http.StatusServiceUnavailable, "waiting for Vault")
	p.vault.Start(t)
	p.becomes(http.StatusOK, "ok")
	assert.Equal(t, http.StatusOK, p.ask(http.MethodGet, "/nodes", nil).status)
	a, err = send(t.Context(), p.client(), http.MethodGet, p.node+"/readyz?exclude=temporal", nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, a.status)
	assert.Equal(t, 0, stop())
}

// A process that still waits for a server stops at once.
func TestStopDuringStart(t *testing.T) {
	p := newProcess(t, "postgres://gpuaas@"+harness.FreeAddress(t)+"/gpuaas?sslmode=disable")
	stop := p.start()
	p.becomes(http.StatusServiceUnavailable, "waiting for Postgres")
	assert.Equal(t, 0, stop())
}

func TestPortInUse(t *testing.T) {
	p := newProcess(t, "postgres://gpuaas@127.0.0.1:1/gpuaas")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	p.vars["GPUAAS_NODE_ADDR"] = taken.Addr().String()
	assert.Equal(t, 1, Main(t.Context(), nil, environ(p.vars), io.Discard, p.log))
	assert.Contains(t, p.log.String(), "GPUAAS_NODE_ADDR")
	assert.Contains(t, p.log.String(), taken.Addr().String())
}
