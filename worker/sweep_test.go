package worker

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
)

// TestSweepSetting: a worker deletes nothing unless it is configured to.
func TestSweepSetting(t *testing.T) {
	t.Parallel()
	for value, deletes := range map[string]bool{"": false, "report": false, "delete": true} {
		c := defaults()
		require.NoError(t, daemon.Load(c, env(map[string]string{"GPUAAS_DATABASE_URL": "postgres://u:p@h/db?sslmode=require", "GPUAAS_ENV": "test",
			"VAULT_ADDR": "https://v", "GPUAAS_VAULT_KUBERNETES_ROLE": "gpuaas-worker", "GPUAAS_SWEEP": value})))
		require.Equal(t, deletes, (&parts{cfg: c, store: &store.Store{}}).sweep().Deletes, value)
	}
	var out strings.Builder
	require.Equal(t, schema.ExitUsage, Main(t.Context(), nil, env(map[string]string{"GPUAAS_SWEEP": "yes"}), io.Discard, &out))
	require.Contains(t, out.String(), "GPUAAS_SWEEP must be report or delete")
}
