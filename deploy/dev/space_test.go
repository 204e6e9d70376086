package dev

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func TestFullDiskIsReportedWithItsRemedy(t *testing.T) {
	t.Parallel()
	require.NoError(t, checkSpace(t.TempDir(), 1))
	e := schema.AsError(checkSpace(t.TempDir(), math.MaxUint64))
	require.Equal(t, "disk_full", e.Reason)
	require.Contains(t, e.Next, "--dir")
	require.Error(t, checkSpace("/nonexistent", 1))
}
