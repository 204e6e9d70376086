// Package machine describes machines at their provider: what is asked for, what the provider
// reports, what it offers, and how its calls fail.
package machine

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Spec is the machine that a provider creates for an instance.
type Spec struct {
	// InstanceID is the key of the creation and the machine's owner tag: two calls with one ID
	// create one machine.
	InstanceID string `json:"instance_id"`
	NodeID     string `json:"node_id"`
	// Host is the name of the node, and of the machine where the provider names machines.
	Host string `json:"host"`
	Options
}

// Options choose the machine that a provisioning creates. Region, Type and Image are IDs of the
// provider's Catalog, empty for its default.
type Options struct {
	Region string `json:"region,omitempty"`
	Type   string `json:"type,omitempty"`
	Image  string `json:"image,omitempty"`
	// Spot asks for a machine that the provider may end at any time.
	Spot bool `json:"spot,omitempty"`
	// SSHKeys are public keys in the format of authorized_keys, for access in an emergency.
	SSHKeys []string `json:"ssh_keys,omitempty"`
}

// Limits of Options.
const (
	maxOption  = 64
	maxSSHKeys = 16
	maxSSHKey  = 1024
)

// Given reports whether an option is set.
func (o Options) Given() bool {
	return o.Region != "" || o.Type != "" || o.Image != "" || o.Spot || len(o.SSHKeys) > 0
}

// Valid reports whether the options are short lines, and there are at most 16 keys.
func (o Options) Valid() bool {
	for _, s := range []string{o.Region, o.Type, o.Image} {
		if s != "" && !text.IsToken(s, maxOption, "-._/") {
			return false
		}
	}
	return len(o.SSHKeys) <= maxSSHKeys && !slices.ContainsFunc(o.SSHKeys, func(k string) bool { return !text.IsLine(k, maxSSHKey) })
}

// Allows reports whether a request with other options can use a machine with these: it names
// none, or the same ones.
func (o Options) Allows(request Options) bool {
	same := func(is, asked string) bool { return asked == "" || asked == is }
	return same(o.Region, request.Region) && same(o.Type, request.Type) && same(o.Image, request.Image) && (!request.Spot || o.Spot) &&
		(len(request.SSHKeys) == 0 || slices.Equal(o.SSHKeys, request.SSHKeys))
}

// Ref identifies the machine of an instance.
type Ref struct {
	InstanceID string `json:"instance_id"`
	// ExternalID is the provider's ID of the machine, empty if it is not known: then the
	// provider finds the machine by its owner tag.
	ExternalID string `json:"external_id,omitempty"`
	Host       string `json:"host"`
	Region     string `json:"region,omitempty"`
}

// Phase is what a machine does, as its provider reports it.
type Phase string

// The phases. A machine that no longer exists has none: see ReasonMissing.
const (
	Creating Phase = "creating"
	Running  Phase = "running"
	Stopped  Phase = "stopped"
	Deleting Phase = "deleting"
	Failed   Phase = "failed" // it does not become Running without help
)

// Phases lists the phases.
func Phases() []Phase { return []Phase{Creating, Running, Stopped, Deleting, Failed} }

// Machine is what a provider reports about a machine.
type Machine struct {
	Ref
	Phase Phase `json:"phase"`
	// Detail is the provider's own state or error in one line. It is untrusted.
	Detail string `json:"detail,omitempty"`
	// Type is the provider's type of the machine, if the provider has types.
	Type string `json:"type,omitempty"`
	// CreatedAt is zero if the provider does not report it.
	CreatedAt time.Time `json:"created_at,omitzero"`
}

// Power is a change of a machine's power.
type Power string

// The changes. Reset is a hard reset: the machine gets no time to stop.
const (
	PowerOn    Power = "on"
	PowerOff   Power = "off"
	PowerReset Power = "reset"
)

// MaxConsole is the largest tail of a console in bytes.
const MaxConsole = 16 << 10

// Info describes a provider to operators and to the rules of provisioning.
type Info struct {
	// Name is the provider's name in the inventory, for example libvirt.
	Name string `json:"name"`
	// Creates is set if the provider creates machines, so that a node can be provisioned
	// before it is enrolled.
	Creates bool `json:"creates"`
	// Disabled says why the provider cannot be used now, empty if it can.
	Disabled string `json:"disabled,omitempty"`
	// Host is the host that has the machines, if only its workers can reach them.
	Host string `json:"host,omitempty"`
	Catalog
	Limits Limits `json:"limits,omitzero"`
}

// DescriptionLife is how long a description of a provider stays without the worker that stored
// it, which stores it again every DescriptionLife/3.
const DescriptionLife = 3 * time.Minute

// Provider is a provider as the admin API returns it.
type Provider struct {
	Info
	// UpdatedAt is when a worker last stored the description.
	UpdatedAt time.Time `json:"updated_at"`
}

// Providers is the response of GET /api/v1/admin/providers.
type Providers struct {
	Providers []Provider `json:"providers"`
}

// Catalog is what a provider offers. A provider without regions, types or images accepts no
// value for them.
type Catalog struct {
	Regions []string `json:"regions,omitempty"`
	Types   []Type   `json:"types,omitempty"`
	Images  []string `json:"images,omitempty"`
	// Spot is set if the provider has machines that it may end at any time.
	Spot bool `json:"spot,omitempty"`
	// Defaults are what a creation without a choice gets: regions, types and images of the provider,
	// each empty if it depends on the machines that are free.
	Defaults Options `json:"defaults,omitzero"`
	// TakesSSHKeys is set if the provider passes SSH keys to its machines.
	TakesSSHKeys bool `json:"takes_ssh_keys,omitempty"`
}

// ReasonNotOffered is the reason of Info.Check.
const ReasonNotOffered = "machine_not_offered"

// Check returns an error of KindInvalidRequest that names what the provider offers, if it does
// not offer a machine with the options.
func (i Info) Check(o Options) error {
	var types []string
	for _, t := range i.Types {
		if t.in(o.Region) {
			types = append(types, t.ID)
		}
	}
	for _, c := range []struct {
		what, value string
		offered     []string
	}{{"region", o.Region, i.Regions}, {"type", o.Type, types}, {"image", o.Image, i.Images}} {
		switch {
		case c.value == "" || slices.Contains(c.offered, c.value):
		case len(c.offered) == 0:
			return i.lacks("provider %q has no %ss to choose from", i.Name, c.what)
		default:
			return i.lacks("provider %q has no %s %q: it has %s", i.Name, c.what, c.value, strings.Join(c.offered, ", "))
		}
	}
	switch {
	case o.Spot && !i.Spot:
		return i.lacks("provider %q has no spot machines", i.Name)
	case len(o.SSHKeys) > 0 && !i.TakesSSHKeys:
		return i.lacks("provider %q passes no SSH keys to its machines", i.Name)
	}
	return nil
}

// TypeFor returns the first type in the region that has at least the CPUs and GPUs, and more memory
// than memoryBytes, because a system uses a part of its machine's memory. It is empty if there is
// none.
func (i Info) TypeFor(region string, cpus, gpus int, memoryBytes int64) string {
	for _, t := range i.Types {
		if t.in(region) && t.CPUs >= cpus && t.GPUs >= gpus && int64(t.MemoryMiB)<<20 > memoryBytes {
			return t.ID
		}
	}
	return ""
}

// Chosen returns the options of a creation: what was asked for, then the type, which fits the node
// and may be empty, then the defaults that the provider has together with these.
func (i Info) Chosen(asked Options, fits string) Options {
	o := asked
	o.Type = cmp.Or(asked.Type, fits)
	for _, d := range []struct {
		value *string
		or    string
	}{{&o.Region, i.Defaults.Region}, {&o.Type, i.Defaults.Type}, {&o.Image, i.Defaults.Image}} {
		was := *d.value
		if *d.value = cmp.Or(was, d.or); was == "" && i.Check(o) != nil {
			*d.value = was
		}
	}
	return o
}

func (i Info) lacks(format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, format, args...).WithReason(ReasonNotOffered).WithNext("gpuaas provider show " + i.Name)
}

// Type is a size of machine.
type Type struct {
	ID        string `json:"id"`
	CPUs      int    `json:"cpus"`
	MemoryMiB int    `json:"memory_mib"`
	GPUs      int    `json:"gpus,omitempty"`
	GPUModel  string `json:"gpu_model,omitempty"`
	// Regions are those that have the type, empty if all have.
	Regions []string `json:"regions,omitempty"`
}

// in reports whether the region has the type. An empty region is any.
func (t Type) in(region string) bool {
	return region == "" || len(t.Regions) == 0 || slices.Contains(t.Regions, region)
}

// Limits bound the phases of a provisioning and a teardown. Zero is the default of the phase. In
// JSON they are whole seconds.
type Limits struct {
	// Create bounds the time from the creation until the machine is Running, Boot that from
	// then until the first request of its agent, and Delete a deletion.
	Create, Boot, Delete time.Duration
}

type limitsJSON struct {
	Create int64 `json:"create_seconds,omitempty"`
	Boot   int64 `json:"boot_seconds,omitempty"`
	Delete int64 `json:"delete_seconds,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (l Limits) MarshalJSON() ([]byte, error) {
	return json.Marshal(limitsJSON{int64(l.Create / time.Second), int64(l.Boot / time.Second), int64(l.Delete / time.Second)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *Limits) UnmarshalJSON(b []byte) error {
	var s limitsJSON
	err := json.Unmarshal(b, &s)
	*l = Limits{time.Duration(s.Create) * time.Second, time.Duration(s.Boot) * time.Second, time.Duration(s.Delete) * time.Second}
	return err
}
