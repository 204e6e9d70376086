package recovery

// Decide returns the decisions of one round: one for each node, those with the longest fault first.
// It depends on nothing but its arguments, and the order of nodes, conditions, attempts and sizes in
// f does not matter. It never changes p or f.
//
// In monitor mode a decision has the brake that would stop an armed policy, or BrakeMonitor if none
// would. In both modes, the repairs that the round starts count against the budgets for the rest of
// the round only: f.Sizes has those that run.
func Decide(p Policy, f Fleet) Result {
	r := newRound(p, f)
	r.findIncidents()
	r.stepBreaker()
	result := Result{Decisions: make([]Decision, 0, len(r.nodes)), Incidents: r.incidents}
	for _, n := range r.nodes {
		result.Decisions = append(result.Decisions, r.decide(n))
	}
	result.Breaker = r.breaker
	return result
}

// Acts reports whether a repair starts.
func (d Decision) Acts() bool { return d.Rung != "" && d.Brake == "" }
