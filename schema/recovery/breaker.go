package recovery

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// stepBreaker moves the breaker by one round: it opens, waits, lets one node be repaired, or closes.
func (r *round) stepBreaker() {
	b, within, limit := &r.breaker, time.Duration(r.policy.Breaker.Within), r.breakerLimit()
	storm := r.newlyUnhealthy(r.at.Add(-within))
	if b.OpenSince.IsZero() {
		b.Probing, b.ProbingSince = "", time.Time{}
		if len(storm) >= limit {
			b.OpenSince, b.Why = r.at, r.stormText(storm, limit)
		}
		return
	}
	if len(storm) >= limit && r.at.Sub(b.OpenSince) <= within { // it may have grown
		b.Why = r.stormText(r.newlyUnhealthy(b.OpenSince.Add(-within)), limit)
	}
	if b.Probing != "" {
		r.checkProbe()
	}
	if b.OpenSince.IsZero() || b.Probing != "" {
		return
	}
	halfOpen := b.OpenSince.Add(time.Duration(r.policy.Breaker.HalfOpenAfter))
	if len(storm) >= limit || r.at.Before(halfOpen) {
		return
	}
	switch {
	case !slices.ContainsFunc(r.nodes, patient.treatable):
		r.closeBreaker("no node has a fault, apart from those that are held or that nothing can restart")
	case r.policy.Mode != ModeArmed:
		r.closeBreaker("monitor mode repairs no node, so the breaker closes after " + r.policy.Breaker.HalfOpenAfter.String())
	default:
		r.probe = true
	}
}

// treatable reports whether the node has a fault that a repair can end, and nothing holds it. The others,
// such as nodes that wait for their vendor, are not repaired, so they cannot show that repairs help.
func (n patient) treatable() bool {
	return n.faulty() && n.Held == "" && repairable(n.State) && !n.powerless(n.fault)
}

// until returns the state without times in the future. The clock of the database was set back then, and the
// breaker must not wait until it reaches them.
func (b BreakerState) until(at time.Time) BreakerState {
	for _, t := range []*time.Time{&b.OpenSince, &b.ProbingSince, &b.ClosedAt} {
		if t.After(at) {
			*t = at
		}
	}
	return b
}

func (r *round) closeBreaker(why string) {
	r.breaker = BreakerState{ClosedAt: r.at, Why: sentence("closed at %s: %s", stamp(r.at), why)}
}

// checkProbe reads how the repair of the probed node ended. It waits while the repair runs. After any
// end but a verified one, the time until the next probe starts again.
func (r *round) checkProbe() {
	b := &r.breaker
	i := slices.IndexFunc(r.nodes, func(n patient) bool { return n.NodeID == b.Probing })
	if i < 0 {
		b.Probing, b.ProbingSince = "", time.Time{}
		return
	}
	n := r.nodes[i]
	if _, running := n.running(); running || !r.at.After(b.ProbingSince) {
		return
	}
	if len(n.Attempts) == 0 || n.Attempts[len(n.Attempts)-1].StartedAt.Before(b.ProbingSince) {
		b.Probing, b.ProbingSince = "", time.Time{} // it never started
		return
	}
	last := n.Attempts[len(n.Attempts)-1]
	if last.OperationID != "" && strings.Contains(n.Held, last.OperationID) {
		return // between two rungs
	}
	b.Probing, b.ProbingSince = "", time.Time{}
	if last.Outcome == OutcomeNotBegun {
		return // it shows nothing
	}
	if last.Outcome == OutcomeCured {
		r.closeBreaker(sentence("the repair of %s with rung %s was verified", n.Host, last.Rung))
		return
	}
	b.OpenSince = r.at
	b.Why = sentence("the repair of %s with rung %s, which was to show that repairs help, ended as %s: %s",
		n.Host, last.Rung, cmp.Or(last.Outcome, OutcomeUnknown), r.advice())
}

// newlyUnhealthy returns the nodes with a fault that began after a time. Nodes that an operator holds
// do not count: their faults have a known cause.
func (r *round) newlyUnhealthy(from time.Time) []patient {
	if r.breaker.ClosedAt.After(from) {
		from = r.breaker.ClosedAt
	}
	var storm []patient
	for _, n := range r.nodes {
		if _, running := n.running(); !running && !evidentFree(r, n) {
			continue
		}
		if slices.ContainsFunc(n.faults, func(f seen) bool { return f.fault.Since.After(from) }) {
			storm = append(storm, n)
		}
	}
	return storm
}

// breakerLimit returns how many nodes open the breaker.
func (r *round) breakerLimit() int {
	limit := r.policy.Breaker.Nodes
	if fleet := r.sizes[place{ScopeFleet, ""}]; fleet.Nodes > 0 {
		limit = min(limit, share(r.policy.Breaker.Percent, fleet.Nodes))
	}
	return max(MinCorrelated, limit)
}

// stormText says what opened the breaker and what to do.
func (r *round) stormText(storm []patient, limit int) string {
	fleet := r.sizes[place{ScopeFleet, ""}].Nodes
	return sentence("%d of %d nodes became unhealthy within %s, and the limit is %d: %s: %s",
		len(storm), fleet, r.policy.Breaker.Within, limit, r.shared(storm), r.advice())
}

func (r *round) advice() string {
	return sentence("no repair starts; find the cause, then close the breaker: %s; "+
		"otherwise one node is repaired after %s, and the breaker closes if that repair is verified", r.closeWith, r.policy.Breaker.HalfOpenAfter)
}
