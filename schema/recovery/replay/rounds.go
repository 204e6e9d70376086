package replay

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/signal"
)

// stateActive and stateQuarantined are node states, as lifecycle.NodeState writes them. That package
// imports package recovery.
const (
	stateActive      = "active"
	stateQuarantined = "quarantined"
)

// sampleEvery is the time between two checks that Rounds assumes: signals have no number of samples.
const sampleEvery = 30 * time.Second

// Facts are what an installation recorded.
type Facts struct {
	// Nodes are the nodes with their places, classes and attempts. A condition of a node that no signal
	// is about, and that began before the first signal, is as it is in all rounds.
	Nodes []recovery.Node
	// Sizes are the scopes. Their number of busy nodes is derived from the attempts.
	Sizes []recovery.Size
	// Signals are the changes of conditions and the boots, in any order. Other signals, and those of
	// nodes that are not in Nodes, count for nothing.
	Signals []health.Signal
	// Until is the end of the record. Defaults to the last signal.
	Until time.Time
}

// MaxRounds bounds the rounds of a replay: 138 days with one a minute.
const MaxRounds = 200_000

// Check rejects a record that Rounds would take very long to rebuild, as KindInvalidRequest with the
// reason bad_record, for example because of a signal with a time in another century.
func (f Facts) Check(step time.Duration) error {
	if step <= 0 {
		step = time.Minute
	}
	if len(f.Signals) == 0 {
		return nil
	}
	byTime := func(a, b health.Signal) int { return a.At.Compare(b.At) }
	first, until := slices.MinFunc(f.Signals, byTime).At, f.Until
	if until.IsZero() {
		until = slices.MaxFunc(f.Signals, byTime).At
	}
	if rounds := until.Sub(first) / step; rounds >= MaxRounds { // of a longer time than a Duration has, too
		return schema.NewError(schema.KindInvalidRequest, "the record from %s to %s has %d rounds, one each %s: at most %d are replayed",
			first.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339), rounds, step, MaxRounds).
			WithReason("bad_record").WithNext("replay a shorter time, or with a longer step")
	}
	return nil
}

// Rounds rebuilds the rounds from the signals: one each step from the first signal on. A step that is
// not positive is one minute. Rounds in which no node has a fault or a repair are left out. Check bounds
// their number.
func Rounds(f Facts, step time.Duration) iter.Seq[recovery.Fleet] {
	if step <= 0 {
		step = time.Minute
	}
	return func(yield func(recovery.Fleet) bool) {
		p, signals := newPast(f)
		if len(signals) == 0 {
			return
		}
		until := f.Until
		if until.IsZero() {
			until = signals[len(signals)-1].At.Add(step)
		}
		for at := signals[0].At; !at.After(until); at = at.Add(step) {
			for len(signals) > 0 && !signals[0].At.After(at) {
				p.apply(signals[0])
				signals = signals[1:]
			}
			if fleet := p.fleet(at); len(fleet.Nodes) > 0 && !yield(fleet) {
				return
			}
		}
	}
}

// A past is the state of all nodes at one time of the record.
type past struct {
	nodes  []recovery.Node
	sizes  []recovery.Size
	index  map[string]int
	faults []map[part]health.Condition // by the node's index
	listed map[int]bool                // the nodes of the last round
}

type part struct{ checker, component string }

// newPast returns the state before the first signal, and the signals by time.
func newPast(f Facts) (*past, []health.Signal) {
	p := &past{nodes: slices.Clone(f.Nodes), sizes: f.Sizes, index: map[string]int{}, listed: map[int]bool{}}
	signals := slices.SortedFunc(slices.Values(f.Signals), func(a, b health.Signal) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.SignalID, b.SignalID))
	})
	about := map[string]map[part]bool{}
	for _, s := range signals {
		if about[s.NodeID] == nil {
			about[s.NodeID] = map[part]bool{}
		}
		if checker, ok := strings.CutPrefix(string(s.Type), string(health.ConditionSignal(""))); ok {
			about[s.NodeID][part{checker, s.Component}] = true
		}
	}
	p.nodes = slices.DeleteFunc(p.nodes, func(n recovery.Node) bool { // most nodes have no fault
		return len(about[n.NodeID])+len(n.Conditions)+len(n.Attempts) == 0
	})
	for i := range p.nodes {
		n := &p.nodes[i]
		p.index[n.NodeID] = i
		conditions := map[part]health.Condition{}
		for _, c := range n.Conditions {
			if key := (part{c.Checker, c.Component}); !about[n.NodeID][key] && len(signals) > 0 && c.Since.Before(signals[0].At) {
				conditions[key] = c
			}
		}
		p.faults = append(p.faults, conditions)
		// What the node is now says nothing about then.
		n.BootedAt, n.Held, n.Phase, n.State = time.Time{}, "", health.PhaseUnknown, stateActive
	}
	return p, signals
}

// apply changes the state as a signal says.
func (p *past) apply(s health.Signal) {
	i, ok := p.index[s.NodeID]
	if !ok {
		return
	}
	if s.Type == health.SignalBooted {
		p.nodes[i].BootedAt = s.At
		return
	}
	checker, ok := strings.CutPrefix(string(s.Type), string(health.ConditionSignal("")))
	if !ok {
		return
	}
	key := part{checker, s.Component}
	if s.Status == health.Unknown && s.Reason == signal.ReasonEnded {
		delete(p.faults[i], key)
		return
	}
	before := p.faults[i][key]
	c := health.Condition{
		Checker: checker, Component: s.Component, Status: s.Status, Reason: s.Reason, Code: s.Code, Repair: s.Repair, Since: s.At,
	}
	switch {
	case before.Status == s.Status:
		c.Since = before.Since // only the reason changed
	case before.Status == health.Unhealthy && s.Status == health.Unknown:
		c.FaultSince = before.Since
	case before.Status == health.Unknown && s.Status == health.Unhealthy && !before.FaultSince.IsZero():
		c.Since = before.FaultSince
		c.UnknownSeconds = int64(s.At.Sub(before.Since) / time.Second)
	}
	p.faults[i][key] = c
}

// fleet returns the nodes with a fault or a repair, and those that the last round listed, whose fault
// ended.
func (p *past) fleet(at time.Time) recovery.Fleet {
	f := recovery.Fleet{At: at}
	busy := map[place]int{}
	listed := map[int]bool{}
	for i, n := range p.nodes {
		n.Attempts = until(n.Attempts, at)
		running := repairing(n.Attempts)
		if running {
			for _, at := range places(n) {
				busy[at]++
			}
		}
		listed[i] = running || unhealthy(p.faults[i])
		if listed[i] || p.listed[i] {
			n.Conditions = conditions(p.faults[i], at)
			f.Nodes = append(f.Nodes, n)
		}
	}
	p.listed = listed
	for _, size := range p.sizes {
		size.Busy, size.Out = busy[place{size.Scope, size.Key}], 0 // what is out of service now says nothing about then; Run counts it
		f.Sizes = append(f.Sizes, size)
	}
	return f
}

// until returns the attempts as they were at a time.
func until(attempts []recovery.Attempt, at time.Time) []recovery.Attempt {
	var were []recovery.Attempt
	for _, a := range attempts {
		if a.StartedAt.After(at) {
			continue
		}
		if a.EndedAt.After(at) {
			a.EndedAt, a.Outcome, a.BootAfter, a.Tests = time.Time{}, "", "", nil
		}
		were = append(were, a)
	}
	return were
}

func unhealthy(conditions map[part]health.Condition) bool {
	for _, c := range conditions {
		if c.Status == health.Unhealthy {
			return true
		}
	}
	return false
}

// conditions returns the conditions sorted, with the samples that the time allows.
func conditions(all map[part]health.Condition, at time.Time) []health.Condition {
	sorted := slices.SortedFunc(maps.Values(all), func(a, b health.Condition) int {
		return cmp.Or(cmp.Compare(a.Checker, b.Checker), cmp.Compare(a.Component, b.Component))
	})
	for i := range sorted {
		sorted[i].Samples = 1 + int(at.Sub(sorted[i].Since)/sampleEvery)
	}
	return sorted
}
