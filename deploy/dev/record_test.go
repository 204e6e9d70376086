package dev

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func TestEngineChoice(t *testing.T) {
	t.Parallel()
	r := testRecord(t)
	require.Equal(t, server{Kind: kindEmbedded, Address: "http://127.0.0.1:17002"}, r.Vault)
	require.Equal(t, server{Kind: kindEmbedded, Address: "127.0.0.1:17000"}, r.Temporal)
	require.Equal(t, server{Kind: kindPath, Address: "127.0.0.1:17007"}, r.Postgres)
	require.Equal(t, "http://127.0.0.1:17001", r.WebUI)

	c := within(nil)
	c.look = func(program string) string { return "/usr/bin/" + program }
	r, err := c.choose(t.Context(), 17000)
	require.NoError(t, err)
	require.Equal(t, server{Kind: kindPath, Address: "127.0.0.1:17000", Program: "/usr/bin/temporal"}, r.Temporal)
	require.Equal(t, server{Kind: kindPath, Address: "http://127.0.0.1:17002", Program: "/usr/bin/vault"}, r.Vault)

	c.getenv = within(map[string]string{
		varTemporalAddress: "temporal:7233", varNamespace: "theirs", varVaultAddr: "https://vault:8200",
		varDatabaseURL: "postgres://u:hunter2@db/gpuaas", varWebUI: "https://web",
	}).getenv
	r, err = c.choose(t.Context(), 17000)
	require.NoError(t, err)
	require.Equal(t, server{Kind: kindExternal, Address: "temporal:7233"}, r.Temporal)
	require.Equal(t, server{Kind: kindExternal, Address: "https://vault:8200"}, r.Vault)
	require.Equal(t, server{Kind: kindExternal, Address: "db:5432"}, r.Postgres)
	require.Equal(t, "theirs", r.Namespace)
	require.Equal(t, "https://web", r.WebUI)
}

func TestUpdateRecord(t *testing.T) {
	t.Parallel()
	whole := testRecord(t)
	whole.Complete, whole.PostgresData = true, "/data"
	own := map[string]string{varTemporalAddress: whole.Temporal.Address, varVaultAddr: whole.Vault.Address}

	t.Run("own variables", func(t *testing.T) {
		t.Parallel()
		for _, runs := range []bool{true, false} {
			r, err := within(own).update(t.Context(), whole, 0, runs)
			require.NoError(t, err)
			require.Equal(t, whole, r)
		}
	})
	t.Run("another server is rejected", func(t *testing.T) {
		t.Parallel()
		for variable, value := range map[string]string{
			varTemporalAddress: "other:7233", varVaultAddr: "http://other:8200", varDatabaseURL: "postgres://u:hunter2@other/db",
		} {
			_, err := within(map[string]string{variable: value}).update(t.Context(), whole, 0, false)
			require.ErrorContains(t, err, variable)
			require.Contains(t, schema.AsError(err).Next, "unset "+variable)
			require.NotContains(t, err.Error(), "hunter2")
		}
	})
	t.Run("other ports while running are rejected", func(t *testing.T) {
		t.Parallel()
		_, err := within(nil).update(t.Context(), whole, 18000, true)
		require.ErrorContains(t, err, "from 17000")
	})
	t.Run("other ports while stopped", func(t *testing.T) {
		t.Parallel()
		r, err := within(own).update(t.Context(), whole, 18000, false)
		require.NoError(t, err)
		require.Equal(t, "127.0.0.1:18000", r.Temporal.Address)
		require.Equal(t, "http://127.0.0.1:18001", r.WebUI)
		require.Equal(t, "http://127.0.0.1:18002", r.Vault.Address)
		require.Equal(t, kindEmbedded, r.Vault.Kind)
		require.Equal(t, "/data", r.PostgresData)
	})
	t.Run("incomplete stack is chosen again", func(t *testing.T) {
		t.Parallel()
		half := whole
		half.Complete, half.Vault = false, server{Kind: kindExternal, Address: "http://gone:8200"}
		r, err := within(nil).update(t.Context(), half, 0, false)
		require.NoError(t, err)
		require.Equal(t, whole.Vault, r.Vault)
		require.Equal(t, "/data", r.PostgresData)
		require.Equal(t, 17000, r.From)
	})
	t.Run("invalid ports", func(t *testing.T) {
		t.Parallel()
		_, err := within(nil).choose(t.Context(), 70000)
		var usage *UsageError
		require.ErrorAs(t, err, &usage)
	})
}

func TestDatabaseHostOmitsPassword(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"hunter2", "mysql://u:hunter2@h/d", "postgres://u:hunter2@/d", "postgres://u:hunter2@h:x y/%zz"} {
		_, err := databaseHost(raw)
		require.Error(t, err, raw)
		require.NotContains(t, err.Error(), "hunter2")
	}
	host, err := databaseHost("postgresql://u:hunter2@[::1]:6000/d?sslmode=disable")
	require.NoError(t, err)
	require.Equal(t, "[::1]:6000", host)
	host, err = databaseHost("postgres://u:hunter2@db1:5433,db2:5434/d?target_session_attrs=read-write")
	require.NoError(t, err)
	require.Equal(t, "db1:5433", host)
}
