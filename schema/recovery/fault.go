package recovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/text"
)

// A patient is a node in one round, with what was derived from its facts.
type patient struct {
	Node
	faults []seen
	seen   // the one for which the node is repaired; zero if there is none
}

// seen is one fault of a node that needs a repair.
type seen struct {
	fault   Fault
	samples int
	lasted  time.Duration // without the time in which it was unknown
}

func (p patient) faulty() bool { return p.fault.Checker != "" }

// booting reports whether the node booted a moment ago.
func (p patient) booting(policy Policy, at time.Time) bool {
	return !p.BootedAt.IsZero() && at.Sub(p.BootedAt) < time.Duration(policy.BootGrace)
}

// running returns the repair that runs on the node.
func (p patient) running() (Attempt, bool) {
	for _, a := range slices.Backward(p.Attempts) {
		if a.EndedAt.IsZero() {
			return a, true
		}
	}
	return Attempt{}, false
}

// newPatient derives the faults of a node and sorts what the order of the input must not decide.
func newPatient(policy Policy, n Node, at time.Time) patient {
	n.Attempts = slices.Clone(n.Attempts)
	slices.SortFunc(n.Attempts, func(a, b Attempt) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), a.EndedAt.Compare(b.EndedAt),
			cmp.Compare(a.OperationID, b.OperationID), cmp.Compare(a.Rung, b.Rung), cmp.Compare(a.Outcome, b.Outcome))
	})
	p := patient{Node: n}
	for _, c := range n.Conditions {
		if f, ok := policy.fault(n, c, at); ok {
			c.Since = f.Since
			p.faults = append(p.faults, seen{f, c.Samples, c.Lasted(at)})
		}
	}
	slices.SortFunc(p.faults, func(a, b seen) int {
		return cmp.Or(
			-compareBool(policy.mature(a), policy.mature(b)),
			-cmp.Compare(severity(a.fault), severity(b.fault)),
			a.fault.Since.Compare(b.fault.Since), -cmp.Compare(a.samples, b.samples), -cmp.Compare(a.lasted, b.lasted),
			cmp.Compare(a.fault.Checker, b.fault.Checker), cmp.Compare(a.fault.Component, b.fault.Component),
			cmp.Compare(a.fault.Reason, b.fault.Reason), cmp.Compare(a.fault.Code, b.fault.Code))
	})
	if len(p.faults) > 0 {
		p.seen = p.faults[0]
	}
	return p
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// fault returns the fault that a condition shows; false if it needs no repair.
func (p Policy) fault(n Node, c health.Condition, at time.Time) (Fault, bool) {
	if c.Status != health.Unhealthy || slices.Contains(p.DisabledCheckers, c.Checker) {
		return Fault{}, false
	}
	f := Fault{Checker: c.Checker, Component: c.Component, Reason: c.Reason, Code: c.Code, Repair: c.Repair, Since: c.Since}
	if f.Since.IsZero() || f.Since.After(at) {
		f.Since = at // a reporter's clock gives no fault an age
	}
	for _, o := range p.Repairs {
		if o.Match.fault(n, f) {
			f.Repair = o.Repair
			break
		}
	}
	return f, f.Repair.Acts()
}

// severity orders faults by how much their repairs harm.
func severity(f Fault) int { return slices.Index(health.Repairs(), f.Repair) }

// mature reports whether a fault has lasted and was seen often enough for a repair.
func (p Policy) mature(s seen) bool {
	return s.lasted >= p.threshold(s.fault.Checker) && s.samples >= p.Samples
}

// name is how sentences name a fault.
func (f Fault) name() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s %s", f.Checker, f.Reason)
	if f.Code != 0 {
		fmt.Fprintf(b, " %d", f.Code)
	}
	switch {
	case f.Component == "":
	case text.IsToken(f.Component, health.MaxComponent, "-_.:/"):
		b.WriteString(" of " + f.Component)
	default: // the node chooses the name
		b.WriteString(" of " + text.Quote(f.Component, health.MaxComponent))
	}
	return b.String()
}

// cause is what faults of one cause have in common.
func (f Fault) cause() Fault { return Fault{Checker: f.Checker, Reason: f.Reason, Code: f.Code} }
