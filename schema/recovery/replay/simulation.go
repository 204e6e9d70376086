package replay

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// matchWithin is how far a recorded repair may start from the simulated one to be its record.
const matchWithin = 10 * time.Minute

// A simulation is one policy on its way through the rounds.
type simulation struct {
	policy  recovery.Policy
	options Options
	first   time.Time
	breaker recovery.BreakerState
	known   map[string]recovery.Node   // the last recorded facts of each node
	phases  map[string]health.Phase    // by the last decisions
	repairs map[string][]*repair       // by node, the newest last
	adopted map[string]map[string]bool // recorded operations that the policy starts too, by node

	choices   map[string]Choice
	events    map[event]int
	touched   map[string]bool
	incidents map[incident]bool
	last      []recovery.Incident
	peak      map[place]int // repairs that ran
	out       map[place]int // nodes out of service
}

// A repair is one that the policy started. Until the record shows it, its effect is assumed.
type repair struct {
	id       string
	at       time.Time
	request  recovery.Request
	recorded string // the operation of the record
}

func newSimulation(p recovery.Policy, o Options) *simulation {
	takes := map[recovery.Rung]time.Duration{
		recovery.RungResetGPU: 5 * time.Minute, recovery.RungReboot: 20 * time.Minute,
		recovery.RungReplace: time.Hour, recovery.RungQuarantine: 5 * time.Minute,
	}
	maps.Copy(takes, o.Takes)
	o.Takes = takes
	return &simulation{
		policy: p, options: o,
		known: map[string]recovery.Node{}, phases: map[string]health.Phase{},
		repairs: map[string][]*repair{}, adopted: map[string]map[string]bool{},
		choices: map[string]Choice{}, events: map[event]int{}, touched: map[string]bool{}, peak: map[place]int{}, out: map[place]int{},
	}
}

// round decides about one recorded round and starts the repairs.
func (s *simulation) round(recorded recovery.Fleet) []recovery.Decision {
	if s.first.IsZero() {
		s.first, s.breaker = recorded.At, recorded.Breaker
	}
	f := s.fleet(recorded)
	result := recovery.Decide(s.policy, f)
	s.count(result)
	for _, d := range result.Decisions {
		s.phases[d.NodeID] = d.Phase
		if d.Acts() {
			id := fmt.Sprintf("simulated-%s-%d", d.NodeID, len(s.repairs[d.NodeID])+1)
			s.repairs[d.NodeID] = append(s.repairs[d.NodeID], &repair{id: id, at: f.At, request: d.Request})
		}
	}
	s.breaker, s.last = result.Breaker, result.Incidents
	s.measure(f.At)
	return result.Decisions
}

// fleet returns the recorded facts as they would be under the policy.
func (s *simulation) fleet(recorded recovery.Fleet) recovery.Fleet {
	f := recovery.Fleet{At: recorded.At, Breaker: s.breaker, Incidents: s.last}
	listed := map[string]bool{}
	running := map[place]int{} // the difference to the record
	for _, n := range recorded.Nodes {
		listed[n.NodeID] = true
		if repairing(n.Attempts) {
			for _, p := range places(n) {
				running[p]--
			}
			n.Held = "" // by that repair
		}
		s.adopt(n)
		s.known[n.NodeID] = n
		f.Nodes = append(f.Nodes, s.node(n, recorded.At))
	}
	for _, id := range slices.Sorted(maps.Keys(s.known)) {
		if !listed[id] && (s.phases[id] > health.PhaseHealthy || id == s.breaker.Probing) {
			f.Nodes = append(f.Nodes, s.node(healthy(s.known[id]), recorded.At))
		}
	}
	out := map[place]int{}
	for i, n := range f.Nodes {
		switch {
		case repairing(n.Attempts):
			countPlaces(running, n)
		case leftOut(n):
			countPlaces(out, n)
			f.Nodes[i].State, f.Nodes[i].Held = stateQuarantined, "the node is quarantined"
		}
	}
	s.out = highest(s.out, out)
	for _, size := range recorded.Sizes {
		at := place{size.Scope, size.Key}
		size.Busy, size.Out = max(0, size.Busy+running[at]), out[at]
		f.Sizes = append(f.Sizes, size)
	}
	return f
}

// leftOut reports whether the node is out of service: its last repair ended without a cure, so it is
// quarantined. The record does not say when a person released it, so it is assumed to be out until the
// fault of that repair ends.
func leftOut(n recovery.Node) bool {
	var last recovery.Attempt
	for _, a := range n.Attempts {
		if !a.StartedAt.Before(last.StartedAt) {
			last = a
		}
	}
	if last.EndedAt.IsZero() || last.Outcome != recovery.OutcomeNotCured && last.Outcome != recovery.OutcomeFailed {
		return false
	}
	return slices.ContainsFunc(n.Conditions, func(c health.Condition) bool {
		since := c.Since
		if c.Status == health.Unknown {
			since = c.FaultSince
		}
		return c.Checker == last.Fault.Checker && c.Component == last.Fault.Component && c.Status != health.Healthy &&
			!since.IsZero() && !since.After(last.EndedAt)
	})
}

func repairing(attempts []recovery.Attempt) bool {
	return slices.ContainsFunc(attempts, func(a recovery.Attempt) bool { return a.EndedAt.IsZero() })
}

// healthy returns a node that the record no longer lists: it has no fault.
func healthy(n recovery.Node) recovery.Node {
	n.Conditions = []health.Condition{{Checker: "record", Status: health.Healthy, Reason: "NotListed"}}
	return n
}

// adopt looks for the record of the node's newest repair.
func (s *simulation) adopt(n recovery.Node) {
	all := s.repairs[n.NodeID]
	if len(all) == 0 || all[len(all)-1].recorded != "" {
		return
	}
	r := all[len(all)-1]
	for _, a := range n.Attempts {
		apart := a.StartedAt.Sub(r.at).Abs()
		if a.Rung == r.request.Rungs[0] && apart <= matchWithin && !a.StartedAt.Before(s.first) && !s.adopted[n.NodeID][a.OperationID] {
			r.recorded = a.OperationID
			if s.adopted[n.NodeID] == nil {
				s.adopted[n.NodeID] = map[string]bool{}
			}
			s.adopted[n.NodeID][a.OperationID] = true
			return
		}
	}
}

// node returns the facts of a node with the repairs of the policy instead of the recorded ones.
func (s *simulation) node(n recovery.Node, at time.Time) recovery.Node {
	if phase, ok := s.phases[n.NodeID]; ok {
		n.Phase = phase
	}
	var attempts []recovery.Attempt
	for _, a := range n.Attempts {
		if a.StartedAt.Before(s.first) || s.adopted[n.NodeID][a.OperationID] {
			attempts = append(attempts, a)
		}
	}
	n.Conditions = slices.Clone(n.Conditions)
	for _, r := range s.repairs[n.NodeID] {
		if r.recorded != "" {
			continue
		}
		for _, a := range s.assume(n, *r, at) {
			attempts = append(attempts, a)
			if a.Outcome == recovery.OutcomeCured {
				cure(n.Conditions, a)
			}
		}
	}
	n.Attempts = attempts
	return n
}

// assume returns the attempts of a repair that the record does not have, as they are at a time.
func (s *simulation) assume(n recovery.Node, r repair, at time.Time) []recovery.Attempt {
	var attempts []recovery.Attempt
	begin := r.at
	for i, rung := range r.request.Rungs {
		if begin.After(at) || i > 0 && slices.Contains(r.request.Approve, rung) {
			break
		}
		a := recovery.Attempt{OperationID: r.id, NodeID: n.NodeID, SKU: n.SKU, Rung: rung, Fault: r.request.Fault, StartedAt: begin}
		if end := begin.Add(s.options.Takes[rung]); !end.After(at) {
			a.EndedAt, a.Outcome = end, recovery.OutcomeCured
			if s.options.NotCured {
				a.Outcome = recovery.OutcomeNotCured
			}
		}
		attempts = append(attempts, a)
		if a.EndedAt.IsZero() || a.Outcome == recovery.OutcomeCured {
			break
		}
		begin = a.EndedAt
	}
	return attempts
}

// cure ends the fault of an attempt, unless it began again after it.
func cure(conditions []health.Condition, a recovery.Attempt) {
	for i, c := range conditions {
		if c.Status == health.Unhealthy && c.Checker == a.Fault.Checker && c.Component == a.Fault.Component && !c.Since.After(a.EndedAt) {
			conditions[i] = health.Condition{Checker: c.Checker, Component: c.Component, Status: health.Healthy, Reason: "Cured", Since: a.EndedAt}
		}
	}
}

// measure records how many repairs run at once. A repair that starts in this round counts.
func (s *simulation) measure(at time.Time) {
	now := map[place]int{}
	for id := range s.repairs {
		if n := s.node(s.known[id], at); repairing(n.Attempts) {
			countPlaces(now, n)
		}
	}
	s.peak = highest(s.peak, now)
}
