package store_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

func TestMigrateManyAtOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Empty(t)
	for _, err := range race(3, func(int) error { return store.Migrate(t.Context(), dsn) }) {
		require.NoError(t, err)
	}
	require.NoError(t, store.Migrate(t.Context(), dsn), "again is nothing")
	s, err := store.Open(t.Context(), store.Config{URL: dsn})
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Admin.Register(t.Context(), schema.NewID(), wire.RegisterNodeRequest{Host: "gpu-1", SKU: "cpu-dev", RegionCode: "r"}, operator)
	require.NoError(t, err)
}

func TestDatabaseWithoutSchema(t *testing.T) {
	t.Parallel()
	s, err := store.Open(t.Context(), store.Config{URL: pgtest.Empty(t)})
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Admin.Node(t.Context(), "gpu-1")
	requireKind(t, err, schema.KindServiceUnavailable, "")
	require.Equal(t, "gpuaas admin setup", schema.AsError(err).Next)
}

func TestNoErrorHoldsThePassword(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	for _, dsn := range []string{
		"postgres://u:" + password + "@127.0.0.1:1/db",
		"postgres://u:" + password + "@127.0.0.1:port/db",
		"postgres://u:" + password + "@[::1/db",
		"postgres://u:" + password + "@127.0.0.1:1/db?sslmode=" + password,
		"postgres://u:" + password + "%zz@127.0.0.1:1/db",
		"host=127.0.0.1 port=1 password=" + password + " sslmode=nonsense",
		"host=127.0.0.1 port=1 password='" + password,
		password,
	} {
		_, err := store.Open(t.Context(), store.Config{URL: dsn})
		require.Error(t, err)
		require.NotContains(t, err.Error(), password)
		err = store.Migrate(t.Context(), dsn)
		require.Error(t, err)
		require.NotContains(t, err.Error(), password)
	}
	_, err := store.Open(t.Context(), store.Config{URL: "postgres://u:" + password + "@127.0.0.1:1/db"})
	requireKind(t, err, schema.KindServiceUnavailable, "")
	require.ErrorContains(t, err, "127.0.0.1:1/db")
	err = store.Migrate(t.Context(), "postgres://u:"+password+"@127.0.0.1:1/db")
	requireKind(t, err, schema.KindServiceUnavailable, "")
}

func TestLostServerIsUnavailable(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	u, err := url.Parse(e.url)
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = e.Node(ended, n.ID)
	requireKind(t, err, schema.KindServiceUnavailable, "")
	require.ErrorContains(t, err, u.Host)

	var brief *store.Store
	harness.Eventually(t, "a connection", func() bool { // which the timeout bounds too
		brief, err = store.Open(t.Context(), store.Config{URL: e.url, CallTimeout: time.Second})
		return err == nil
	})
	defer brief.Close()
	tx, err := e.raw.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT 1 FROM nodes WHERE node_id = $1 FOR UPDATE", n.ID)
	require.NoError(t, err)
	_, err = brief.Operations.Claim(t.Context(), request(n.ID, lifecycle.ActionDrain))
	requireKind(t, err, schema.KindServiceUnavailable, "")
	require.NoError(t, tx.Rollback(t.Context()))

	e.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'gpuaas'`)
	harness.Eventually(t, "a lost connection is replaced", func() bool {
		_, err := e.Node(t.Context(), n.ID)
		return err == nil || !schema.KindOf(err).Info().Retry
	})
}
