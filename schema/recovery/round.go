package recovery

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// place is one scope with its key.
type place struct {
	scope Scope
	key   string
}

// A round is the state of one call of Decide.
type round struct {
	policy  Policy
	at      time.Time
	sizes   map[place]Size
	started map[place]int // repairs that this round starts, or would in monitor mode
	nodes   []patient     // the longest fault first
	breaker BreakerState
	// closeWith is how an operator closes the breaker.
	closeWith string
	// probe is set while the round may still choose the node that the half-open breaker repairs.
	probe     bool
	frozen    map[string]freeze // by node ID
	incidents []Incident
	before    []Incident // of the last round
}

// freeze is the brake of a node whose fault is that of many.
type freeze struct {
	brake Brake
	why   string
}

func newRound(p Policy, f Fleet) *round {
	r := &round{
		policy: p, at: f.At, breaker: f.Breaker.until(f.At), before: f.Incidents,
		closeWith: cmp.Or(f.CloseWith, "gpuaas recovery breaker close --reason TEXT"),
		sizes:     map[place]Size{}, started: map[place]int{}, frozen: map[string]freeze{},
	}
	for _, s := range f.Sizes {
		at := place{s.Scope, s.Key}
		if known, twice := r.sizes[at]; twice { // two rows of one scope: the careful figures
			s.Nodes, s.GPUNodes = min(s.Nodes, known.Nodes), min(s.GPUNodes, known.GPUNodes)
			s.Busy, s.Out = max(s.Busy, known.Busy), max(s.Out, known.Out)
		}
		r.sizes[at] = s
	}
	for _, n := range f.Nodes {
		r.nodes = append(r.nodes, newPatient(p, n, f.At))
	}
	slices.SortStableFunc(r.nodes, func(a, b patient) int {
		return cmp.Or(-compareBool(a.faulty(), b.faulty()), a.fault.Since.Compare(b.fault.Since),
			cmp.Compare(a.Host, b.Host), cmp.Compare(a.NodeID, b.NodeID), cmp.Compare(len(a.Attempts), len(b.Attempts)))
	})
	seen := map[string]bool{}
	r.nodes = slices.DeleteFunc(r.nodes, func(n patient) bool {
		twice := seen[n.NodeID]
		seen[n.NodeID] = true
		return twice
	})
	return r
}

// able returns how many nodes of a scope can show a fault.
func (r *round) able(at place, f Fault) int {
	if gpuFault(f.Checker) {
		return r.sizes[at].GPUNodes
	}
	return r.sizes[at].Nodes
}

// evident reports whether the node's fault is evidence about its surroundings: enough checks saw it,
// and neither a boot nor a maintenance explains it.
func (r *round) evident(n patient) bool {
	return n.samples >= r.policy.Samples && r.unplanned(n)
}

// evidentFree is evident for a node that no one holds: the faults of the others have a known cause.
func evidentFree(r *round, n patient) bool {
	return n.Held == "" && repairable(n.State) && r.evident(n)
}

// unplanned reports whether the node has a fault that neither a boot nor a maintenance explains.
func (r *round) unplanned(n patient) bool {
	_, planned := r.policy.Window(n.Node, r.at)
	return n.faulty() && !planned && !n.booting(r.policy, r.at)
}

// decide returns the decision about a node. The first brake that applies is the one that it names.
func (r *round) decide(n patient) Decision {
	d := Decision{NodeID: n.NodeID, Host: n.Host, Phase: health.PhaseUnhealthy, Fault: n.fault}
	if a, ok := n.running(); ok {
		d.Phase, d.Brake = n.during(a), BrakeHeld
		d.Why = sentence("operation %s repairs the node with rung %s since %s", a.OperationID, a.Rung, stamp(a.StartedAt))
		return d
	}
	if !n.faulty() {
		d.Phase, d.Why = n.healed(r.policy)
		return d
	}
	if d.Brake, d.Why = r.nodeBrake(n); d.Brake != "" {
		return d
	}
	all, matched := r.policy.ladder(n.Node, n.fault)
	left := untried(all, n.Node, n.fault)
	if len(left) == 0 {
		d.Why = r.noRung(n, all, matched)
		return d
	}
	d.Rung, d.Request = left[0], r.policy.request(n, left)
	if d.Brake, d.Why = r.startBrake(n, d); d.Brake == "" {
		d.Phase = d.Rung.phase()
	}
	return d
}

// during returns the phase of a node on which an attempt runs. The operation that runs it may have
// set a later one.
func (p patient) during(a Attempt) health.Phase {
	if p.Phase > health.PhaseUnhealthy {
		return p.Phase
	}
	return a.Rung.phase()
}

// healed returns the phase of a node without a fault. Only a healthy condition is evidence that it is
// healthy, and a fault that became unknown has not ended.
func (p patient) healed(policy Policy) (health.Phase, string) {
	var healthy, unknown, harmless int
	interrupted := false
	for _, c := range p.Conditions {
		switch {
		case slices.Contains(policy.DisabledCheckers, c.Checker):
		case c.Status == health.Healthy:
			healthy++
		case c.Status == health.Unhealthy:
			harmless++
		default:
			unknown++
			interrupted = interrupted || !c.FaultSince.IsZero()
		}
	}
	switch {
	case interrupted, p.Phase > health.PhaseHealthy && healthy == 0:
		return health.PhaseUnhealthy, sentence("no fault is reported, but %d conditions are unknown and %d are healthy", unknown, healthy)
	case healthy+harmless == 0:
		return p.Phase, "nothing is known about the node's health"
	case harmless > 0:
		return health.PhaseHealthy, sentence("%d of %d conditions report a fault that needs no repair", harmless, healthy+harmless+unknown)
	}
	return health.PhaseHealthy, sentence("%d of %d conditions are healthy", healthy, healthy+unknown)
}
