// Package manual is the provider of existing machines: a person installs the agent,
// provisioning adopts the host as the node's instance, and deleting it leaves the
// machine unchanged.
package manual

import (
	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Provider adopts hosts. It implements activities.MachineProvider without a remote call.
type Provider struct{}

var _ activities.MachineProvider = Provider{}

// New returns the provider with its description.
func New() activities.Source {
	return activities.Source{Info: machine.Info{Name: inventory.ProviderManual}, Provider: Provider{}}
}

// Create adopts the host of the spec. Its name is the machine's ID.
func (Provider) Create(ctx context.Context, s machine.Spec, _ activities.BootData) (machine.Machine, error) {
	if err := ended(ctx); err != nil {
		return machine.Machine{}, err
	}
	switch {
	case s.InstanceID == "":
		return machine.Machine{}, machine.Errorf(machine.ReasonRejected, "the manual provider needs the instance's ID")
	case s.Host == "":
		return machine.Machine{}, machine.Errorf(machine.ReasonRejected, "the manual provider needs the node's host name")
	case !text.IsHost(s.Host):
		return machine.Machine{}, machine.Errorf(machine.ReasonRejected, "%q is not a host name", text.Line(s.Host, 64))
	case s.Region != "" || s.Type != "" || s.Image != "":
		return machine.Machine{}, machine.Errorf(machine.ReasonRejected, "the manual provider adopts machines: it has no regions, types or images to choose from")
	}
	return adopted(machine.Ref{InstanceID: s.InstanceID, Host: s.Host}), nil
}

// ended returns the error of a call whose context has ended.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return machine.Wrap(machine.ReasonUnavailable, ctx.Err(), "the call was canceled")
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
	switch p {
	case machine.PowerOn, machine.PowerOff:
		return machine.Errorf(machine.ReasonPerson, "switch the machine %s %s at its power supply or BMC", r.Host, p)
	case machine.PowerReset:
		return machine.Errorf(machine.ReasonPerson, "reset the machine %s at its BMC, or switch it off and on at its power supply", r.Host)
	}
	return machine.Errorf(machine.ReasonUnsupported, "the manual provider has no power change %q", text.Line(string(p), 32))
}

// Console asks a person.
func (Provider) Console(_ context.Context, r machine.Ref) ([]byte, error) {
	return nil, machine.Errorf(machine.ReasonPerson, "read the console of the machine %s at its BMC", r.Host)
}

// Delete does nothing: the machine belongs to its owner.
func (Provider) Delete(context.Context, machine.Ref) error { return nil }

// List is empty: the provider has no record of the machines.
func (Provider) List(context.Context) ([]machine.Machine, error) { return nil, nil }
