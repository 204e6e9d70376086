package worker

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// checks runs Check and returns the results by name.
func checks(t *testing.T, c temporal.Config, vars map[string]string) map[string]diagnosis.Check {
	t.Helper()
	r, err := Check(t.Context(), CheckOptions{Temporal: c, Getenv: env(vars)})
	require.NoError(t, err)
	byName := map[string]diagnosis.Check{}
	for _, c := range r.Checks {
		byName[c.Name] = c
		require.True(t, c.Result != diagnosis.Failed || c.Next != "" && c.Answer != "", c.Name)
	}
	return byName
}

// TestCheck breaks each part of a real installation and expects that its check, and no other one
// before it, finds the fault.
func TestCheck(t *testing.T) {
	b := prepared(t)
	conf := temporal.Config{Address: sharedTemporal.Address(t), Namespace: "check-" + schema.NewID()}
	vars := map[string]string{"GPUAAS_DATABASE_URL": b.url, "VAULT_ADDR": b.vault.Address, "GPUAAS_ENV": "test", "GPUAAS_VAULT_TOKEN_FILE": b.vault.TokenFile,
		"GPUAAS_AUDIT_ARCHIVE_DIR": t.TempDir()}
	got := checks(t, conf, vars)
	require.Equal(t, diagnosis.Failed, got["temporal"].Result, "there is no namespace")
	c, err := temporal.Dial(conf)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.Installation.Setup(t.Context()))

	got = checks(t, conf, vars)
	for _, name := range []string{"database", "schema", "database roles", "database clock", "records", "vault", "vault clock", "vault objects", "temporal", "search attributes", "archive"} {
		require.Equal(t, diagnosis.OK, got[name].Result, "%s: %s", name, got[name].Answer)
	}
	require.Equal(t, "no gpuaas-worker polls", got["workers"].Answer)
	require.Equal(t, diagnosis.Failed, got["temporal: worker"].Result)

	require.NoError(t, postgres.Run(t.Context(), b.url, `UPDATE providers SET updated_at = now(), info = info || '{"creates": true, "disabled": "MAAS_API_BASE_URL is not set"}'`))
	got = checks(t, conf, vars)
	require.Equal(t, []any{diagnosis.OK, "not configured: MAAS_API_BASE_URL is not set"}, []any{got["provider manual"].Result, got["provider manual"].Answer})

	pgtest.ShiftClock(t, b.url, 45*time.Second)
	require.Contains(t, checks(t, conf, vars)["database clock"].Answer, "differs from this machine's clock by 4")
	pgtest.ShiftClock(t, b.url, 0)

	require.NoError(t, postgres.Run(t.Context(), b.url, "REVOKE SELECT ON operations FROM gpuaas_worker"))
	require.Equal(t, "missing or without privileges: gpuaas_worker", checks(t, conf, vars)["database roles"].Answer)
	require.NoError(t, postgres.Run(t.Context(), b.url, "UPDATE providers SET updated_at = now() - interval '1 hour'"))
	require.Contains(t, checks(t, conf, vars)["provider manual"].Answer, "no worker has described it for 1h")

	vars["GPUAAS_ENV"] = "other"
	require.Contains(t, checks(t, conf, vars)["vault objects"].Answer, "transit/keys/task-other")
	b.vault.Seal(t)
	got = checks(t, conf, vars)
	require.Equal(t, []any{diagnosis.Failed, diagnosis.Skipped}, []any{got["vault"].Result, got["vault objects"].Result})
	b.vault.Unseal(t)

	vars["GPUAAS_AUDIT_ARCHIVE_DIR"] = filepath.Join(t.TempDir(), "none")
	vars["GPUAAS_DATABASE_URL"] = "postgres://user:a-password-of-the-test@127.0.0.1:1/none"
	got = checks(t, temporal.Config{Address: "127.0.0.1:1", Namespace: "x"}, vars)
	for _, name := range []string{"database", "temporal", "archive"} {
		require.Equal(t, diagnosis.Failed, got[name].Result, name)
		require.NotContains(t, got[name].Answer, "a-password")
		require.NotEqual(t, "gpuaas stuck", got[name].Next, "it needs what does not respond")
	}
	require.Equal(t, diagnosis.Skipped, got["schema"].Result)
}
