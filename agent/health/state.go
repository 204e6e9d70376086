package health

import (
	"maps"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/device"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

// Limits of the state.
const (
	maxSame   = 16   // events of one kind, device, code and severity
	maxEvents = 1024 // in all
	maxGPUs   = 256
)

// state is what survives a restart of the agent. It is stored as one file, so that an event and the
// cursor behind it are stored together: a crash makes the agent read lines again, and never skip any.
type state struct {
	BootID string `json:"boot_id"`
	// Cursor is the position in the kernel log, of journald or of /dev/kmsg.
	Cursor string `json:"cursor,omitempty"`
	// ReadAt is the time of the last line that was read.
	ReadAt time.Time `json:"read_at,omitzero"`
	// Events are those of this boot, oldest first.
	Events []host.Event `json:"events,omitempty"`
	// Resets are the times of resets in this boot, by UUID.
	Resets map[string]time.Time `json:"resets,omitempty"`
	// GPUs is how many GPUs the node should have: by its SKU, or the most that were seen.
	GPUs int `json:"gpus,omitempty"`
	// UUIDs are the GPUs that were seen, by bus address.
	UUIDs map[string]string `json:"uuids,omitempty"`
	// Links is the largest number of NVLinks that were up at once, by UUID.
	Links map[string]int `json:"links,omitempty"`
	// Ports are the ports of RDMA adapters that were active.
	Ports   map[string]bool `json:"ports,omitempty"`
	History host.History    `json:"history"`
	Report  health.Report   `json:"report"`
}

func (m *Monitor) file() string { return m.conf.State.File("health.json") }

// load reads the stored state. One of an earlier boot keeps what the machine has, and not what
// happened to it. A damaged state is that of a new machine.
func (m *Monitor) load() state {
	var s state
	if _, err := m.conf.State.ReadJSON(m.file(), &s); err != nil {
		m.conf.Log.Warn("the state of the health checks begins again", "err", err.Error())
		s = state{}
	}
	if s.BootID != m.conf.BootID {
		s.BootID, s.Events, s.Resets = m.conf.BootID, nil, nil
	}
	if s.Resets == nil {
		s.Resets = map[string]time.Time{}
	}
	if s.UUIDs == nil {
		s.UUIDs = map[string]string{}
	}
	if s.Ports == nil {
		s.Ports = map[string]bool{}
	}
	if s.Links == nil {
		s.Links = map[string]int{}
	}
	return s
}

// complete adds what the state has to a sample, and learns from the sample. gpus is the number of the
// SKU, 0 if it is not known.
func (s *state) complete(sample *host.Sample, gpus int) {
	if _, missing := sample.Missing[host.InputGPUs]; !missing {
		s.learn(sample)
	}
	if _, missing := sample.Missing[host.InputInfiniBand]; !missing {
		s.learnPorts(sample)
	}
	if gpus > 0 {
		s.GPUs = gpus
	}
	sample.ExpectedGPUs, sample.Events, sample.UUIDs = s.GPUs, s.Events, maps.Clone(s.UUIDs)
	for i := range sample.GPUs {
		g := &sample.GPUs[i]
		g.ResetAt, g.ExpectedLinks = s.Resets[g.UUID], s.Links[g.UUID]
		if g.ExpectedLinks == 0 {
			g.Links = nil // a GPU without a bridge lists links that are down
		}
	}
}

// learn keeps the GPUs of a sample and their links.
func (s *state) learn(sample *host.Sample) {
	s.GPUs = max(s.GPUs, len(sample.GPUs))
	for _, g := range sample.GPUs {
		if g.UUID == "" {
			continue
		}
		up := 0
		for _, l := range g.Links {
			if l.Up {
				up++
			}
		}
		if up > s.Links[g.UUID] && len(s.Links) < maxGPUs {
			s.Links[g.UUID] = up
		}
		if address := device.PCIAddress(g.PCI); address != "" && len(s.UUIDs) < maxGPUs {
			s.UUIDs[address] = g.UUID
		}
	}
}

// keep adds events of this boot. Many events of one kind and code must not displace others.
func (s *state) keep(events []host.Event) {
	for _, e := range events {
		if e.BootID != s.BootID {
			continue
		}
		same := func(o host.Event) bool {
			return o.Kind == e.Kind && o.Device == e.Device && o.Code == e.Code && o.Fatal == e.Fatal
		}
		count := 0
		for _, o := range s.Events {
			if same(o) {
				count++
			}
		}
		if count >= maxSame {
			i := slices.IndexFunc(s.Events, same)
			s.Events = slices.Delete(s.Events, i, i+1)
		}
		s.Events = append(s.Events, e)
	}
	s.Events = slices.Clone(s.Events[max(0, len(s.Events)-maxEvents):])
}
