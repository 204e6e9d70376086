package maas

import (
	"cmp"
	"context"
	"encoding/base64"
	"hash/fnv"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Create allocates a machine, annotates it and deploys it with the user data of boot. A repeated
// call continues where an earlier one stopped. It has an effect that a later call finds as soon
// as a machine is allocated, so from then on its errors are not machine.ReasonUnavailable.
func (p *Provider) Create(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error) {
	constraints, err := p.constraints(s)
	if err != nil {
		return machine.Machine{}, err
	}
	found, err := p.find(ctx, s.InstanceID)
	if err != nil {
		return machine.Machine{}, err
	}
	began, allocated := len(found) == 0, "" // the ID of the machine that this call allocated
	if began {
		if found, allocated, err = p.allocate(ctx, s.InstanceID, constraints); err != nil {
			return machine.Machine{}, err
		}
	}
	n, err := p.first(ctx, found)
	if err == nil {
		err = p.releaseOthers(ctx, n, found)
	}
	if err == nil && n.Status == statusAllocated {
		n, err = p.deploy(ctx, n, s, p.orRelease(n, n.SystemID == allocated, boot))
	}
	if err != nil {
		if began && machine.Is(err, machine.ReasonUnavailable) {
			err = machine.Wrap(machine.ReasonAmbiguous, err, "a machine is allocated for %s, but is not deployed yet", s.Host)
		}
		return machine.Machine{}, err
	}
	return p.machine(n, s.Host), nil
}

// releaseLimit bounds the release of a machine for which there is no boot data.
const releaseLimit = 5 * time.Second

// orRelease returns boot. If boot fails, it releases the machine if this call allocated it, also
// after a cancellation. If the release fails, a later call finds the machine. It keeps the machine
// if another call has boot data for it: that call deploys it.
func (p *Provider) orRelease(n node, allocated bool, boot activities.BootData) activities.BootData {
	return func(ctx context.Context) (activities.Boot, error) {
		data, err := boot(ctx)
		if err != nil && allocated && !machine.Is(err, machine.ReasonStarting) {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
			defer cancel()
			_ = p.release(undo, n, EraseNone) // the error of boot is the cause
		}
		return data, err
	}
}

// constraints returns what a machine for the spec must have, as parameters of both the list of
// machines and allocate.
func (p *Provider) constraints(s machine.Spec) (url.Values, error) {
	reject := func(format string, args ...any) (url.Values, error) {
		return nil, machine.Errorf(machine.ReasonRejected, format, args...)
	}
	if s.InstanceID == "" || len(s.InstanceID) > 128 {
		return reject("the instance has no valid ID")
	}
	if !text.IsDNSName(s.Host) {
		return reject("the host name of instance %s is not valid", s.InstanceID)
	}
	if s.Spot {
		return reject("MAAS has no spot machines")
	}
	if s.Region != "" && !slices.Contains(p.settings.Zones, s.Region) {
		return reject("MAAS has no configured zone %q", text.Line(s.Region, 64))
	}
	if s.Image != "" && !slices.Contains(p.settings.Images, s.Image) {
		return reject("MAAS has no configured image %q", text.Line(s.Image, 64))
	}
	v := values("zone", s.Region, "pool", p.settings.Pool)
	tags := slices.Clone(p.settings.Tags)
	if s.Type != "" {
		i := slices.IndexFunc(p.settings.Types, func(t Type) bool { return t.ID == s.Type })
		if i < 0 {
			return reject("MAAS has no configured type %q", text.Line(s.Type, 64))
		}
		t := p.settings.Types[i]
		tags = append(tags, t.Tags...)
		if t.CPUs > 0 {
			v.Set("cpu_count", strconv.Itoa(t.CPUs))
		}
		if t.MemoryMiB > 0 {
			v.Set("mem", strconv.Itoa(t.MemoryMiB))
		}
	}
	for _, tag := range tags {
		v.Add("tags", tag)
	}
	return v, nil
}

// candidates is how many machines allocate tries by name.
const candidates = 2

// allocate allocates a machine and returns those of the instance. mine is the ID of the one that
// this call allocated: "" if another call did, or if the response was lost. It first names the
// ready machine that the instance ID selects: so a repeated request, one that arrives late and
// that of another worker compete for the same machine, and only one of them gets it. It then
// leaves the choice to MAAS.
func (p *Provider) allocate(ctx context.Context, instanceID string, constraints url.Values) (_ []node, mine string, err error) {
	ready, err := p.ready(ctx, instanceID, constraints)
	if err != nil {
		return nil, "", err
	}
	ready = append(ready[:min(len(ready), candidates)], "")
	for _, id := range ready {
		form := url.Values{"agent_name": {p.tag(instanceID)}, "comment": {p.tag(instanceID)}}
		maps.Copy(form, constraints)
		if id != "" {
			form.Set("system_id", id)
		}
		n := node{}
		err = p.client.call(ctx, request{what: "allocate a machine", path: "machines/", query: values("op", "allocate"), form: form}, one(&n))
		lost := machine.Is(err, machine.ReasonAmbiguous)
		if err != nil && !conflict(err) && !lost {
			return nil, "", err
		}
		if err == nil {
			mine = n.SystemID
		}
		found, listErr := p.tagged(ctx, instanceID)
		switch {
		case listErr != nil && err == nil:
			return nil, "", machine.Wrap(machine.ReasonAmbiguous, listErr, "a machine is allocated for instance %s, but MAAS does not list it", instanceID)
		case listErr != nil && !lost:
			return nil, "", listErr
		case len(found) > 0:
			return found, mine, nil
		case err == nil:
			return nil, "", machine.Errorf(machine.ReasonAmbiguous, "a machine is allocated for instance %s, but MAAS does not list it", instanceID)
		case lost:
			return nil, "", err
		}
	}
	return nil, "", machine.Wrap(machine.ReasonCapacity, err, "MAAS has no free machine that matches the zone, pool, tags and size")
}

// ready returns the IDs of the machines that can be allocated, in an order that differs between
// instances and is the same for every call of one.
func (p *Provider) ready(ctx context.Context, instanceID string, constraints url.Values) (ids []string, err error) {
	query := values("status", "ready")
	maps.Copy(query, constraints)
	err = p.list(ctx, query, "list the ready machines", func(n node) {
		if n.Status == statusReady {
			ids = append(ids, n.SystemID)
		}
	})
	weight := func(id string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(instanceID + "/" + id)) // a hash does not fail
		return h.Sum64()
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(weight(a), weight(b)), cmp.Compare(a, b)) })
	return ids, err
}

// releaseOthers releases the machines that were allocated for the instance besides n and never
// deployed. It lists them again first, because another worker may have released them.
func (p *Provider) releaseOthers(ctx context.Context, n node, found []node) error {
	if len(found) < 2 {
		return nil
	}
	again, err := p.tagged(ctx, n.instance)
	if err != nil {
		return err
	}
	for _, other := range again {
		if other.SystemID != n.SystemID && other.Status == statusAllocated {
			if err := p.release(ctx, other, EraseNone); err != nil {
				return err
			}
		}
	}
	return nil
}

// deploy annotates and deploys an allocated machine. If another worker has deployed it, it
// returns the machine.
func (p *Provider) deploy(ctx context.Context, n node, s machine.Spec, boot activities.BootData) (node, error) {
	path := "machines/" + n.SystemID + "/"
	if n.note(noteInstance) != s.InstanceID {
		form := values(noteInstallation, p.settings.Installation, noteInstance, s.InstanceID, "gpuaas-host", s.Host)
		err := p.client.call(ctx, request{what: "annotate machine " + n.SystemID, path: path, item: true,
			query: values("op", "set_workload_annotations"), form: form}, ignored)
		if err != nil {
			return n, err
		}
	}
	data, err := boot(ctx)
	if err != nil {
		return n, err
	}
	document, err := userData(data.UserData, s.SSHKeys)
	if err != nil {
		return n, machine.Wrap(machine.ReasonRejected, err, "cannot encode the user data of %s", s.Host)
	}
	encoded := base64.StdEncoding.EncodeToString(document)
	deployed := node{}
	err = p.client.call(ctx, request{what: "deploy machine " + n.SystemID, path: path, item: true, query: values("op", "deploy"),
		form:    values("user_data", encoded, "distro_series", s.Image, "comment", p.tag(s.InstanceID)),
		secrets: []string{encoded, data.Reference, string(data.UserData)}}, one(&deployed))
	switch {
	case conflict(err):
		now, err2 := p.tagged(ctx, s.InstanceID)
		for _, other := range now {
			if err2 == nil && other.SystemID == n.SystemID && other.Status != statusAllocated {
				return other, nil
			}
		}
		return n, err
	case err != nil:
		return n, err
	}
	deployed.instance = s.InstanceID
	return deployed, nil
}
