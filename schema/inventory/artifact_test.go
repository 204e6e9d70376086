package inventory_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

// What a node reports is bounded in number and length, and printable.
func TestCheckArtifacts(t *testing.T) {
	t.Parallel()
	many := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("a", i)] = "1"
		}
		return m
	}
	require.NoError(t, inventory.CheckArtifacts(nil))
	require.NoError(t, inventory.CheckArtifacts(many(inventory.MaxArtifacts)))
	require.NoError(t, inventory.CheckArtifacts(map[string]string{strings.Repeat("n", inventory.MaxArtifactName): strings.Repeat("v", inventory.MaxArtifactVersion)}))
	for what, bad := range map[string]map[string]string{
		"too many":       many(10_000),
		"long name":      {strings.Repeat("n", inventory.MaxArtifactName+1): "1"},
		"long version":   {"a": strings.Repeat("v", inventory.MaxArtifactVersion+1)},
		"empty name":     {"": "1"},
		"empty version":  {"a": ""},
		"escape in name": {"a\x1b[2J": "1"},
		"escape":         {"a": "1\x1b[2J"},
		"line":           {"a": "1\nStatus: in_sync"},
		"NUL":            {"a": "1\x00"},
		"no ASCII":       {"a": "\u202e1"},
		"space in name":  {"a b": "1"},
	} {
		err := inventory.CheckArtifacts(bad)
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), what)
		require.NotContains(t, err.Error(), "\x1b")
	}
}
