package daemon

import (
	"bytes"
	"log/slog"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// A connection without TLS to another machine is rejected, and allowed by one setting.
// One to this machine is not rejected.
func TestPlaintextIsRejected(t *testing.T) {
	load := func(changes map[string]string) error {
		vars := complete(t)
		maps.Copy(vars, changes)
		return Load(newConfig(), environ(vars))
	}
	for name, c := range map[string]struct{ variable, value, rejected string }{
		"database":              {"GPUAAS_DATABASE_URL", "postgres://u:hunter2@db.example/x", "db.example"},
		"database, prefer":      {"GPUAAS_DATABASE_URL", "postgres://u:hunter2@db.example/x?sslmode=prefer", "db.example"},
		"database, disable":     {"GPUAAS_DATABASE_URL", "postgres://u:hunter2@10.0.0.1:5432/x?sslmode=disable", "10.0.0.1"},
		"database, by query":    {"GPUAAS_DATABASE_URL", "postgres://u:hunter2@/x?host=10.0.0.1&sslmode=disable", "10.0.0.1"},
		"database, two servers": {"GPUAAS_DATABASE_URL", "postgres://u:hunter2@127.0.0.1:5432,10.0.0.2:5433/x?sslmode=disable", "10.0.0.2"},
		"database, failover":    {"GPUAAS_DATABASE_URL", "postgres://u:hunter2@127.0.0.1:5432,127.0.0.1:5433/x?target_session_attrs=read-write", ""},
		"database, TLS":         {"GPUAAS_DATABASE_URL", "postgres://u:hunter2@db.example/x?sslmode=verify-full", ""},
		"database, loopback":    {"GPUAAS_DATABASE_URL", "postgres://u:hunter2@127.0.0.1/x", ""},
		"database, by socket":   {"GPUAAS_DATABASE_URL", "postgres://u:hunter2@/x?host=/run/postgresql", ""},
		"Vault":                 {"VAULT_ADDR", "http://vault.example:8200", "vault.example"},
		"Vault, TLS":            {"VAULT_ADDR", "https://vault.example:8200", ""},
		"Vault, loopback":       {"VAULT_ADDR", "http://[::1]:8200", ""},
		"Vault, a name like it": {"VAULT_ADDR", "http://localhost.example:8200", "localhost.example"},
	} {
		err := load(map[string]string{c.variable: c.value})
		if c.rejected == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.variable+": the connection to "+c.rejected+" would not be encrypted", name)
		require.ErrorContains(t, err, "GPUAAS_ALLOW_PLAINTEXT=true", name)
		require.NotContains(t, err.Error(), "hunter2", name)
		require.NoError(t, load(map[string]string{c.variable: c.value, "GPUAAS_ALLOW_PLAINTEXT": "true"}), name)
	}

	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	e := Engines{VaultAddr: "https://v", DatabaseURL: schema.NewSecret("postgres://h/db?sslmode=require")}
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(e.CheckTemporal("temporal.example:7233", false, log)))
	require.NoError(t, e.CheckTemporal("temporal.example:7233", true, log))
	require.NoError(t, e.CheckTemporal("localhost:7233", false, log))
	require.Contains(t, out.String(), "postgres_tls=true vault_tls=true temporal_tls=false")
}

// A dependency without which the process works in part leaves it ready, and /readyz names
// it.
func TestDegradingDependency(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler), newRegistry(), 1)
	down := schema.NewError(schema.KindServiceUnavailable, "down")
	h.checks = []*check{{name: "temporal", degrades: true, fault: down}, {name: "postgres"}}
	h.block("")
	require.NoError(t, h.Ready())
	require.Equal(t, []string{"temporal"}, h.degraded())
	h.checks[1].fault = down
	require.ErrorContains(t, h.Ready(), "not ready: postgres unavailable")
}
