package vault

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
)

// The worker signs checkpoints with the newest version of their key, and both processes
// read the public keys of all versions.
func TestCheckpoints(t *testing.T) {
	b := prepared(t)
	worker, api := b.login(t, "worker"), b.login(t, "api")
	unsigned := audit.Checkpoint{Number: 4, Hash: strings.Repeat("0a", 32), At: time.Unix(1_800_000_000, 0).UTC()}
	first, err := worker.SignCheckpoint(t.Context(), unsigned)
	require.NoError(t, err)
	_, err = b.Root(t).Logical().Write("transit/keys/audit-test/rotate", nil)
	require.NoError(t, err)
	second, err := worker.SignCheckpoint(t.Context(), unsigned)
	require.NoError(t, err)
	keys, err := api.CheckpointKeys(t.Context())
	require.NoError(t, err)
	require.Len(t, keys, 2)
	for version, c := range []audit.Checkpoint{first, second} {
		require.Equal(t, []string{"audit-test.v1", "audit-test.v2"}[version], c.KeyID)
		require.True(t, c.Verify("test", keys))
	}
	_, err = api.SignCheckpoint(t.Context(), unsigned)
	requireKind(t, err, "service_unavailable", ReasonDenied)
}
