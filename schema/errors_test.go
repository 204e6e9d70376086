package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func TestKindTable(t *testing.T) {
	t.Parallel()
	seen := map[schema.Kind]bool{}
	for _, r := range schema.Kinds() {
		require.False(t, seen[r.Kind], "%s appears twice", r.Kind)
		seen[r.Kind] = true
		require.GreaterOrEqual(t, r.HTTP, 400)
		require.NotZero(t, r.Exit)
		require.Equal(t, r, r.Kind.Info())
	}
	require.Equal(t, schema.KindInternal, schema.Kind("nonsense").Info().Kind)
}
