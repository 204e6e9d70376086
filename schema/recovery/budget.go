package recovery

import "slices"

// overBudget says which budget does not allow one more repair, empty if all do. A budget that is
// malformed, or whose scope has no size, allows none.
func (r *round) overBudget(n patient) string {
	fleet := false
	for _, b := range r.policy.Budgets {
		fleet = fleet || b.Scope == ScopeFleet
		at, applies := b.place(n.Node)
		if !applies {
			continue
		}
		limit, why := r.limit(b, at, n.fault)
		if used := r.sizes[at].Busy + r.started[at]; used >= limit {
			if limit > 0 {
				why = sentence("the budget of %s is used up: %d of %d repairs run", at.name(), used, limit)
			}
			return why
		}
	}
	if !fleet {
		return "the policy has no budget for the fleet: add one"
	}
	return ""
}

// limit returns how many repairs may run at once in a place, and if none may, why.
func (r *round) limit(b Budget, at place, f Fault) (int, string) {
	size, known := r.sizes[at]
	able := r.able(at, f)
	switch {
	case !slices.Contains(scopes(), b.Scope) || b.Count < 0 || b.Percent < 0 || b.Percent > 100:
		return 0, sentence("a budget is malformed (scope %.40q, count %d, percent %d), so it allows none: correct the policy",
			string(b.Scope), b.Count, b.Percent)
	case !known || size.Nodes <= 0 || size.Busy < 0:
		return 0, sentence("the size of %s is not known, so its budget allows none", at.name())
	case b.Count == 0 || b.Percent == 0:
		return 0, sentence("the budget of %s is 0 (count %d, percent %d): raise it in the policy, or repair the node by hand", at.name(), b.Count, b.Percent)
	case able <= 0:
		return 0, sentence("no node of %s can have the fault %s, so its budget allows none", at.name(), f.name())
	}
	limit := min(b.Count, share(b.Percent, able))
	if limit > 0 {
		return limit, ""
	}
	return 0, sentence("the budget of %s is 0: %d %% of its %d nodes, rounded down: set percent to %d or more, or repair the node by hand",
		at.name(), b.Percent, able, (100+able-1)/able)
}

// spend counts a repair that starts in every scope.
func (r *round) spend(n patient) {
	for _, s := range scopes() {
		r.started[place{s, n.key(s)}]++
	}
}

// place returns where the budget counts a node; false if it does not apply to it.
func (b Budget) place(n Node) (place, bool) {
	if b.Scope == ScopeFleet || !slices.Contains(scopes(), b.Scope) {
		return place{b.Scope, ""}, true
	}
	key := n.key(b.Scope)
	return place{b.Scope, key}, key != "" && (b.Key == "" || b.Key == key)
}

// name is how sentences name a place.
func (p place) name() string {
	if p.scope == ScopeFleet {
		return "the fleet"
	}
	return sentence("%s %s", p.scope, p.key)
}

// share returns percent of nodes, rounded down.
func share(percent, nodes int) int { return percent * nodes / 100 }
