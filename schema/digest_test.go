package schema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func TestSHA256Hex(t *testing.T) {
	t.Parallel()
	digest := schema.SHA256Hex(nil)
	require.Equal(t, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", digest)
	require.True(t, schema.IsSHA256Hex(digest))
	for _, bad := range []string{"", digest[1:], digest + "00", strings.ToUpper(digest), "g" + digest[1:]} {
		require.False(t, schema.IsSHA256Hex(bad), bad)
	}
}
