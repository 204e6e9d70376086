package libvirt

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// Provider implements activities.MachineProvider.
type Provider struct {
	settings Settings
	runner   Runner
	files    files
}

var _ activities.MachineProvider = (*Provider)(nil)

// New returns the provider of valid settings. A recorder has domains of its own; use NewWithRunner
// for several providers of one.
func New(s Settings) (*Provider, error) {
	s = s.withDefaults()
	if s.Mode == Recorder {
		return NewWithRunner(s, NewRecording())
	}
	return NewWithRunner(s, newProgram(s))
}

// NewProgram returns the runner of the settings' virsh.
func NewProgram(s Settings) Runner { return newProgram(s.withDefaults()) }

// NewWithRunner is New with the runner of the commands.
func NewWithRunner(s Settings, r Runner) (*Provider, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s = s.withDefaults()
	f := files{state: s.StateDir, image: s.ImageBase, user: s.QEMUUser}
	if s.NetbootPort != 0 {
		f.ipxe = s.IPXE
	}
	return &Provider{settings: s, runner: r, files: f}, nil
}

// Source returns the provider with its description.
func (p *Provider) Source() activities.Source {
	return activities.Source{Info: p.settings.Info(), Provider: p}
}

// check rejects a call of a disabled provider and an ID that is not ours: IDs become names of
// domains and files.
func (p *Provider) check(instanceID string) error {
	if p.settings.Mode == Disabled {
		return machine.Errorf(machine.ReasonDisabled, "the libvirt provider is disabled: POWERNODE_LIBVIRT_MODE is disabled")
	}
	if !schema.IsID(instanceID) || strings.ToLower(instanceID) != instanceID {
		return machine.Errorf(machine.ReasonRejected, "%q is not an instance ID", instanceID)
	}
	return nil
}

// Create implements activities.MachineProvider.
func (p *Provider) Create(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error) {
	if err := p.check(s.InstanceID); err != nil {
		return machine.Machine{}, err
	}
	size, err := p.settings.size(s)
	if err == nil {
		err = checkHost(s.Host)
	}
	if err != nil {
		return machine.Machine{}, err
	}
	unlock, err := p.files.lock(ctx, s.InstanceID)
	if err != nil {
		return machine.Machine{}, err
	}
	defer unlock()
	d, found, err := p.find(ctx, s.InstanceID)
	if err != nil {
		return machine.Machine{}, report(err, "creating", s.InstanceID)
	}
	if found && !d.owned(p.settings.Owner) {
		return machine.Machine{}, machine.Errorf(machine.ReasonRejected, "libvirt has a domain %s that this installation did not create", d.Name)
	}
	at := time.Now()
	if found {
		at = d.machine().CreatedAt
	}
	definition := p.newDomain(s, size, at)
	if !found {
		if err := p.start(ctx, definition, s, boot); err != nil {
			return machine.Machine{}, err
		}
	}
	if found && !d.active() {
		return d.machine(), nil // a domain that is shut off is persistent
	}
	return p.persist(ctx, definition, s.InstanceID)
}

// start starts the domain with its boot data. The domain ends when it is shut off, until persist
// has run.
func (p *Provider) start(ctx context.Context, d domainXML, s machine.Spec, boot activities.BootData) error {
	if err := p.checkImage(); err != nil {
		return err
	}
	data, err := boot(ctx)
	if err != nil {
		return err
	}
	if err := p.files.newDisk(s.InstanceID); err != nil {
		return err
	}
	file, err := p.files.writeBoot(s, data, p.settings)
	if err != nil {
		return err
	}
	text, err := d.withBoot(file).encode()
	if err != nil {
		return err
	}
	_, err = p.run(ctx, true, text, "create", "/dev/stdin")
	if is(err, lost, unknown) {
		return report(err, "creating", s.InstanceID) // QEMU may still read the file
	}
	// After a success QEMU has read the file: virsh create returns when the guest runs.
	removed := p.files.removeBoot(s.InstanceID)
	if err == nil || is(err, active) {
		return removed
	}
	if !is(err, busy) { // an earlier command may be starting the domain
		_ = remove(p.files.disk(s.InstanceID)) // a deletion of the machine removes it too
	}
	return report(err, "creating", s.InstanceID)
}

// persist stores the definition, without boot data, and returns the machine.
func (p *Provider) persist(ctx context.Context, definition domainXML, instanceID string) (machine.Machine, error) {
	text, err := definition.encode()
	if err != nil {
		return machine.Machine{}, err
	}
	d, found := domain{}, false
	if _, err = p.run(ctx, true, text, "define", "/dev/stdin"); err == nil {
		d, found, err = p.find(ctx, instanceID)
	}
	switch {
	case err != nil:
		return machine.Machine{}, machine.Wrap(machine.ReasonAmbiguous, err, "the domain of instance %s was started: %v", instanceID, err)
	case !found:
		return machine.Machine{}, machine.Errorf(machine.ReasonAmbiguous, "the domain of instance %s was started and deleted", instanceID)
	}
	return d.machine(), nil
}

func (p *Provider) checkImage() error {
	if p.settings.Mode == Recorder {
		return nil
	}
	return p.files.checkImage()
}

// Describe implements activities.MachineProvider.
func (p *Provider) Describe(ctx context.Context, r machine.Ref) (machine.Machine, error) {
	d, err := p.lookup(ctx, "describing", r)
	if err != nil {
		return machine.Machine{}, err
	}
	return d.machine(), p.forgetBoot(d)
}

// forgetBoot removes the boot file that an ambiguous Create left behind, once QEMU has read it.
func (p *Provider) forgetBoot(d domain) error {
	if d.starting() {
		return nil
	}
	return p.files.removeBoot(d.UUID)
}

// lookup returns the machine of a reference. A domain's UUID is its instance's ID, so a reference
// with another external ID identifies no machine.
func (p *Provider) lookup(ctx context.Context, what string, r machine.Ref) (domain, error) {
	id := cmp.Or(r.ExternalID, r.InstanceID)
	if err := p.check(cmp.Or(r.InstanceID, id)); err != nil {
		return domain{}, err
	}
	if r.InstanceID != "" && id != r.InstanceID {
		return domain{}, machine.Errorf(machine.ReasonMissing, "the domain with the UUID %q is not the machine of instance %s", id, r.InstanceID)
	}
	return p.get(ctx, what, id)
}

// Power implements activities.MachineProvider.
func (p *Provider) Power(ctx context.Context, r machine.Ref, change machine.Power) error {
	command, ok := map[machine.Power]string{machine.PowerOn: "start", machine.PowerOff: "destroy", machine.PowerReset: "reset"}[change]
	if !ok {
		return machine.Errorf(machine.ReasonUnsupported, "libvirt has no power change %q", change)
	}
	if err := p.check(cmp.Or(r.InstanceID, r.ExternalID)); err != nil {
		return err
	}
	unlock, err := p.files.lock(ctx, cmp.Or(r.InstanceID, r.ExternalID))
	if err != nil {
		return err
	}
	defer unlock()
	d, err := p.lookup(ctx, "changing the power of", r)
	if err != nil {
		return err
	}
	switch {
	case d.active() && change == machine.PowerOn, !d.active() && change == machine.PowerOff:
		return nil
	case !d.active():
		command = "start"
		if err := p.checkImage(); err != nil {
			return err
		}
	}
	if _, err = p.run(ctx, true, nil, command, d.Name); err == nil || command == "start" && is(err, active) || command == "destroy" && is(err, inactive) {
		return nil
	}
	return report(err, "changing the power of", d.UUID)
}

// Console implements activities.MachineProvider.
func (p *Provider) Console(ctx context.Context, r machine.Ref) ([]byte, error) {
	d, err := p.lookup(ctx, "reading the console of", r)
	if err != nil {
		return nil, err
	}
	return p.files.consoleTail(d.UUID)
}

// Delete implements activities.MachineProvider.
func (p *Provider) Delete(ctx context.Context, r machine.Ref) error {
	if err := p.check(r.InstanceID); err != nil {
		return err
	}
	unlock, err := p.files.lock(ctx, r.InstanceID)
	if err != nil {
		return err
	}
	defer unlock()
	d, found, err := p.find(ctx, r.InstanceID)
	if err == nil && found {
		if !d.owned(p.settings.Owner) {
			return nil
		}
		err = p.end(ctx, d)
	}
	if err != nil {
		return report(err, "deleting", r.InstanceID)
	}
	return p.files.remove(r.InstanceID)
}

// end destroys and undefines a domain, and returns when libvirt no longer lists it.
func (p *Provider) end(ctx context.Context, d domain) error {
	if d.active() {
		if _, err := p.run(ctx, true, nil, "destroy", d.Name); err != nil && !is(err, inactive, noDomain) {
			return err
		}
	}
	_, err := p.run(ctx, true, nil, "undefine", d.Name, "--managed-save", "--snapshots-metadata")
	if err == nil {
		return nil
	}
	if !is(err, noDomain) { // a transient domain ended when it was destroyed
		return err
	}
	if _, found, lookup := p.find(ctx, d.UUID); lookup != nil || found {
		return &failure{problem: lost, changes: true, command: "undefine", detail: "the domain may still exist", cause: lookup}
	}
	return nil
}

// List implements activities.MachineProvider.
func (p *Provider) List(ctx context.Context) ([]machine.Machine, error) {
	if p.settings.Mode == Disabled {
		return nil, p.check("")
	}
	all, err := p.all(ctx)
	if err != nil {
		return nil, report(err, "listing", "")
	}
	machines := make([]machine.Machine, 0, len(all))
	for _, d := range all {
		machines = append(machines, d.machine())
	}
	return machines, nil
}
