package server

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Each dependency that makes the API unready is a fault of the control plane, once.
func TestUnavailableDependenciesAreFaults(t *testing.T) {
	t.Parallel()
	temporal := wire.ControlPlaneFault{Component: "temporal", Reason: "service_unavailable", Message: "no schedule"}
	sealed := schema.NewError(schema.KindServiceUnavailable, "Vault at v is sealed").WithNext("unseal Vault")
	got := withUnavailable([]wire.ControlPlaneFault{temporal}, map[string]error{"vault": sealed, "temporal": errors.New("down")})
	assert.Equal(t, []wire.ControlPlaneFault{temporal,
		{Component: "vault", Reason: "service_unavailable", Message: "Vault at v is sealed", Next: "unseal Vault"}}, got)
	assert.Empty(t, withUnavailable(nil, nil))
}

func TestSignerFault(t *testing.T) {
	t.Parallel()
	assert.Empty(t, signerFault(nil))
	missing := schema.NewError(schema.KindServiceUnavailable, "there is no verifier set yet").WithNext("gpuaas admin setup")
	assert.Equal(t, []wire.ControlPlaneFault{{Component: "task-signer", Reason: "service_unavailable",
		Message: "there is no verifier set yet", Next: "gpuaas admin setup"}}, signerFault(missing))
}

// Requests that follow each other closely read Temporal once.
func TestFaultsAreReadOnce(t *testing.T) {
	t.Parallel()
	var recent recentFaults
	reads := 0
	read := func() []wire.ControlPlaneFault {
		reads++
		return []wire.ControlPlaneFault{{Component: "worker"}}
	}
	for range 3 {
		assert.Len(t, recent.get(read), 1)
	}
	assert.Equal(t, 1, reads)
	recent.readAt = recent.readAt.Add(-2 * faultsFresh)
	recent.get(read)
	assert.Equal(t, 2, reads)
}
