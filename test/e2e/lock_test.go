package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestLockedNode: a lock ends the agent's open poll. The agent keeps its identity, gpuaas
// stuck lists the lock, and after the unlock the agent works with the same identity.
func TestLockedNode(t *testing.T) {
	nodeHost, id := enrolled(t, "locked")
	cert := content(t, filepath.Join(agentDir(nodeHost), "cert.pem"))
	locked := decode[wire.NodeView](t, ok(t, "node", "lock", nodeHost, "--reason", "key leaked", "-o", "json"))
	require.Equal(t, trust.LockedByOperator, locked.IdentityLock.Reason)
	eventually(t, "the agent is rejected", func() bool { return strings.Contains(agentLog(t, nodeHost), "node is locked") })
	listed := ok(t, "stuck")
	require.Contains(t, listed.stderr, "node "+nodeHost)
	require.Contains(t, listed.stderr, "key leaked")
	require.Equal(t, lifecycle.NodeActive, show(t, id).State)

	ok(t, "node", "unlock", nodeHost, "--reason", "checked")
	require.NotContains(t, ok(t, "stuck").stderr, "node "+nodeHost)
	ok(t, "node", "drain", nodeHost, "--yes", "--wait") // within the agent's pause of at most 90 seconds
	require.Equal(t, cert, content(t, filepath.Join(agentDir(nodeHost), "cert.pem")))
}
