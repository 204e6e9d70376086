package worker

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// If Vault does not sign with the active key on record, a revocation of another key is rejected:
// its set would leave the active key in use.
func TestRevocationOfAnotherKeyThanTheRetiredOne(t *testing.T) {
	r := rotations(t)
	n := r.node("gpu-1")
	n.follow()
	restore := r.dump()
	r.begin(rotation.TaskKey, "")
	require.NoError(t, r.decide(rotation.Decided{Decision: rotation.Approve}))
	r.finish(n)
	require.Equal(t, vault.ReasonKeyRetired, schema.AsError(restore()).Reason)

	record := newest(t, r.store)
	_, _, err := r.trust.Rotator.PlanKeys(t.Context(), rotation.Begin(rotation.RevokeKey, "task-test.v2", 0), record)
	require.Error(t, err)
	require.Equal(t, vault.ReasonKeyRetired, schema.AsError(err).Reason)
	_, _, err = r.trust.Rotator.SignSet(t.Context(), record, rotation.Target{Revokes: true,
		States: map[string]trust.KeyState{"task-test.v1": trust.KeyActive, "task-test.v2": trust.KeyRevoked}})
	require.Error(t, err)
	require.Equal(t, vault.ReasonKeyRetired, schema.AsError(err).Reason)
}
