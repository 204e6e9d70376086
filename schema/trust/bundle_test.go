package trust_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// TestPathsOnANode holds the paths that runbooks name.
func TestPathsOnANode(t *testing.T) {
	t.Parallel()
	require.Equal(t, "/etc/gpuaas/cert.pem", trust.DefaultCertPath)
	require.Equal(t, "/etc/gpuaas/key.pem", trust.DefaultKeyPath)
	require.Equal(t, "/etc/gpuaas/ca-bundle.crt", trust.DefaultCABundlePath)
	require.Equal(t, "/etc/gpuaas/node-cert-ca-bundle.crt", trust.DefaultNodeCABundlePath)
}
