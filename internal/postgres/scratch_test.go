package postgres

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// One process at a time makes scratch databases, and each gets a new name. The next one drops what a
// process left that ended without a drop. Those of another database are not touched.
func TestScratch(t *testing.T) {
	t.Parallel()
	url := pgtest.Empty(t)
	first, err := NewScratch(t.Context(), url)
	require.NoError(t, err)
	name, _, err := first.Create(t.Context())
	require.NoError(t, err)
	_, err = NewScratch(t.Context(), url)
	require.Equal(t, schema.KindOperationInProgress, schema.KindOf(err), "%v", err)

	other, err := NewScratch(t.Context(), pgtest.Empty(t))
	require.NoError(t, err)
	left, err := other.Clean(t.Context())
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, other.Close(t.Context()))

	require.NoError(t, first.conn.Close(context.WithoutCancel(t.Context()))) // as the kernel does for a killed process
	next, err := NewScratch(t.Context(), url)
	require.NoError(t, err)
	left, err = next.Clean(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{name}, left)
	second, _, err := next.Create(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, name, second)
	require.NoError(t, next.Close(t.Context()))
}
