package maas

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// disabled is the provider without settings.
type disabled struct{}

func errDisabled() error {
	return machine.Errorf(machine.ReasonDisabled, "the provider maas is not configured: set MAAS_API_BASE_URL, and MAAS_API_TOKEN or GPUAAS_MAAS_TOKEN_VAULT")
}

func (disabled) Create(context.Context, machine.Spec, activities.BootData) (machine.Machine, error) {
	return machine.Machine{}, errDisabled()
}

func (disabled) Describe(context.Context, machine.Ref) (machine.Machine, error) {
	return machine.Machine{}, errDisabled()
}

func (disabled) Power(context.Context, machine.Ref, machine.Power) error { return errDisabled() }

func (disabled) Console(context.Context, machine.Ref) ([]byte, error) { return nil, errDisabled() }

func (disabled) Delete(context.Context, machine.Ref) error { return errDisabled() }

func (disabled) List(context.Context) ([]machine.Machine, error) { return nil, errDisabled() }
