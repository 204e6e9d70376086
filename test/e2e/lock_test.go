package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
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

	refused := run(t, "node", "drain", nodeHost, "--yes", "--no-wait", "-o", "json")
	require.Equal(t, schema.ExitRefused, refused.code, "%s%s", refused.stdout, refused.stderr)
	envelope := decode[schema.ErrorBody](t, refused)
	require.Equal(t, schema.ReasonNodeLocked, envelope.Error.Reason)
	require.Equal(t, "gpuaas node unlock "+nodeHost+" --reason TEXT", envelope.Error.Next)

	ok(t, "node", "unlock", nodeHost, "--reason", "checked")
	require.NotContains(t, ok(t, "stuck").stderr, "node "+nodeHost)
	ok(t, "node", "drain", nodeHost, "--yes", "--wait") // within the agent's pause of at most 90 seconds
	require.Equal(t, cert, content(t, filepath.Join(agentDir(nodeHost), "cert.pem")))
}

// TestLockDuringDrain: an operation that is open when the identity is locked names the lock, and its
// cancel leads to the reissue, without the node.
func TestLockDuringDrain(t *testing.T) {
	nodeHost, id := enrolled(t, "lockdrain")
	drain := blockDrain(t, nodeHost, id)
	drain.parked(t, time.Time{})
	ok(t, "node", "lock", nodeHost, "--reason", "key leaked")
	ok(t, "op", "retry", nodeHost, "--reason", "try again")
	var op lifecycle.Operation
	eventually(t, "the drain is parked by the lock", func() bool {
		op = drain.read(t)
		return op.Stuck != nil && op.Stuck.Reason == schema.ReasonNodeLocked
	})
	require.Contains(t, op.Stuck.Message, "key leaked (since ")
	require.Equal(t, "gpuaas node unlock "+nodeHost+" --reason TEXT", op.Stuck.Next)

	ok(t, "op", "cancel", nodeHost, "--reason", "reissue first")
	op = drain.ends(t, lifecycle.OperationCanceled)
	require.Contains(t, op.Outcome, "the node was not uncordoned, because its identity is locked")
	undo := op.Phases[len(op.Phases)-1]
	require.Equal(t, lifecycle.PhaseUndoCordon, undo.Name)
	require.Equal(t, lifecycle.PhaseSkipped, undo.State)
	ok(t, "node", "reissue-enrollment", nodeHost, "--reason", "key leaked", "--no-wait")

	ok(t, "node", "lock", nodeHost, "--reason", "bundle leaked")
	reissue := reissueOf(t, nodeHost)
	require.Equal(t, lifecycle.OperationFailed, reissue.Status)
	require.Contains(t, reissue.Outcome, "gpuaas node reissue-enrollment "+nodeHost)
	ok(t, "node", "reissue-enrollment", nodeHost, "--reason", "bundle leaked", "--no-wait")
}
