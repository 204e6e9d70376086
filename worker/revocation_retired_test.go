package worker

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
)

// If Vault does not sign with the active key on record, because the end of a rotation is in the
// lost part, a revocation of the staged key ends with a new active key.
func TestRevocationOfAnotherKeyThanTheRetiredOne(t *testing.T) {
	r := rotations(t)
	n := r.node("gpu-1")
	n.follow()
	r.begin(rotation.TaskKey, "")
	r.advance()
	n.follow()
	restore := r.dump()
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))
	r.finish(n)
	stolen := r.sign()
	require.Equal(t, vault.ReasonKeyRetired, schema.AsError(restore()).Reason)

	r.begin(rotation.RevokeKey, "task-test.v2")
	r.finish(n)
	require.Equal(t, "task-test.v3", r.newest().Active().KeyID)
	require.False(t, n.accepts(stolen))
	require.True(t, n.accepts(r.sign()))
}
