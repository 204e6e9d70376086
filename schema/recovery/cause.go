package recovery

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// maxNamed is how many names a sentence lists.
const maxNamed = 5

// shared says what most of the nodes have in common: the fault, the racks, the SKU, the region. What
// most of the fleet has in common with them is no cause.
func (r *round) shared(nodes []patient) string {
	fault, with := top(nodes, func(n patient) Fault { return n.fault.cause() })
	parts := []string{sentence("%d have different faults", len(nodes))}
	if 2*with > len(nodes) {
		parts[0] = sentence("%d have %s", with, fault.name())
	}
	parts = append(parts, r.sharedPlace(nodes, ScopeRegion)...)
	parts = append(parts, r.sharedPlace(nodes, ScopeSKU)...)
	racks := values(nodes, func(n patient) string { return n.Rack })
	if n := len(racks); n > 0 && 2*n < len(nodes) {
		parts = append(parts, sentence("they are in %s", named("rack", racks)))
	}
	return strings.Join(parts, ", ")
}

// sharedPlace names the region or the SKU of most of the nodes, unless most of the fleet has it too.
func (r *round) sharedPlace(nodes []patient, s Scope) []string {
	key, with := top(nodes, func(n patient) string { return n.key(s) })
	in, all := r.sizes[place{s, key}].Nodes, r.sizes[place{ScopeFleet, ""}].Nodes
	if key == "" || 2*with <= len(nodes) || 4*with*all <= 5*in*len(nodes) {
		return nil
	}
	return []string{sentence("%d have %s %s", with, s, key)}
}

// top returns the most frequent value and how many nodes have it; of several, the first one.
func top[T comparable](nodes []patient, value func(patient) T) (T, int) {
	counts := map[T]int{}
	for _, n := range nodes {
		counts[value(n)]++
	}
	var best T
	for _, n := range nodes { // the order of nodes, not that of the map
		if v := value(n); counts[v] > counts[best] {
			best = v
		}
	}
	return best, counts[best]
}

// values returns the values that nodes have, sorted, without the empty one.
func values[T cmp.Ordered](nodes []patient, value func(patient) T) []T {
	set := map[T]bool{}
	for _, n := range nodes {
		set[value(n)] = true
	}
	var zero T
	delete(set, zero)
	return slices.Sorted(maps.Keys(set))
}

// named lists names for a sentence: "rack a", "3 racks (a, b, c)".
func named(what string, names []string) string {
	if len(names) == 1 {
		return what + " " + names[0]
	}
	few := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if len(names) > maxNamed {
		few += ", ..."
	}
	return sentence("%d %ss (%s)", len(names), what, few)
}

func hosts(nodes []patient) []string {
	all := make([]string, 0, len(nodes))
	for _, n := range nodes {
		all = append(all, n.Host)
	}
	slices.Sort(all)
	return all
}
