package dev

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func testRecord(t *testing.T) record {
	t.Helper()
	r, err := within(nil).choose(t.Context(), 17000)
	require.NoError(t, err)
	return r
}

// within returns a chooser with the given environment and no programs on PATH.
func within(env map[string]string) chooser {
	return chooser{getenv: func(k string) string { return env[k] }, look: func(string) string { return "" }}
}

func TestShellExports(t *testing.T) {
	t.Parallel()
	require.Equal(t, `export TEMPORAL_ADDRESS='127.0.0.1:17000'
export TEMPORAL_NAMESPACE='gpuaas'
export VAULT_ADDR='http://127.0.0.1:17002'
export GPUAAS_API_URL='http://127.0.0.1:17003'
export GPUAAS_API_TOKEN='s3cret'
export GPUAAS_WEB_UI_URL='http://127.0.0.1:17001'
export GPUAAS_NODE_API_URL='https://localhost:17004'
export GPUAAS_WORKER_METRICS_URL='http://127.0.0.1:17005/metrics'
export GPUAAS_API_METRICS_URL='http://127.0.0.1:17006/metrics'
export GPUAAS_TEMPORAL_METRICS_URL='http://127.0.0.1:17008/metrics'
`, testRecord(t).shell("s3cret").exports())
}

// TestShellHasSetup: `gpuaas admin setup`, which errors and faults name, works in a shell with
// the variables of `dev env`. The processes of this package do not get its variables.
func TestShellHasSetup(t *testing.T) {
	t.Parallel()
	s := &stack{layout: layout{dir: t.TempDir()}, record: testRecord(t)}
	require.NoError(t, s.layout.make())
	v, err := s.variablesOf(newEnv(&options{}), nil)
	require.NoError(t, err)
	got := v.object()
	require.Subset(t, got, s.record.setup(s.layout).object())
	require.Subset(t, got, s.record.shell(got["GPUAAS_API_TOKEN"]).object())
	require.NotContains(t, s.record.shell("").object(), varVaultTokenFile)
	require.Len(t, v, len(got), "each variable once")
}

func TestExportsQuoteForShell(t *testing.T) {
	t.Parallel()
	nasty := "it's $HOME; \"quoted\" \\ and\ntwo lines"
	v := variables{{"NASTY", nasty}, {"EMPTY", ""}}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", v.exports()+`printf %s "$NASTY"; [ -z "${EMPTY+set}" ]`).Output()
	require.NoError(t, err)
	require.Equal(t, nasty, string(out))
}

func TestProgramConfigNamesSecretFiles(t *testing.T) {
	t.Parallel()
	r, l := testRecord(t), layout{dir: "/d"}
	require.Equal(t, "/d/secrets/database-url", r.worker(l).object()["GPUAAS_DATABASE_URL_FILE"], "a database without the roles")
	r.ProcessRoles = true
	require.Equal(t, map[string]string{
		"TEMPORAL_ADDRESS": "127.0.0.1:17000", "TEMPORAL_NAMESPACE": "gpuaas", "VAULT_ADDR": "http://127.0.0.1:17002",
		"GPUAAS_DATABASE_URL_FILE":            "/d/secrets/database-url-gpuaas_worker",
		"GPUAAS_VAULT_ROLE_ID_FILE":           "/d/secrets/worker-role-id",
		"GPUAAS_VAULT_SECRET_ID_FILE":         "/d/secrets/worker-secret-id",
		"GPUAAS_VAULT_ROTATOR_ROLE_ID_FILE":   "/d/secrets/rotator-role-id",
		"GPUAAS_VAULT_ROTATOR_SECRET_ID_FILE": "/d/secrets/rotator-secret-id",
		"GPUAAS_METRICS_ADDR":                 "127.0.0.1:17005", "GPUAAS_ENV": "dev", "GPUAAS_AUDIT_CHECKPOINT_INTERVAL": "10s",
		"GPUAAS_NODE_PUBLIC_URL": "https://localhost:17004", "GPUAAS_LIBVIRT_STATE_DIR": "/d/libvirt", "GPUAAS_LIBVIRT_HOSTS": "localhost:10.0.2.2",
	}, r.worker(l).object())
	require.Equal(t, map[string]string{
		"TEMPORAL_ADDRESS": "127.0.0.1:17000", "TEMPORAL_NAMESPACE": "gpuaas", "VAULT_ADDR": "http://127.0.0.1:17002",
		"GPUAAS_DATABASE_URL_FILE":      "/d/secrets/database-url-gpuaas_api_admin",
		"GPUAAS_NODE_DATABASE_URL_FILE": "/d/secrets/database-url-gpuaas_api_node",
		"GPUAAS_VAULT_ROLE_ID_FILE":     "/d/secrets/api-role-id",
		"GPUAAS_VAULT_SECRET_ID_FILE":   "/d/secrets/api-secret-id",
		"GPUAAS_ADMIN_TOKEN_FILE":       "/d/secrets/admin-token",
		"GPUAAS_ADMIN_ADDR":             "127.0.0.1:17003", "GPUAAS_NODE_ADDR": "127.0.0.1:17004",
		"GPUAAS_NODE_PUBLIC_URL": "https://localhost:17004", "GPUAAS_METRICS_ADDR": "127.0.0.1:17006", "GPUAAS_STATE_DIR": "/d/api", "GPUAAS_LAME_DUCK": "0s", "GPUAAS_ENV": "dev",
		"GPUAAS_WEB_UI_URL": "http://127.0.0.1:17001",
	}, r.api(l).object())
	require.Equal(t, map[string]string{
		"TEMPORAL_ADDRESS": "127.0.0.1:17000", "TEMPORAL_NAMESPACE": "gpuaas", "VAULT_ADDR": "http://127.0.0.1:17002",
		"GPUAAS_DATABASE_URL_FILE": "/d/secrets/database-url",
		"GPUAAS_VAULT_TOKEN_FILE":  "/d/secrets/vault-root-token",
		"GPUAAS_SETUP_OUT_DIR":     "/d/secrets", "GPUAAS_ENV": "dev",
		"GPUAAS_NODE_API_NAMES": "localhost,127.0.0.1,api.internal",
	}, r.setup(l).object())
}

func TestInheritedOmitsOtherStacks(t *testing.T) {
	t.Parallel()
	shell := []string{
		"PATH=/bin", "GPUAAS_API_TOKEN=x", "GPUAAS_DATABASE_URL=x", "PGPASSWORD=x", "VAULT_TOKEN=x", "VAULT_ADDR=x",
		"TEMPORAL_ADDRESS=x", "TEMPORAL_TLS=y", "GPUAAS_LOG_LEVEL=debug", "MAAS_API_TOKEN=x", "GPUAAS_LIBVIRT_URI=z",
	}
	require.Equal(t, []string{"PATH=/bin", "GPUAAS_LOG_LEVEL=debug"}, inherited(shell, false))
	require.Equal(t, []string{"PATH=/bin", "VAULT_ADDR=x", "TEMPORAL_ADDRESS=x", "TEMPORAL_TLS=y", "GPUAAS_LOG_LEVEL=debug"},
		inherited(shell, true), "client settings of an external engine are inherited, a token never is")
}

// TestOnlyTheWorkerHasProviders: the worker gets the settings of the providers, some of which are
// secrets. No other process does, and no process as an argument.
func TestOnlyTheWorkerHasProviders(t *testing.T) {
	for _, kv := range []string{"MAAS_API_TOKEN=c:t:s3cret", "GPUAAS_MAAS_ZONES=z1", "GPUAAS_SWEEP=delete", "GPUAAS_LIBVIRT_URI=z", "GPUAAS_API_TOKEN=other"} {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	bin := t.TempDir()
	for _, program := range []string{workerBinary, apiBinary} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), nil, 0o700))
	}
	s := &stack{layout: layout{dir: t.TempDir()}, record: testRecord(t), programs: programs{executable: filepath.Join(bin, "gpuaas"), look: func(string) string { return "" }}}
	worker, err := s.worker().prepare(t.Context())
	require.NoError(t, err)
	require.Subset(t, worker.env, []string{"MAAS_API_TOKEN=c:t:s3cret", "GPUAAS_MAAS_ZONES=z1", "GPUAAS_SWEEP=delete", "GPUAAS_LIBVIRT_URI=z"})
	require.NotContains(t, worker.env, "GPUAAS_API_TOKEN=other")
	require.Empty(t, worker.args)
	api, err := s.api().prepare(t.Context())
	require.NoError(t, err)
	for _, env := range [][]string{api.env, inherited(os.Environ(), true)} {
		require.NotContains(t, strings.Join(env, "\n"), "s3cret")
		require.NotContains(t, strings.Join(env, "\n"), "MAAS")
	}
}
