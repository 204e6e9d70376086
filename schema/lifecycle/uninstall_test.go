package lifecycle_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// TestUninstallPage: docs/uninstall.md deletes every schedule and search attribute that setup creates.
func TestUninstallPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/uninstall.md")
	require.NoError(t, err)
	for _, s := range lifecycle.Schedules() {
		require.Contains(t, string(page), " "+s.ID)
	}
	for name := range lifecycle.Attributes() {
		require.Contains(t, string(page), " "+name)
	}
}
