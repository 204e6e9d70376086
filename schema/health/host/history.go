package host

import (
	"fmt"
	"time"
)

// maxCounters bounds a History.
const maxCounters = 4096

// History keeps the earlier values of the counters of samples, so that a check sees how much they
// increased. Its JSON form carries it over a restart of the agent. The zero value is ready: the first
// value of a counter is no increase, however large it is.
type History struct {
	Counters map[string]Past `json:"counters"`
}

// Past is what a History keeps of one counter: its last value, and how much it increased in the present
// and in the previous Window.
type Past struct {
	Last     uint64    `json:"last"`
	Start    time.Time `json:"start"` // of the present window
	Present  uint64    `json:"present,omitempty"`
	Previous uint64    `json:"previous,omitempty"`
}

// Fill sets the Increase of every counter of the sample, and forgets counters that the sample does not
// have if their input could be read.
func (h *History) Fill(s *Sample) {
	next := map[string]Past{}
	counters := s.counters()
	for name, c := range counters {
		if len(next) == maxCounters {
			break
		}
		past := h.Counters[name].advance(c.Total, s.At)
		c.Increase = past.Present + past.Previous
		next[name] = past
	}
	if len(s.Missing) > 0 {
		for name, past := range h.Counters {
			if _, read := counters[name]; !read && len(next) < maxCounters {
				next[name] = past
			}
		}
	}
	h.Counters = next
}

// advance returns the past with a new value. A smaller value means that the counter began again, for
// example at the start of the driver.
func (p Past) advance(total uint64, at time.Time) Past {
	if p.Start.IsZero() || at.Before(p.Start) {
		return Past{Last: total, Start: at}
	}
	switch age := at.Sub(p.Start); {
	case age >= 2*Window:
		p.Present, p.Previous, p.Start = 0, 0, at
	case age >= Window:
		p.Present, p.Previous, p.Start = 0, p.Present, at
	}
	grown := total
	if total >= p.Last {
		grown = total - p.Last
	}
	p.Present += grown
	p.Last = total
	return p
}

// counters returns the counters of the sample by a name that stays over samples.
func (s *Sample) counters() map[string]*Counter {
	all := map[string]*Counter{}
	add := func(c *Counter, name string, parts ...any) {
		if c != nil {
			all[fmt.Sprintf(name, parts...)] = c
		}
	}
	for _, g := range s.GPUs {
		add(g.ECCVolatile, "%s/ecc_volatile", g.UUID)
		add(g.ECCAggregate, "%s/ecc_aggregate", g.UUID)
		add(g.RemapCorrectable, "%s/remap_correctable", g.UUID)
		add(g.RemapUncorrectable, "%s/remap_uncorrectable", g.UUID)
		add(g.RetiredPages, "%s/retired_pages", g.UUID)
		for _, l := range g.Links {
			add(l.Errors, "%s/link_%d", g.UUID, l.ID)
		}
	}
	for _, d := range s.Disks {
		add(d.Errors, "disk/%s", d.Name)
	}
	for _, p := range s.Ports {
		add(p.LinkDowned, "port/%s/link_downed", p.Name)
		add(p.SymbolErrors, "port/%s/symbol_errors", p.Name)
	}
	for _, service := range s.Services {
		add(service.Restarts, "service/%s", service.Name)
	}
	return all
}
