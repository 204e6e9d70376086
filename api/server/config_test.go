package server

import (
	"bytes"
	"crypto/sha256"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
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

func TestConfigDefaults(t *testing.T) {
	c, err := configFromEnv(environ(map[string]string{
		"GPUAAS_DATABASE_URL_FILE":    write(t, "postgres://u:p@h/db\n"),
		"VAULT_ADDR":                  "http://127.0.0.1:8200",
		"GPUAAS_VAULT_ROLE_ID_FILE":   "r",
		"GPUAAS_VAULT_SECRET_ID_FILE": "s",
		"GPUAAS_ADMIN_TOKEN_FILE":     write(t, adminToken+"\n"),
	}))
	require.NoError(t, err)
	assert.Equal(t, config{
		databaseURL: "postgres://u:p@h/db", vaultAddr: "http://127.0.0.1:8200", roleIDFile: "r", secretIDFile: "s",
		adminAddr: "127.0.0.1:8081", nodeAddr: "127.0.0.1:8443", nodeURL: "https://localhost:8443", metricsAddr: "127.0.0.1:9091",
		tokenHash: sha256.Sum256([]byte(adminToken)), actor: "admin-token", env: "dev", issueRate: nodeapi.DefaultIssueRate, logLevel: slog.LevelInfo,
		secrets: []schema.Secret{schema.NewSecret(adminToken), schema.NewSecret("p")},
	}, c)
}

// All faults are listed at once, and no secret is in the list.
func TestConfigFaults(t *testing.T) {
	vars := map[string]string{
		"GPUAAS_ADMIN_TOKEN_FILE": write(t, "short-secret"),
		"GPUAAS_ADMIN_ADDR":       "8081",
		"GPUAAS_NODE_PUBLIC_URL":  "http://user:hunter2@api.internal",
		"GPUAAS_ENV":              "Prod/EU",
		"GPUAAS_LOG_LEVEL":        "loud",
	}
	var out, errOut bytes.Buffer
	assert.Equal(t, schema.ExitUsage, Main(t.Context(), nil, environ(vars), &out, &errOut))
	assert.Empty(t, out.String())
	for _, name := range []string{"GPUAAS_DATABASE_URL", "VAULT_ADDR", "GPUAAS_VAULT_ROLE_ID_FILE", "GPUAAS_VAULT_SECRET_ID_FILE",
		"GPUAAS_ADMIN_TOKEN_FILE", "GPUAAS_ADMIN_ADDR", "GPUAAS_NODE_PUBLIC_URL", "GPUAAS_ENV", "GPUAAS_LOG_LEVEL"} {
		assert.Contains(t, errOut.String(), name)
	}
	assert.NotContains(t, errOut.String(), "short-secret")
	assert.NotContains(t, errOut.String(), "hunter2")
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		out  string
	}{{[]string{"--help"}, 0, "GPUAAS_ADMIN_TOKEN_FILE"}, {[]string{"version"}, 0, version}, {[]string{"serve"}, 2, ""}} {
		var out, errOut bytes.Buffer
		assert.Equal(t, c.code, Main(t.Context(), c.args, environ(nil), &out, &errOut))
		assert.Contains(t, out.String(), c.out)
	}
}
