package recovery

import "slices"

// overBudget says which budget does not allow one more repair, empty if all do. A budget that is
// malformed, or whose scope has no size, allows none.
func (r *round) overBudget(n patient) string {
	for _, b := range slices.Concat(r.policy.Budgets, r.policy.MaxOut) {
		if !slices.Contains(scopes(), b.Scope) {
			return sentence("a budget has the scope %.40q, which does not exist, so it allows none: correct the policy", string(b.Scope))
		}
	}
	for _, s := range scopes() {
		at := place{s, n.key(s)}
		b, ok := budgetOf(r.policy.Budgets, at)
		if !ok && s == ScopeFleet {
			return "the policy has no budget for the fleet: add one"
		}
		if ok {
			limit, why := r.limit(b, at, n.fault)
			if limit == 0 {
				return why
			}
			if used := r.sizes[at].Busy + r.started[at]; used >= limit {
				return sentence("the budget of %s is used up: %d of %d repairs run", at.name(), used, limit)
			}
		}
		if why := overMaxOut(r, at); why != "" {
			return why
		}
	}
	return ""
}

// overMaxOut says why one more node of the place may not be out of service, empty if it may.
func overMaxOut(r *round, at place) string {
	b, ok := budgetOf(r.policy.MaxOut, at)
	size, known := r.sizes[at]
	running := size.Busy + r.started[at]
	limit := min(b.Count, max(MinCorrelated, share(b.Percent, size.Nodes)))
	switch {
	case !ok:
		return ""
	case b.Count < 0 || b.Percent < 0 || b.Percent > 100:
		return sentence("max_out of %s is malformed (count %d, percent %d), so it allows none: correct the policy", at.name(), b.Count, b.Percent)
	case !known || size.Nodes <= 0 || size.Busy < 0 || size.Out < 0:
		return sentence("how many nodes of %s are out of service is not known, so max_out allows no more", at.name())
	case b.Count == 0 || b.Percent == 0:
		return sentence("max_out of %s is 0 (count %d, percent %d): raise it in the policy, or repair the node by hand", at.name(), b.Count, b.Percent)
	case size.Out+running >= limit:
		return sentence("max_out of %s is used up: health recovery quarantined %d nodes and repairs %d now, and %d may be out of service: "+
			"release the quarantined nodes, or raise max_out in the policy", at.name(), size.Out, running, limit)
	}
	return ""
}

// budgetOf returns the budget of a place: the one with its key, otherwise the one for each place of the
// scope.
func budgetOf(all []Budget, at place) (Budget, bool) {
	general, found := Budget{}, false
	for _, b := range all {
		switch {
		case b.Scope != at.scope || at.key == "" && at.scope != ScopeFleet:
		case b.Key == at.key:
			return b, true
		case b.Key == "":
			general, found = b, true
		}
	}
	return general, found
}

// Limit returns how many repairs may run at once in a scope, for faults that all of its nodes can have.
// false means that no budget limits the scope.
func (p Policy) Limit(s Size) (limit int, limited bool) {
	at := place{s.Scope, s.Key}
	b, ok := budgetOf(p.Budgets, at)
	if !ok {
		return 0, false
	}
	r := round{sizes: map[place]Size{at: s}}
	limit, _ = r.limit(b, at, Fault{})
	return limit, true
}

// limit returns how many repairs may run at once in a place, and if none may, why.
func (r *round) limit(b Budget, at place, f Fault) (int, string) {
	size, known := r.sizes[at]
	able := r.able(at, f)
	switch {
	case b.Count < 0 || b.Percent < 0 || b.Percent > 100:
		return 0, sentence("the budget of %s is malformed (count %d, percent %d), so it allows none: correct the policy", at.name(), b.Count, b.Percent)
	case !known || size.Nodes <= 0 || size.Busy < 0:
		return 0, sentence("the size of %s is not known, so its budget allows none", at.name())
	case b.Count == 0 || b.Percent == 0:
		return 0, sentence("the budget of %s is 0 (count %d, percent %d): raise it in the policy, or repair the node by hand", at.name(), b.Count, b.Percent)
	case able <= 0:
		return 0, sentence("no node of %s is registered with GPUs, so its budget allows no repair of a GPU: "+
			"register the node with a SKU that has GPUs, or repair it by hand", at.name())
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

// name is how sentences name a place.
func (p place) name() string {
	if p.scope == ScopeFleet {
		return "the fleet"
	}
	return sentence("%s %s", p.scope, p.key)
}

// share returns percent of nodes, rounded down.
func share(percent, nodes int) int { return percent * nodes / 100 }
