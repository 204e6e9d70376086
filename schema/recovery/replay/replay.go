// Package replay runs policies of the health recovery over recorded facts, to show which repairs and
// brakes a change of the policy changes before it is set. It is pure.
//
// Start with Run. Rounds rebuilds the facts from recorded signals.
package replay

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/recovery"
)

// Options are the assumptions about repairs that the record does not have.
type Options struct {
	// NotCured assumes that no such repair cures its fault: every rung is climbed. Defaults to false:
	// the first rung cures.
	NotCured bool
	// Takes is how long each rung takes. Defaults to 5 minutes for a reset, 20 for a reboot, 60 for a
	// replacement and 5 for a quarantine.
	Takes map[recovery.Rung]time.Duration
}

// Diff is what differs between two policies over the same record.
type Diff struct {
	From   time.Time `json:"from,omitzero"` // the first round
	To     time.Time `json:"to,omitzero"`   // the last round
	Rounds int       `json:"rounds"`
	// Changes are the decisions that differ, by time and host. A difference that lasts for several
	// rounds is listed once.
	Changes []Change `json:"changes,omitempty"`
	Counts  []Count  `json:"counts,omitempty"`
	Peaks   []Peak   `json:"peaks,omitempty"`
	// Out are the most nodes that were out of service at once because repairs did not cure them, which
	// max_out limits.
	Out []Peak `json:"out,omitempty"`
	// Assumed are the brakes that a replay cannot simulate as they were.
	Assumed []Assumption `json:"assumed"`
}

// Assumption is a brake of which the record lacks the facts, and what a replay does instead.
type Assumption struct {
	Brake recovery.Brake `json:"brake"`
	Why   string         `json:"why"`
}

// Assumptions returns the brakes that a replay cannot simulate as they were, or only in part. It
// simulates all others.
func Assumptions() []Assumption {
	return []Assumption{
		{recovery.BrakeHeld, "cordons, locks and other operations are not recorded; only the repairs of the replay, and the quarantines they lead to, hold a node"},
		{recovery.BrakeApproval, "no rung is approved: a repair whose first rung needs an approval does not start, and another one ends before that rung"},
		{recovery.BrakeSamples, "a fault has one check every 30 seconds since it began"},
		{recovery.BrakeBootGrace, "boots before the first signal are not known"},
		{recovery.BrakeBudget, "places have the nodes that they have now; a node whose repair cured nothing counts for max_out until its fault ends"},
	}
}

// Change is a time from which the policies decide differently about a node.
type Change struct {
	At     time.Time      `json:"at"`
	NodeID string         `json:"node_id"`
	Host   string         `json:"host"`
	Fault  recovery.Fault `json:"fault,omitzero"`
	Old    Choice         `json:"old"`
	New    Choice         `json:"new"`
}

// Choice is what a policy decides about a node: a repair if Rung is set and Brake is not.
type Choice struct {
	Rung  recovery.Rung  `json:"rung,omitempty"`
	Brake recovery.Brake `json:"brake,omitempty"`
	Why   string         `json:"why,omitempty"`
}

// Count counts one kind of event under both policies.
type Count struct {
	Kind string `json:"kind"` // one of the constants
	Name string `json:"name"`
	Old  int    `json:"old"`
	New  int    `json:"new"`
}

// The kinds of counts.
const (
	CountAction   = "action"   // repairs by their first rung
	CountSKU      = "sku"      // repairs by SKU
	CountFault    = "fault"    // repairs by fault: checker, reason and code
	CountBrake    = "brake"    // times that a node came under a brake
	CountNodes    = "nodes"    // nodes that were repaired at least once
	CountIncident = "incident" // incidents, by their scope
	CountBreaker  = "breaker"  // times that the breaker opened
)

// Peak is the most repairs, or nodes, at once in one place.
type Peak struct {
	Scope recovery.Scope `json:"scope"`
	Key   string         `json:"key"`
	Old   int            `json:"old"`
	New   int            `json:"new"`
}

// Run runs both policies over recorded rounds, which must be in the order of time, and compares their
// decisions. A repair that a policy starts has the recorded effect if the record has a repair of the
// node with the same first rung at that time, otherwise the effect that o assumes. A recorded repair
// that a policy does not start has its recorded effect on the facts too: what the fault would have
// done without it is not known.
func Run(before, after recovery.Policy, rounds iter.Seq[recovery.Fleet], o Options) Diff {
	a, b := newSimulation(before, o), newSimulation(after, o)
	d := Diff{Assumed: Assumptions()}
	last := map[string][2]Choice{}
	for f := range rounds {
		if d.Rounds == 0 {
			d.From = f.At
		}
		d.Rounds, d.To = d.Rounds+1, f.At
		was, is := a.round(f), b.round(f)
		for _, c := range changes(f.At, was, is) {
			pair := [2]Choice{c.Old.bare(), c.New.bare()}
			if last[c.NodeID] == pair {
				continue
			}
			last[c.NodeID] = pair
			if pair[0] != pair[1] {
				d.Changes = append(d.Changes, c)
			}
		}
	}
	d.Counts, d.Peaks, d.Out = counts(a, b), peaks(a.peak, b.peak), peaks(a.out, b.out)
	return d
}

// bare returns the choice without its figures, which change in every round.
func (c Choice) bare() Choice { return Choice{Rung: c.Rung, Brake: c.Brake} }

func choice(d recovery.Decision) Choice { return Choice{Rung: d.Rung, Brake: d.Brake, Why: d.Why} }

// changes pairs the decisions of one round, sorted by host. A node that only one policy lists has no
// fault under the other.
func changes(at time.Time, was, is []recovery.Decision) []Change {
	by := map[string]*Change{}
	var all []*Change
	of := func(d recovery.Decision) *Change {
		if by[d.NodeID] == nil {
			by[d.NodeID] = &Change{At: at, NodeID: d.NodeID, Host: d.Host}
			all = append(all, by[d.NodeID])
		}
		c := by[d.NodeID]
		if d.Fault.Checker != "" {
			c.Fault = d.Fault
		}
		return c
	}
	for _, d := range was {
		of(d).Old = choice(d)
	}
	for _, d := range is {
		of(d).New = choice(d)
	}
	sorted := make([]Change, 0, len(all))
	for _, c := range all {
		sorted = append(sorted, *c)
	}
	slices.SortFunc(sorted, func(a, b Change) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.NodeID, b.NodeID)) })
	return sorted
}
