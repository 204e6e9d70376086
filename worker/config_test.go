package worker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestConfigListsEveryFaultAtOnce(t *testing.T) {
	t.Parallel()
	_, err := ConfigFromEnv(env(map[string]string{"GPUAAS_LOG_LEVEL": "loud"}))
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
	for _, name := range []string{"GPUAAS_DATABASE_URL", "GPUAAS_LOG_LEVEL", "VAULT_ADDR", "GPUAAS_VAULT_ROLE_ID_FILE", "GPUAAS_VAULT_SECRET_ID_FILE"} {
		require.ErrorContains(t, err, name)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(file, []byte("postgres://u:secret@h/db\n"), 0o600))
	c, err := ConfigFromEnv(env(map[string]string{
		"GPUAAS_DATABASE_URL_FILE": file, "VAULT_ADDR": "http://v", "GPUAAS_VAULT_ROLE_ID_FILE": "r", "GPUAAS_VAULT_SECRET_ID_FILE": "s",
	}))
	require.NoError(t, err)
	require.Equal(t, "postgres://u:secret@h/db", c.DatabaseURL)
	require.Equal(t, "127.0.0.1:9090", c.MetricsAddr)
	require.Equal(t, "dev", c.Env)

	_, err = ConfigFromEnv(env(map[string]string{"GPUAAS_DATABASE_URL_FILE": filepath.Join(t.TempDir(), "none")}))
	require.ErrorContains(t, err, "GPUAAS_DATABASE_URL_FILE")
}

func TestMainRefusesABadConfigurationAsUsage(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	require.Equal(t, schema.ExitUsage, Main(t.Context(), env(nil), &said))
	require.Contains(t, said.String(), "VAULT_ADDR is not set")
}

func TestSetupNeedsItsSettings(t *testing.T) {
	t.Parallel()
	err := Setup(t.Context(), SetupOptions{Getenv: env(nil), Talk: io.Discard})
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
}

func TestHealthSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	h := &health{}
	ask := func() (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil))
		return w.Code, w.Body.String()
	}
	code, _ := ask()
	require.Equal(t, http.StatusServiceUnavailable, code)
	h.waiting(errors.New("Vault is sealed"))
	code, body := ask()
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "Vault is sealed")
}

// TestAPartThatIsAwayIsWaitedFor: a worker may start before its parts, and its
// wait ends with its context.
func TestAPartThatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	h := &health{}
	ended := make(chan int, 1)
	vars := map[string]string{
		"GPUAAS_DATABASE_URL": "postgres://nobody@127.0.0.1:1/none", "VAULT_ADDR": "http://127.0.0.1:1",
		"GPUAAS_VAULT_ROLE_ID_FILE": "r", "GPUAAS_VAULT_SECRET_ID_FILE": "s", "GPUAAS_METRICS_ADDR": "127.0.0.1:0",
	}
	go func() { ended <- Main(ctx, env(vars), io.Discard) }()
	require.Error(t, h.check(ctx))
	cancel()
	require.Equal(t, schema.ExitDone, <-ended)
}

func TestOperationMetrics(t *testing.T) {
	t.Parallel()
	m := newMetrics(prometheus.NewRegistry())
	m.ended(lifecycle.ActionDrain, lifecycle.OperationRejected, 0)
	m.ended(lifecycle.ActionDrain, lifecycle.OperationCompleted, 3)
	require.InDelta(t, 1, testutil.ToFloat64(m.operations.WithLabelValues("drain", "rejected")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(m.operations.WithLabelValues("drain", "completed")), 0)
	require.Equal(t, 1, testutil.CollectAndCount(m.durations))
	m.reclaimed(task.WorkloadDrain, activities.ReclaimLost)
	require.InDelta(t, 1, testutil.ToFloat64(m.reclaims.WithLabelValues("workload.drain", "lost")), 0)
}
