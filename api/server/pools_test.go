package server

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// Whatever the admin API does uses the connections of its own pool, whether the two sides
// have one URL of the database or two. Neither side opens a pool that it does not use.
func TestAdminCallsUseTheirOwnPool(t *testing.T) {
	t.Parallel()
	for name, side := range map[string]func(url, role string) string{
		"one URL":  func(url, _ string) string { return url },
		"two URLs": pgtest.As,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.New(t, store.Migrate)
			registry := prometheus.NewRegistry()
			a := &app{Process: &daemon.Process{Log: slog.New(slog.DiscardHandler), Registry: registry},
				cfg: &config{NodeDatabaseURL: schema.NewSecret(side(url, store.RoleAPINode))}}
			a.cfg.DatabaseURL, a.cfg.DatabasePool = schema.NewSecret(side(url, store.RoleAPIAdmin)), 7
			require.NoError(t, a.openStore(t.Context()))
			t.Cleanup(a.store.Close)
			t.Cleanup(a.nodeStore.Close)
			assert.Equal(t, map[string]float64{"shared": 7, "unauthenticated": unauthenticatedConns, "admin": adminConns}, maxima(t, registry))

			node, err := a.store.Admin.Register(t.Context(), schema.NewID(), wire.RegisterNodeRequest{Host: "gpu-1", SKU: "cpu-dev", RegionCode: "r"}, audit.Subject{Actor: "test"})
			require.NoError(t, err)
			raw, err := pgx.Connect(t.Context(), url)
			require.NoError(t, err)
			defer func() { _ = raw.Close(context.WithoutCancel(t.Context())) }()
			locked, err := raw.Begin(t.Context())
			require.NoError(t, err)
			_, err = locked.Exec(t.Context(), "SELECT 1 FROM nodes WHERE node_id = $1 FOR UPDATE", node.ID)
			require.NoError(t, err)
			issued := make(chan error, 1)
			go func() {
				_, id, hash := trust.NewToken()
				issued <- a.store.Identities.IssueToken(t.Context(), trust.MintedToken{NodeID: node.ID, TokenID: id, Hash: hash,
					Purpose: trust.PurposeEnroll, ExpiresAt: time.Now().Add(time.Hour)}, audit.Subject{Actor: "test"})
			}()
			harness.Eventually(t, "the token waits for the node's row", func() bool {
				var waits bool
				require.NoError(t, locked.QueryRow(t.Context(),
					"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&waits))
				return waits
			})
			for pool, db := range a.nodeStore.Pools() {
				assert.Zero(t, db.Pool().Stat().AcquiredConns(), pool)
			}
			require.NoError(t, locked.Rollback(t.Context()))
			require.NoError(t, harness.Receive(t, "the token", issued))
		})
	}
}

// maxima returns the sizes of the pools that the metrics show.
func maxima(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	sizes := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "gpuaas_database_connections" && labels["state"] == "max" {
				sizes[labels["pool"]] = m.GetGauge().GetValue()
			}
		}
	}
	return sizes
}
