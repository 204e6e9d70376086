package worker

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/version"
)

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestConfigListsEveryFaultAtOnce(t *testing.T) {
	t.Parallel()
	var out, errOut strings.Builder
	require.Equal(t, schema.ExitUsage, Main(t.Context(), nil, env(map[string]string{"GPUAAS_LOG_LEVEL": "loud", "GPUAAS_ENV": "Prod"}), &out, &errOut))
	require.Empty(t, out.String())
	for _, name := range []string{"GPUAAS_DATABASE_URL", "GPUAAS_LOG_LEVEL", "GPUAAS_ENV", "VAULT_ADDR", "GPUAAS_VAULT_ROLE_ID_FILE", "GPUAAS_VAULT_SECRET_ID_FILE"} {
		require.Contains(t, errOut.String(), name)
	}
}

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(file, []byte("postgres://u:secret@h/db?sslmode=require\n"), 0o600))
	c := defaults()
	require.NoError(t, daemon.Load(c, env(map[string]string{
		"GPUAAS_DATABASE_URL_FILE": file, "GPUAAS_ENV": "test", "VAULT_ADDR": "https://v", "GPUAAS_VAULT_ROLE_ID_FILE": "r", "GPUAAS_VAULT_SECRET_ID_FILE": "s",
	})))
	require.Equal(t, "postgres://u:secret@h/db?sslmode=require", c.DatabaseURL.Reveal())
	require.Equal(t, "127.0.0.1:9090", c.MetricsAddr)
	require.Equal(t, "test", c.Env)
	require.Zero(t, c.LameDuck)
	require.Equal(t, 10*time.Second, c.DrainTimeout)
}

// The rotator logs in as the worker does, or not at all.
func TestLoginOfTheRotator(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		roleID, secretID, role string
		rotates                bool
		fault                  string
	}{
		{},
		{roleID: "r", secretID: "s", rotates: true},
		{role: "gpuaas-trust", rotates: true},
		{roleID: "r", fault: "GPUAAS_VAULT_ROTATOR_ROLE_ID_FILE and GPUAAS_VAULT_ROTATOR_SECRET_ID_FILE must be set"},
		{roleID: "r", secretID: "s", role: "gpuaas-trust", fault: "GPUAAS_VAULT_ROTATOR_KUBERNETES_ROLE excludes"},
	} {
		config := defaults()
		err := daemon.Load(config, env(map[string]string{"GPUAAS_DATABASE_URL": "postgres://u:p@h/db?sslmode=require", "GPUAAS_ENV": "test", "VAULT_ADDR": "https://v",
			"GPUAAS_VAULT_KUBERNETES_ROLE": "gpuaas-worker", "GPUAAS_VAULT_ROTATOR_ROLE_ID_FILE": c.roleID,
			"GPUAAS_VAULT_ROTATOR_SECRET_ID_FILE": c.secretID, "GPUAAS_VAULT_ROTATOR_KUBERNETES_ROLE": c.role}))
		if c.fault != "" {
			require.ErrorContains(t, err, c.fault)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.rotates, config.rotates())
	}
}

func TestRetentionIsLongEnough(t *testing.T) {
	t.Parallel()
	for keep, fault := range map[string]bool{"0": false, "23h": true, "-1h": true, "168h": false} {
		var errOut strings.Builder
		require.Equal(t, schema.ExitUsage, Main(t.Context(), nil, env(map[string]string{"GPUAAS_RETAIN_TASKS": keep, "GPUAAS_RETAIN_AUDIT": keep}), io.Discard, &errOut))
		require.Equal(t, fault, strings.Contains(errOut.String(), "GPUAAS_RETAIN_TASKS must be 0 or at least 24h"), keep)
		require.Equal(t, fault, strings.Contains(errOut.String(), "GPUAAS_RETAIN_AUDIT must be 0 or at least 168h"), keep)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{"--help": "GPUAAS_DATABASE_URL_FILE", "version": "gpuaas-worker " + version.Read().String()} {
		var out, errOut strings.Builder
		require.Equal(t, schema.ExitDone, Main(t.Context(), []string{arg}, env(nil), &out, &errOut))
		require.Contains(t, out.String(), want)
		require.Empty(t, errOut.String())
	}
}

var update = flag.Bool("update", false, "rewrite the reference page")

// The reference page is what the configuration says. -update rewrites it.
func TestReferencePage(t *testing.T) {
	t.Parallel()
	const path = "../docs/reference/gpuaas-worker.md"
	page := program(defaults()).Reference()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	if page != string(got) {
		t.Errorf("%s is not up to date; run ./task gen", path)
	}
}

func TestSetupReportsMissingSettings(t *testing.T) {
	t.Parallel()
	err := Setup(t.Context(), SetupOptions{Getenv: env(nil), Progress: io.Discard})
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
	for _, name := range []string{"GPUAAS_DATABASE_URL", "VAULT_ADDR", "GPUAAS_VAULT_TOKEN_FILE", "GPUAAS_SETUP_OUT_DIR"} {
		require.ErrorContains(t, err, name)
	}
}

func TestOperationMetrics(t *testing.T) {
	t.Parallel()
	m := newMetrics(prometheus.NewRegistry())
	m.ended(t.Context(), lifecycle.ActionDrain, lifecycle.OperationRejected, 0)
	m.ended(t.Context(), lifecycle.ActionDrain, lifecycle.OperationCompleted, 3)
	require.InDelta(t, 1, testutil.ToFloat64(m.operations.WithLabelValues("drain", "rejected")), 0)
	require.InDelta(t, 1, testutil.ToFloat64(m.operations.WithLabelValues("drain", "completed")), 0)
	require.Equal(t, 1, testutil.CollectAndCount(m.durations))
	m.reclaimed(task.WorkloadDrain, activities.ReclaimLost)
	require.InDelta(t, 1, testutil.ToFloat64(m.reclaims.WithLabelValues("workload.drain", "lost")), 0)
}

func TestActivitySlotsFollowTheConnections(t *testing.T) {
	t.Parallel()
	for setting, want := range map[int]int{0: 24, 5: 5} {
		c := defaults()
		c.ActivitySlots = setting
		o := options(c, 12, nil)
		require.Equal(t, []int{want, want}, []int{o.MaxConcurrentActivityExecutionSize, o.MaxConcurrentLocalActivityExecutionSize})
		require.Equal(t, c.DrainTimeout, o.WorkerStopTimeout)
	}
}

// TestPlaintextToMAAS: the API key of MAAS crosses no network without TLS unless the setting allows
// that.
func TestPlaintextToMAAS(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		url, allow string
		refused    bool
	}{
		{"http://maas.test:5240/MAAS", "", true},
		{"http://maas.test:5240/MAAS", "true", false},
		{"http://127.0.0.1:5240/MAAS", "", false},
		{"https://maas.test:5443/MAAS", "", false},
	} {
		err := daemon.Load(defaults(), env(map[string]string{"GPUAAS_DATABASE_URL": "postgres://u:p@h/db?sslmode=require", "GPUAAS_ENV": "test",
			"VAULT_ADDR": "https://v", "GPUAAS_VAULT_KUBERNETES_ROLE": "gpuaas-worker", "GPUAAS_NODE_PUBLIC_URL": "https://node-api.test:8443",
			"MAAS_API_BASE_URL": c.url, "MAAS_API_TOKEN": "consumer:token:secret", "GPUAAS_ALLOW_PLAINTEXT": c.allow}))
		if c.refused {
			require.ErrorContains(t, err, "MAAS_API_BASE_URL: the connection to maas.test would not be encrypted")
			continue
		}
		require.NoError(t, err, c.url)
	}
}
