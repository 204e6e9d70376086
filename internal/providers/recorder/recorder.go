// Package recorder is a provider that keeps its machines in memory and records each call. Tests
// and other adapters' doubles use it. Start at Provider.
package recorder

import (
	"context"
	"slices"
	"sync"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Name is the provider's name in the inventory.
const Name = "recorder"

// A Call is one call of the provider that was recorded.
type Call struct {
	// Method is a method of activities.MachineProvider in lower case.
	Method     string
	InstanceID string
	// Reason is that of the call's error, empty for a success.
	Reason string
}

// Gate runs one request to the site: do performs it. A test's gate makes requests fail before or
// after they have an effect. changes is set for a request that changes the site.
type Gate func(ctx context.Context, method string, changes bool, do func()) error

// Provider implements activities.MachineProvider. Several providers may use one Site.
type Provider struct {
	// Site has the machines. It must be set.
	Site *Site
	// Gate runs the requests. Defaults to running them without a fault.
	Gate Gate

	mu    sync.Mutex
	calls []Call
}

var _ activities.MachineProvider = (*Provider)(nil)

// New returns a provider with a site of its own.
func New() *Provider { return &Provider{Site: &Site{}} }

// Info describes the provider.
func Info() machine.Info {
	return machine.Info{Name: Name, Creates: true, Catalog: machine.Catalog{
		Regions: []string{"local"}, Images: []string{"default"},
		Types:    []machine.Type{{ID: "small", CPUs: 1, MemoryMiB: 256}},
		Defaults: machine.Options{Region: "local", Type: "small", Image: "default"},
	}}
}

// Calls returns the calls so far in the order of their ends.
func (p *Provider) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

func (p *Provider) record(method, instanceID string, err *error) {
	c := Call{Method: method, InstanceID: instanceID}
	if *err != nil {
		c.Reason = reasonOf(*err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, c)
}

func reasonOf(err error) string {
	for _, p := range machine.Problems() {
		if machine.Is(err, p.Reason) {
			return p.Reason
		}
	}
	return "unknown"
}

// request runs do behind the gate. An error without a reason means that the answer was lost.
func (p *Provider) request(ctx context.Context, method string, changes bool, do func()) error {
	if ctx.Err() != nil {
		return machine.Wrap(machine.ReasonUnavailable, ctx.Err(), "the call was canceled before the request")
	}
	if p.Gate == nil {
		do()
		return nil
	}
	err := p.Gate(ctx, method, changes, do)
	switch {
	case err == nil || reasonOf(err) != "unknown":
		return err
	case changes:
		return machine.Wrap(machine.ReasonAmbiguous, err, "the site did not answer a request to %s", method)
	}
	return machine.Wrap(machine.ReasonUnavailable, err, "the site did not answer a request to %s", method)
}

// Create implements activities.MachineProvider.
func (p *Provider) Create(ctx context.Context, s machine.Spec, boot activities.BootData) (m machine.Machine, err error) {
	defer p.record("create", s.InstanceID, &err)
	if err := validate(s); err != nil {
		return machine.Machine{}, err
	}
	var found Record
	var exists bool
	if err := p.request(ctx, "create", false, func() { found, exists = p.Site.Owned(s.InstanceID) }); err != nil || exists {
		return report(found), err
	}
	if _, err := boot(ctx); err != nil {
		return machine.Machine{}, err
	}
	err = p.request(ctx, "create", true, func() {
		found = p.Site.Add(Record{Owner: s.InstanceID, Host: s.Host, Region: s.Region, Type: s.Type})
	})
	if err != nil {
		return machine.Machine{}, err
	}
	return report(found), nil
}

func validate(s machine.Spec) error {
	i := Info()
	switch {
	case s.InstanceID == "":
		return machine.Errorf(machine.ReasonRejected, "the spec has no instance ID")
	case !text.IsHost(s.Host):
		return machine.Errorf(machine.ReasonRejected, "%q is not a host name", text.Line(s.Host, 64))
	case !slices.Contains(i.Regions, s.Region):
		return machine.Errorf(machine.ReasonRejected, "there is no region %q", text.Line(s.Region, 64))
	case !slices.ContainsFunc(i.Types, func(t machine.Type) bool { return t.ID == s.Type }):
		return machine.Errorf(machine.ReasonRejected, "there is no type %q", text.Line(s.Type, 64))
	case !slices.Contains(i.Images, s.Image):
		return machine.Errorf(machine.ReasonRejected, "there is no image %q", text.Line(s.Image, 64))
	}
	return nil
}

// find returns the machine of a reference, as it was before the request.
func (p *Provider) find(ctx context.Context, method string, r machine.Ref) (Record, error) {
	var found Record
	var exists bool
	err := p.request(ctx, method, false, func() {
		if found, exists = p.Site.Owned(r.InstanceID); r.ExternalID != "" && found.ID != r.ExternalID {
			exists = false
		}
		p.Site.Advance(found.ID)
	})
	if err == nil && !exists {
		err = machine.Errorf(machine.ReasonMissing, "the site has no machine of instance %q", text.Line(r.InstanceID, 64))
	}
	return found, err
}

// Describe implements activities.MachineProvider.
func (p *Provider) Describe(ctx context.Context, r machine.Ref) (m machine.Machine, err error) {
	defer p.record("describe", r.InstanceID, &err)
	found, err := p.find(ctx, "describe", r)
	if err != nil {
		return machine.Machine{}, err
	}
	return report(found), nil
}

// Power implements activities.MachineProvider.
func (p *Provider) Power(ctx context.Context, r machine.Ref, change machine.Power) (err error) {
	defer p.record("power", r.InstanceID, &err)
	found, err := p.find(ctx, "power", r)
	if err != nil {
		return err
	}
	phase := map[machine.Power]machine.Phase{machine.PowerOn: machine.Running, machine.PowerOff: machine.Stopped, machine.PowerReset: machine.Running}[change]
	if phase == "" {
		return machine.Errorf(machine.ReasonUnsupported, "the site has no power change %q", change)
	}
	return p.request(ctx, "power", true, func() { p.Site.Change(found.ID, func(r *Record) { r.Phase = phase }) })
}

// Console implements activities.MachineProvider.
func (p *Provider) Console(ctx context.Context, r machine.Ref) (tail []byte, err error) {
	defer p.record("console", r.InstanceID, &err)
	found, err := p.find(ctx, "console", r)
	return found.Console[max(0, len(found.Console)-machine.MaxConsole):], err
}

// Delete implements activities.MachineProvider.
func (p *Provider) Delete(ctx context.Context, r machine.Ref) (err error) {
	defer p.record("delete", r.InstanceID, &err)
	return p.request(ctx, "delete", true, func() {
		if found, ok := p.Site.Owned(r.InstanceID); ok {
			p.Site.Change(found.ID, func(r *Record) { r.Phase = machine.Deleting })
			return
		}
		p.Site.RemoveDisk(r.InstanceID)
	})
}

// List implements activities.MachineProvider.
func (p *Provider) List(ctx context.Context) (all []machine.Machine, err error) {
	defer p.record("list", "", &err)
	err = p.request(ctx, "list", false, func() {
		for _, r := range p.Site.All() {
			if r.Owner != "" {
				all = append(all, report(r))
				p.Site.Advance(r.ID)
			}
		}
	})
	return all, err
}

// maxDetail bounds a detail in bytes.
const maxDetail = 300

func report(r Record) machine.Machine {
	return machine.Machine{
		Ref:   machine.Ref{InstanceID: r.Owner, ExternalID: r.ID, Host: r.Host, Region: r.Region},
		Phase: r.Phase, Detail: text.Line(r.Detail, maxDetail), Type: r.Type, CreatedAt: r.CreatedAt,
	}
}
