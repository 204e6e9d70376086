// Package example is the provider of docs/howto/add-a-provider.md: an adapter for the HTTP API of
// an invented cloud, Acme.
package example

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Provider implements activities.MachineProvider.
type Provider struct {
	url    string
	key    schema.Secret
	client *http.Client
}

// Info is what Acme offers.
func Info() machine.Info {
	return machine.Info{Name: "acme", Creates: true, Catalog: machine.Catalog{
		Regions: []string{"east", "west"}, Images: []string{"gpu-node"}, Types: []machine.Type{{ID: "a1", CPUs: 8, MemoryMiB: 65536, GPUs: 1}},
		Defaults: machine.Options{Region: "east", Type: "a1", Image: "gpu-node"}}}
}

// New returns the provider. Connections are not reused, because http.Transport repeats a request
// that fails on a used connection, and the port leaves repetition to the caller.
func New(address string, key schema.Secret) activities.Source {
	return activities.Source{Info: Info(), Provider: &Provider{address, key, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}}
}

type vm struct {
	ID, Owner, Host, Region, Type, Image, Note string
	Status                                     machine.Phase
	UserData                                   []byte
}

func (v vm) machine() machine.Machine {
	if !slices.Contains(machine.Phases(), v.Status) {
		v.Status = machine.Failed
	}
	return machine.Machine{Ref: machine.Ref{InstanceID: v.Owner, ExternalID: v.ID, Host: v.Host, Region: v.Region}, Phase: v.Status, Type: v.Type, Detail: text.Line(v.Note, 300)}
}

// Create implements activities.MachineProvider. Acme keeps one machine for each owner.
func (p *Provider) Create(ctx context.Context, s machine.Spec, boot activities.BootData) (machine.Machine, error) {
	i, known := Info(), func(t machine.Type) bool { return t.ID == s.Type }
	if !schema.IsID(s.InstanceID) || !text.IsHost(s.Host) || !slices.Contains(i.Regions, s.Region) || !slices.ContainsFunc(i.Types, known) || !slices.Contains(i.Images, s.Image) {
		return machine.Machine{}, machine.Errorf(machine.ReasonRejected, "Acme has no machine for the host, region, type and image that were requested")
	}
	v, err := p.find(ctx, machine.Ref{InstanceID: s.InstanceID})
	if !machine.Is(err, machine.ReasonMissing) {
		return v.machine(), err
	}
	data, err := boot(ctx)
	if err != nil {
		return machine.Machine{}, err
	}
	v = vm{Owner: s.InstanceID, Host: s.Host, Region: s.Region, Type: s.Type, Image: s.Image, UserData: data.UserData}
	err = p.call(ctx, http.MethodPost, "/machines", v, &v)
	return v.machine(), err
}

// find returns the machine with the owner tag, and with the external ID if there is one.
func (p *Provider) find(ctx context.Context, r machine.Ref) (vm, error) {
	var all []vm
	if err := p.call(ctx, http.MethodGet, "/machines?owner="+url.QueryEscape(r.InstanceID), nil, &all); err != nil {
		return vm{}, err
	}
	for _, v := range all {
		if r.InstanceID != "" && v.Owner == r.InstanceID && v.ID == cmp.Or(r.ExternalID, v.ID) {
			return v, nil
		}
	}
	return vm{}, machine.Errorf(machine.ReasonMissing, "Acme has no machine of this instance")
}

// Describe implements activities.MachineProvider.
func (p *Provider) Describe(ctx context.Context, r machine.Ref) (machine.Machine, error) {
	v, err := p.find(ctx, r)
	return v.machine(), err
}

// Power implements activities.MachineProvider.
func (p *Provider) Power(ctx context.Context, r machine.Ref, change machine.Power) error {
	v, err := p.find(ctx, r)
	if err != nil {
		return err
	}
	return p.call(ctx, http.MethodPost, "/machines/"+url.PathEscape(v.ID)+"/power", change, nil)
}

// Console implements activities.MachineProvider.
func (p *Provider) Console(ctx context.Context, r machine.Ref) (tail []byte, err error) {
	v, err := p.find(ctx, r)
	if err == nil {
		err = p.call(ctx, http.MethodGet, "/machines/"+url.PathEscape(v.ID)+"/console", nil, &tail)
	}
	return tail[max(0, len(tail)-machine.MaxConsole):], err
}

// Delete implements activities.MachineProvider. Acme deletes by owner, with the disks.
func (p *Provider) Delete(ctx context.Context, r machine.Ref) error {
	return p.call(ctx, http.MethodDelete, "/machines?owner="+url.QueryEscape(r.InstanceID), nil, nil)
}

// List implements activities.MachineProvider.
func (p *Provider) List(ctx context.Context) (machines []machine.Machine, err error) {
	var all []vm
	err = p.call(ctx, http.MethodGet, "/machines", nil, &all)
	for _, v := range all {
		if v.Owner != "" {
			machines = append(machines, v.machine())
		}
	}
	return machines, err
}

// call sends one request. It is the only place where an answer becomes a reason.
func (p *Provider) call(ctx context.Context, method, path string, in, out any) error {
	body, _ := json.Marshal(in) // plain data
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(body))
	if err != nil || ctx.Err() != nil {
		return machine.Wrap(machine.ReasonUnavailable, cmp.Or(ctx.Err(), err), "the request to Acme was not sent")
	}
	req.Header.Set("Authorization", "Bearer "+p.key.Reveal())
	uncertain := machine.ReasonUnavailable
	if method != http.MethodGet {
		uncertain = machine.ReasonAmbiguous
	}
	resp, err := p.client.Do(req)
	if dial := new(net.OpError); errors.As(err, &dial) && dial.Op == "dial" {
		return machine.Wrap(machine.ReasonUnavailable, err, "Acme cannot be reached")
	}
	if err != nil {
		return machine.Wrap(uncertain, err, "Acme did not answer a %s request", method)
	}
	defer resp.Body.Close()
	reasons := map[int]string{http.StatusUnauthorized: machine.ReasonAuth, http.StatusPaymentRequired: machine.ReasonQuota, http.StatusInsufficientStorage: machine.ReasonCapacity,
		http.StatusServiceUnavailable: machine.ReasonUnavailable, http.StatusBadRequest: machine.ReasonRejected, http.StatusNotFound: machine.ReasonMissing}
	if resp.StatusCode != http.StatusOK { // the text of the answer may echo the key
		return machine.Errorf(cmp.Or(reasons[resp.StatusCode], uncertain), "Acme answered a %s request with status %d", method, resp.StatusCode)
	}
	if err = json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(out); err != nil && out != nil {
		return machine.Wrap(uncertain, err, "the answer of Acme to a %s request cannot be parsed", method)
	}
	return nil
}
