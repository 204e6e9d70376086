package replay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/gpuaas/gpuaas/schema/recovery"
)

type event struct{ kind, name string }

type place struct {
	scope recovery.Scope
	key   string
}

// places returns the places that a repair of the node counts in.
func places(n recovery.Node) []place {
	all := []place{{recovery.ScopeFleet, ""}}
	for _, p := range []place{{recovery.ScopeRegion, n.Region}, {recovery.ScopeSKU, n.SKU}, {recovery.ScopeRack, n.Rack}} {
		if p.key != "" {
			all = append(all, p)
		}
	}
	return all
}

// countPlaces counts the node in its places.
func countPlaces(counts map[place]int, n recovery.Node) {
	for _, p := range places(n) {
		counts[p]++
	}
}

// highest returns the higher count of each place.
func highest(most, now map[place]int) map[place]int {
	for p, count := range now {
		most[p] = max(most[p], count)
	}
	return most
}

// count counts what is new in the decisions of a round.
func (s *simulation) count(r recovery.Result) {
	for _, d := range r.Decisions {
		now := choice(d).bare()
		if s.choices[d.NodeID] != now && d.Brake != "" {
			s.events[event{CountBrake, string(d.Brake)}]++
		}
		s.choices[d.NodeID] = now
		if d.Acts() {
			s.events[event{CountAction, string(d.Rung)}]++
			s.events[event{CountSKU, s.known[d.NodeID].SKU}]++
			s.events[event{CountFault, faultName(d.Fault)}]++
			s.touched[d.NodeID] = true
		}
	}
	open := map[incident]bool{}
	for _, in := range r.Incidents {
		key := incident{in.Scope, in.Key, in.Fault.Checker, in.Fault.Reason}
		if open[key] = true; !s.incidents[key] {
			s.events[event{CountIncident, string(in.Scope)}]++
		}
	}
	s.incidents = open
	if s.breaker.OpenSince.IsZero() && !r.Breaker.OpenSince.IsZero() {
		s.events[event{CountBreaker, "open"}]++
	}
}

type incident struct {
	scope               recovery.Scope
	key, checker, cause string
}

func faultName(f recovery.Fault) string {
	if f.Code == 0 {
		return f.Checker + " " + f.Reason
	}
	return fmt.Sprintf("%s %s %d", f.Checker, f.Reason, f.Code)
}

func counts(a, b *simulation) []Count {
	all := map[event]Count{}
	for e, n := range a.totals() {
		all[e] = Count{Kind: e.kind, Name: e.name, Old: n}
	}
	for e, n := range b.totals() {
		c := all[e]
		c.Kind, c.Name, c.New = e.kind, e.name, n
		all[e] = c
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
}

func (s *simulation) totals() map[event]int {
	all := maps.Clone(s.events)
	if len(s.touched) > 0 {
		all[event{CountNodes, "repaired"}] = len(s.touched)
	}
	return all
}

func peaks(before, after map[place]int) []Peak {
	all := map[place]Peak{}
	for p, n := range before {
		all[p] = Peak{Scope: p.scope, Key: p.key, Old: n}
	}
	for p, n := range after {
		c := all[p]
		c.Scope, c.Key, c.New = p.scope, p.key, n
		all[p] = c
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Peak) int {
		return cmp.Or(-cmp.Compare(max(a.Old, a.New), max(b.Old, b.New)), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key))
	})
}
