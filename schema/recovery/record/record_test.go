package record_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
)

// TestStoredPolicyIsComplete: a policy without ladders or budgets is read again without them, although
// the default policy has some.
func TestStoredPolicyIsComplete(t *testing.T) {
	t.Parallel()
	p := recovery.Default()
	p.Ladders, p.ReplaceClasses, p.Thresholds = nil, nil, nil
	stored, err := record.Stored(p)
	require.NoError(t, err)
	got, err := stored.Decode()
	require.NoError(t, err)
	require.Empty(t, got.Ladders)
	require.Empty(t, got.Thresholds)
	require.Equal(t, stored.Digest, got.Digest())
}
