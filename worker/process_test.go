package worker

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.uber.org/goleak"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

var sharedTemporal temporaltest.Shared

// TestProcess runs the whole program on real servers: it waits for what a setup
// has to prepare, works, follows Vault's health, and leaves no goroutine behind.
func TestProcess(t *testing.T) {
	b := prepared(t)
	address := sharedTemporal.Address(t)
	t.Setenv("TEMPORAL_ADDRESS", address)
	t.Setenv("TEMPORAL_NAMESPACE", "worker-test")
	b.storeKey(t, "consumer-in-vault:token-in-vault:secret-in-vault")
	var asked atomic.Bool
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(asked.Load() || strings.Contains(r.Header.Get("Authorization"), `oauth_token="token-in-vault"`))
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "[]")
	}))
	defer site.Close()
	before := goleak.IgnoreCurrent()
	metrics := harness.FreeAddress(t)
	vars := map[string]string{"GPUAAS_DATABASE_URL": b.processURL(), "VAULT_ADDR": b.vault.Address, "GPUAAS_ENV": "test",
		"GPUAAS_VAULT_ROLE_ID_FILE": filepath.Join(b.dir, "worker-role-id"), "GPUAAS_VAULT_SECRET_ID_FILE": filepath.Join(b.dir, "worker-secret-id"),
		"MAAS_API_BASE_URL": site.URL, "GPUAAS_MAAS_TOKEN_VAULT": "true", "GPUAAS_NODE_PUBLIC_URL": "https://node-api.test:8443",
		"GPUAAS_METRICS_ADDR": metrics, "GPUAAS_HEALTH_INTERVAL": "50ms"}
	schemaWorksFrom(t, b.url, 9999)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log := &harness.Buffer{}
	code := make(chan int, 1)
	go func() { code <- Main(ctx, nil, env(vars), io.Discard, log) }()

	becomes(t, metrics, "/readyz", http.StatusServiceUnavailable, "waiting for the database schema")
	schemaWorksFrom(t, b.url, 1)
	becomes(t, metrics, "/readyz", http.StatusServiceUnavailable, "waiting for a check of the task key")
	_, err := b.publish(t)
	require.NoError(t, err)
	becomes(t, metrics, "/readyz", http.StatusServiceUnavailable, "waiting for Temporal")
	setupTemporal(t, address)
	becomes(t, metrics, "/readyz", http.StatusOK, `{"status":"ok"}`)
	sweep(t, address)
	harness.Eventually(t, "a request of MAAS with the key from Vault", asked.Load)
	becomes(t, metrics, "/metrics", http.StatusOK, "gpuaas_task_signer_ok 1")
	becomes(t, metrics, "/metrics", http.StatusOK, `gpuaas_vault_request_duration_seconds_count{op="login"} 1`)

	becomes(t, metrics, "/metrics", http.StatusOK, `gpuaas_clock_skew_seconds{peer="vault"}`)
	pgtest.ShiftClock(t, b.url, 45*time.Second)
	becomes(t, metrics, "/readyz", http.StatusOK, `"degraded":["clock"]`)
	require.Contains(t, log.String(), "the clock of postgres is 45s ahead of this machine's, more than the limit of 30s; this worker signs no task")
	pgtest.ShiftClock(t, b.url, 0)
	becomes(t, metrics, "/readyz", http.StatusOK, `{"status":"ok"}`)

	schemaWorksFrom(t, b.url, 9999)
	becomes(t, metrics, "/readyz", http.StatusServiceUnavailable, "not ready: schema unavailable")
	schemaWorksFrom(t, b.url, 1)
	becomes(t, metrics, "/readyz", http.StatusOK, "ok")

	b.vault.Seal(t)
	becomes(t, metrics, "/readyz", http.StatusServiceUnavailable, "not ready: vault unavailable")
	becomes(t, metrics, "/livez", http.StatusOK, "ok")
	b.vault.Unseal(t)
	becomes(t, metrics, "/readyz", http.StatusOK, "ok")

	stop()
	require.Equal(t, schema.ExitDone, harness.Receive(t, "the worker's exit code", code), log.String())
	harness.NoLeak(t, before, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), // the test's own clients
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// schemaWorksFrom sets the oldest programs that work with the schema.
func schemaWorksFrom(t *testing.T, url string, program int) {
	t.Helper()
	require.NoError(t, postgres.Run(t.Context(), url, fmt.Sprintf("UPDATE schema_programs SET oldest_program = %d", program)))
}

func setupTemporal(t *testing.T, address string) {
	t.Helper()
	c, err := temporal.Dial(temporal.Config{Address: address, Namespace: "worker-test"})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Installation.Setup(t.Context()))
}

// sweep starts a run of the sweep, which lists the machines of each provider.
func sweep(t *testing.T, address string) {
	t.Helper()
	c, err := temporal.Dial(temporal.Config{Address: address, Namespace: "worker-test"})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SDK().ScheduleClient().GetHandle(t.Context(), lifecycle.ScheduleSweep).Trigger(t.Context(), client.ScheduleTriggerOptions{}))
}

func becomes(t *testing.T, address, path string, status int, contains string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	require.Eventually(t, func() bool {
		res, err := client.Get("http://" + address + path)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return err == nil && res.StatusCode == status && strings.Contains(string(text), contains)
	}, harness.Timeout, 20*time.Millisecond, "%s: %d %s", path, status, contains)
}

// A process that waits for its servers stops immediately.
func TestStopDuringStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	metrics := harness.FreeAddress(t)
	vars := map[string]string{
		"GPUAAS_DATABASE_URL": "postgres://user@127.0.0.1:1/none", "GPUAAS_ENV": "test", "VAULT_ADDR": "http://127.0.0.1:1",
		"GPUAAS_VAULT_ROLE_ID_FILE": "r", "GPUAAS_VAULT_SECRET_ID_FILE": "s", "GPUAAS_METRICS_ADDR": metrics,
	}
	code := make(chan int, 1)
	go func() { code <- Main(ctx, nil, env(vars), io.Discard, io.Discard) }()
	becomes(t, metrics, "/readyz", http.StatusServiceUnavailable, "waiting for Postgres")
	cancel()
	require.Equal(t, schema.ExitDone, <-code)
}
