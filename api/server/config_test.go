package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
)

func environ(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// loaded is the configuration that the environment gives.
func loaded(t *testing.T, vars map[string]string) *config {
	t.Helper()
	c := defaults()
	require.NoError(t, daemon.Load(c, environ(vars)))
	return c
}

func TestConfigDefaults(t *testing.T) {
	c := loaded(t, map[string]string{
		"GPUAAS_DATABASE_URL_FILE":    write(t, "postgres://u:p@h/db?sslmode=require\n"),
		"GPUAAS_ENV":                  "test",
		"VAULT_ADDR":                  "http://127.0.0.1:8200",
		"GPUAAS_VAULT_ROLE_ID_FILE":   "r",
		"GPUAAS_VAULT_SECRET_ID_FILE": "s",
		"GPUAAS_ADMIN_TOKEN_FILE":     write(t, adminToken+"\n"),
	})
	require.NotNil(t, c.tokens)
	c.tokens = nil
	assert.Equal(t, &config{
		Common: daemon.Common{MetricsAddr: "127.0.0.1:9091", LogLevel: slog.LevelInfo, LameDuck: 5 * time.Second, DrainTimeout: 6 * time.Second, ProbeEvery: 5 * time.Second},
		Engines: daemon.Engines{DatabaseURL: schema.NewSecret("postgres://u:p@h/db?sslmode=require"), VaultAddr: "http://127.0.0.1:8200",
			RoleIDFile: "r", SecretIDFile: "s", KubeMount: "kubernetes", KubeToken: "/var/run/secrets/kubernetes.io/serviceaccount/token", Env: "test"},
		AdminToken: schema.NewSecret(adminToken), AdminActor: "admin-token", AdminAddr: "127.0.0.1:8081",
		NodeAddr: "127.0.0.1:8443", NodeURL: "https://localhost:8443", WebUI: "http://localhost:8233", NodeConnections: nodeapi.DefaultConnections, IssueRate: nodeapi.DefaultIssueRate,
		serve: listenerSet{"node", "admin", "console"},
	}, c)
	assert.Equal(t, []schema.Secret{schema.NewSecret("p"), schema.NewSecret(adminToken)}, c.secrets())
}

// A process without the admin API needs no admin token.
func TestConfigWithoutAdminAPI(t *testing.T) {
	vars := map[string]string{
		"GPUAAS_DATABASE_URL": "postgres://h/db?sslmode=require", "GPUAAS_ENV": "test", "VAULT_ADDR": "http://127.0.0.1:8200",
		"GPUAAS_VAULT_ROLE_ID_FILE": "r", "GPUAAS_VAULT_SECRET_ID_FILE": "s",
	}
	c := defaults()
	require.NoError(t, c.serve.Set(listenerNode))
	require.NoError(t, daemon.Load(c, environ(vars)))
	_, err := c.tokens.Authenticate(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	require.Equal(t, schema.KindUnauthenticated, schema.KindOf(err), "and accepts none")
	vars["GPUAAS_ADMIN_TOKEN"] = "short"
	c = defaults()
	require.NoError(t, c.serve.Set(listenerNode))
	require.ErrorContains(t, daemon.Load(c, environ(vars)), "GPUAAS_ADMIN_TOKEN: the token is shorter")
}

// All faults are listed at once, and no secret is in the list.
func TestConfigFaults(t *testing.T) {
	vars := map[string]string{
		"GPUAAS_ADMIN_TOKEN_FILE": write(t, "short-secret"),
		"GPUAAS_ADMIN_ADDR":       "8081",
		"GPUAAS_NODE_PUBLIC_URL":  "http://user:hunter2@api.internal",
		"GPUAAS_WEB_UI_URL":       "localhost:8233",
		"GPUAAS_ENV":              "Prod/EU",
		"GPUAAS_LOG_LEVEL":        "loud",
		"GPUAAS_ISSUE_RATE":       "0",
		"GPUAAS_AGENT_OCI_REF":    "latest",
	}
	var out, errOut bytes.Buffer
	assert.Equal(t, schema.ExitUsage, Main(t.Context(), nil, environ(vars), &out, &errOut))
	assert.Empty(t, out.String())
	for _, name := range []string{"GPUAAS_DATABASE_URL", "VAULT_ADDR", "GPUAAS_VAULT_ROLE_ID_FILE", "GPUAAS_VAULT_SECRET_ID_FILE",
		"GPUAAS_ADMIN_TOKEN", "GPUAAS_ADMIN_ADDR", "GPUAAS_NODE_PUBLIC_URL", "GPUAAS_WEB_UI_URL", "GPUAAS_ENV", "GPUAAS_LOG_LEVEL", "GPUAAS_ISSUE_RATE",
		"GPUAAS_AGENT_OCI_REF", "GPUAAS_AGENT_DIGEST"} {
		assert.Contains(t, errOut.String(), name)
	}
	assert.NotContains(t, errOut.String(), "short-secret")
	assert.NotContains(t, errOut.String(), "hunter2")
}

// Agents reject a raw IP address, so the program does not start with one. The error
// names the setting and the reason.
func TestNodeURLFaults(t *testing.T) {
	vars := map[string]string{
		"GPUAAS_DATABASE_URL": "postgres://h/db?sslmode=require", "GPUAAS_ENV": "test", "VAULT_ADDR": "http://127.0.0.1:8200", "GPUAAS_ADMIN_TOKEN": adminToken,
		"GPUAAS_VAULT_ROLE_ID_FILE": "r", "GPUAAS_VAULT_SECRET_ID_FILE": "s",
	}
	const raw = "GPUAAS_NODE_PUBLIC_URL: must contain a host name: a raw IP address does not route to the node API"
	for url, says := range map[string]string{
		"https://10.0.0.1:8443": raw, "https://127.0.0.1:8443": raw, "https://[::1]:8443": raw,
		"https://api.internal:8443/x": "GPUAAS_NODE_PUBLIC_URL: must be https://name or https://name:port and nothing else",
	} {
		vars["GPUAAS_NODE_PUBLIC_URL"] = url
		err := daemon.Load(defaults(), environ(vars))
		require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest}, url)
		require.ErrorContains(t, err, says)
	}
	for _, url := range []string{"https://localhost:8443", "https://api.internal", "https://api.internal/"} {
		vars["GPUAAS_NODE_PUBLIC_URL"] = url
		require.Equal(t, strings.TrimRight(url, "/"), loaded(t, vars).NodeURL)
	}
}

// The shared token, the file of named tokens, or both are required. Without the
// shared token no empty token is accepted.
func TestAdminTokens(t *testing.T) {
	sum := sha256.Sum256([]byte("adas-token"))
	file := write(t, "ada viewer "+hex.EncodeToString(sum[:])+"\n")
	vars := map[string]string{
		"GPUAAS_DATABASE_URL": "postgres://h/db?sslmode=require", "GPUAAS_ENV": "test", "VAULT_ADDR": "http://127.0.0.1:8200",
		"GPUAAS_VAULT_ROLE_ID_FILE": "r", "GPUAAS_VAULT_SECRET_ID_FILE": "s",
	}
	require.ErrorContains(t, daemon.Load(defaults(), environ(vars)),
		"GPUAAS_ADMIN_TOKEN or GPUAAS_ADMIN_TOKEN_FILE or GPUAAS_ADMIN_TOKENS_FILE is not set")
	vars["GPUAAS_ADMIN_TOKENS_FILE"] = file
	a, err := newApp(&daemon.Process{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()}, loaded(t, vars))
	require.NoError(t, err)
	t.Cleanup(a.temporal.Close)
	subject := func(header string) (string, error) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header.Set("Authorization", header)
		s, err := a.cfg.tokens.Authenticate(r)
		return s.Name, err
	}
	name, err := subject("Bearer adas-token")
	require.NoError(t, err)
	require.Equal(t, "ada", name)
	_, err = subject("Bearer ")
	require.Equal(t, schema.KindUnauthenticated, schema.KindOf(err))
}

// A tokens file that is not valid is a fault of the configuration.
func TestAdminTokensFileFaults(t *testing.T) {
	shared := write(t, "ada admin "+strings.Repeat("0a", 32)+"\n")
	require.NoError(t, os.Chmod(shared, 0o666))
	for path, says := range map[string]string{write(t, "ada king"): "line 1: it must be NAME ROLE SHA256", shared: "chmod go-w", "/nowhere": "no such file"} {
		var out, errOut bytes.Buffer
		assert.Equal(t, schema.ExitUsage, Main(t.Context(), nil, environ(map[string]string{"GPUAAS_ADMIN_TOKENS_FILE": path}), &out, &errOut))
		assert.Contains(t, errOut.String(), "GPUAAS_ADMIN_TOKENS_FILE: ")
		assert.Contains(t, errOut.String(), says)
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args        []string
		code        int
		out, errOut string
	}{
		{[]string{"--help"}, 0, "GPUAAS_ADMIN_TOKEN_FILE", ""},
		{[]string{"version"}, 0, "gpuaas-api " + version.Read().String(), ""},
		{[]string{"serve"}, 2, "", `unknown argument "serve"`},
		{[]string{"--serve", "node,pages"}, 2, "", `unknown listener "pages"`},
		{[]string{"--serve", "node,console"}, 2, "", "the console is served with the admin API"},
	} {
		var out, errOut bytes.Buffer
		assert.Equal(t, c.code, Main(t.Context(), c.args, environ(nil), &out, &errOut))
		assert.Contains(t, out.String(), c.out)
		assert.Contains(t, errOut.String(), c.errOut)
	}
}

var update = flag.Bool("update", false, "rewrite the reference page")

// The reference page is what the configuration says. -update rewrites it.
func TestReferencePage(t *testing.T) {
	const path = "../../docs/reference/gpuaas-api.md"
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
