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
