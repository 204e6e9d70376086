// Package manual is the provider of existing machines: a person installs the agent,
// provisioning adopts the host as the node's instance, and deleting it leaves the
// machine unchanged.
package manual

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// Provider adopts hosts. It implements activities.MachineProvider without a remote call.
type Provider struct{}

// New returns the provider with its description.
func New() activities.Source {
	return activities.Source{Info: machine.Info{Name: inventory.ProviderManual}, Provider: Provider{}}
}

// Create adopts the host of the spec. Its name is the machine's ID.
func (Provider) Create(_ context.Context, s machine.Spec, _ activities.BootData) (machine.Machine, error) {
	if s.Host == "" {
		return machine.Machine{}, machine.Errorf(machine.ReasonRejected, "the manual provider needs the node's host name")
	}
	return adopted(machine.Ref{InstanceID: s.InstanceID, Host: s.Host}), nil
}

// Describe returns the host as a running machine: whether it runs, its agent shows.
func (Provider) Describe(_ context.Context, r machine.Ref) (machine.Machine, error) {
	return adopted(r), nil
}

func adopted(r machine.Ref) machine.Machine {
	r.ExternalID = r.Host
	return machine.Machine{Ref: r, Phase: machine.Running}
}

// Power asks a person.
func (Provider) Power(_ context.Context, r machine.Ref, p machine.Power) error {
	does := map[machine.Power]string{machine.PowerOn: "switch it on", machine.PowerOff: "switch it off", machine.PowerReset: "reset it"}[p]
	return machine.Errorf(machine.ReasonPerson, "machine %s has no provider that controls its power: %s at its BMC or its power supply", r.Host, does)
}

// Console asks a person.
func (Provider) Console(_ context.Context, r machine.Ref) ([]byte, error) {
	return nil, machine.Errorf(machine.ReasonPerson, "machine %s has no provider with a console: read it at its BMC", r.Host)
}

// Delete does nothing: the machine belongs to its owner.
func (Provider) Delete(context.Context, machine.Ref) error { return nil }

// List is empty: the provider has no record of the machines.
func (Provider) List(context.Context) ([]machine.Machine, error) { return nil, nil }
