package recovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// A patient is a node in one round, with what was derived from its facts.
type patient struct {
	Node
	fault   Fault // zero if nothing needs a repair
	samples int   // of the fault
	faults  []seen
}

// seen is one fault of a node that needs a repair.
type seen struct {
	Fault
	samples int
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
			p.faults = append(p.faults, seen{f, c.Samples})
		}
	}
	slices.SortFunc(p.faults, func(a, b seen) int {
		return cmp.Or(
			-compareBool(policy.mature(a, at), policy.mature(b, at)),
			-cmp.Compare(severity(a.Repair), severity(b.Repair)),
			a.Since.Compare(b.Since), -cmp.Compare(a.samples, b.samples), cmp.Compare(a.Checker, b.Checker),
			cmp.Compare(a.Component, b.Component), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Code, b.Code))
	})
	if len(p.faults) > 0 {
		p.fault, p.samples = p.faults[0].Fault, p.faults[0].samples
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
	return f, severity(f.Repair) > severity(health.RepairObserve)
}

// severity orders repairs; a repair that is not in the list counts as observe.
func severity(r health.Repair) int {
	return max(slices.Index(repairs(), r), slices.Index(repairs(), health.RepairObserve))
}

// mature reports whether a fault has lasted and was seen often enough for a repair.
func (p Policy) mature(s seen, at time.Time) bool {
	return at.Sub(s.Since) >= p.threshold(s.Checker) && s.samples >= p.Samples
}

// name is how sentences name a fault.
func (f Fault) name() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s %s", f.Checker, f.Reason)
	if f.Code != 0 {
		fmt.Fprintf(b, " %d", f.Code)
	}
	if f.Component != "" {
		fmt.Fprintf(b, " of %s", f.Component)
	}
	return b.String()
}

// cause is what faults of one cause have in common.
func (f Fault) cause() Fault { return Fault{Checker: f.Checker, Reason: f.Reason, Code: f.Code} }
