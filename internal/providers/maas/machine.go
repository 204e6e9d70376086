package maas

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// Describe returns the machine of the instance. A machine with the external ID that is no longer
// the instance's is missing: it may be another instance's already.
func (p *Provider) Describe(ctx context.Context, r machine.Ref) (machine.Machine, error) {
	n, err := p.machineOf(ctx, r)
	if err != nil {
		return machine.Machine{}, err
	}
	return p.machine(n, r.Host), nil
}

// List returns the machines of the installation.
func (p *Provider) List(ctx context.Context) ([]machine.Machine, error) {
	all, err := p.owned(ctx)
	if err != nil {
		return nil, err
	}
	var out []machine.Machine
	for _, n := range all {
		out = append(out, p.machine(n, n.note("gpuaas-host")))
	}
	return out, nil
}

// Delete releases the machines of the instance. MAAS erases them, switches them off, and then
// offers them for other instances.
func (p *Provider) Delete(ctx context.Context, r machine.Ref) error {
	found, err := p.find(ctx, r.InstanceID)
	if err != nil {
		return err
	}
	for _, n := range found {
		if n.phase() == machine.Deleting {
			continue
		}
		erase := p.settings.Erase
		if n.Status == statusAllocated {
			erase = EraseNone // it was never deployed
		}
		if err := p.release(ctx, n, erase); err != nil && !machine.Is(err, machine.ReasonMissing) {
			return err
		}
	}
	return nil
}

// release asks for the release of a machine. MAAS erases the disks if any of the three
// parameters is set (ReleaseForm in src/maasserver/forms/ephemeral.py of canonical/maas).
func (p *Provider) release(ctx context.Context, n node, erase Erase) error {
	form := values("comment", p.tag(n.instance))
	if erase != EraseNone {
		form.Set("erase", "true")
	}
	if erase == EraseQuick {
		form.Set("quick_erase", "true")
	}
	if erase == EraseSecure {
		form.Set("secure_erase", "true")
	}
	path := "machines/" + n.SystemID + "/"
	err := p.client.call(ctx, request{what: "release machine " + n.SystemID, path: path, item: true, query: values("op", "release"), form: form}, one(&node{}))
	if !conflict(err) {
		return err
	}
	// MAAS rejects the release of a machine that it erases: another request has released it.
	var now node
	if read := p.client.call(ctx, request{what: "read machine " + n.SystemID, path: path, item: true}, one(&now)); read != nil {
		return read
	}
	if now.free() || now.phase() == machine.Deleting {
		return nil
	}
	return err
}

// Power changes the power of a deployed machine. It never switches on an allocated one, because
// MAAS would deploy it (Node.start in src/maasserver/models/node.py of canonical/maas).
func (p *Provider) Power(ctx context.Context, r machine.Ref, want machine.Power) error {
	n, err := p.machineOf(ctx, r)
	if err != nil {
		return err
	}
	switch phase := n.phase(); {
	case phase == machine.Creating && want == machine.PowerOn && n.Status == statusDeploying:
		return nil
	case phase == machine.Creating:
		return machine.Errorf(machine.ReasonStarting, "machine %s is being deployed", n.SystemID)
	case phase == machine.Deleting:
		return machine.Errorf(machine.ReasonDeleting, "machine %s is being released", n.SystemID)
	case n.Status != statusDeployed && want != machine.PowerOff:
		return machine.Errorf(machine.ReasonFailed, "machine %s is %s", n.SystemID, p.client.line(n.StatusName))
	}
	// The power that MAAS reports may be older than a change that is under way, so a change to the
	// same power is requested too: it has no effect, except that MAAS deploys an ephemeral machine
	// whenever it is switched on (Node._start).
	switch {
	case want == machine.PowerOn && n.Ephemeral && n.PowerState != powerOff:
		return nil
	case want == machine.PowerOff, want == machine.PowerOn:
		return p.switchPower(ctx, n, want)
	case want == machine.PowerReset && n.PowerState == powerOff:
		return p.switchPower(ctx, n, machine.PowerOn)
	case want == machine.PowerReset:
		return p.reset(ctx, n)
	}
	return machine.Errorf(machine.ReasonRejected, "there is no power change %q", want)
}

// switchPower asks MAAS for the change, hard.
func (p *Provider) switchPower(ctx context.Context, n node, want machine.Power) error {
	form := values("comment", p.tag(n.instance))
	if want == machine.PowerOff {
		form.Set("stop_mode", "hard")
	}
	return p.client.call(ctx, request{what: fmt.Sprintf("switch machine %s %s", n.SystemID, want), path: "machines/" + n.SystemID + "/", item: true,
		query: values("op", "power_"+string(want)), form: form}, ignored)
}

// resetWait bounds how long a reset waits until the machine is off.
const resetWait = 20 * time.Second

// reset switches the machine off and, once it is off, on: API 2.0 has no reset. If the machine
// is not off in time, the caller repeats the request, which continues.
func (p *Provider) reset(ctx context.Context, n node) error {
	if err := p.switchPower(ctx, n, machine.PowerOff); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, resetWait)
	defer cancel()
	tick := time.NewTicker(p.settings.PollPower)
	defer tick.Stop()
	for {
		select {
		case <-wait.Done():
			return machine.Errorf(machine.ReasonAmbiguous, "machine %s was switched off for a reset and does not report that it is off", n.SystemID)
		case <-tick.C:
		}
		var now node
		err := p.client.call(wait, request{what: "read machine " + n.SystemID, path: "machines/" + n.SystemID + "/", item: true}, one(&now))
		if err == nil && now.PowerState == powerOff {
			err = p.switchPower(ctx, n, machine.PowerOn)
			if machine.Is(err, machine.ReasonUnavailable) {
				err = machine.Wrap(machine.ReasonAmbiguous, err, "machine %s is switched off for a reset and not on yet", n.SystemID)
			}
			return err
		}
		if err != nil && !machine.Is(err, machine.ReasonUnavailable) {
			return err
		}
	}
}

// Console returns the end of the machine's event log: API 2.0 has no console.
func (p *Provider) Console(ctx context.Context, r machine.Ref) ([]byte, error) {
	n, err := p.machineOf(ctx, r)
	if err != nil {
		return nil, err
	}
	events, err := p.events(ctx, n, "INFO", 100)
	if err != nil {
		return nil, err
	}
	slices.Reverse(events)
	var out strings.Builder
	for _, e := range events {
		out.WriteString(p.client.line(e.Created+" "+e.Type+": "+e.Description) + "\n")
	}
	tail := out.String()
	return []byte(tail[max(0, len(tail)-machine.MaxConsole):]), nil
}
