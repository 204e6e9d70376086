package recovery

import (
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/text"
)

// lowest returns the first rung that can cure a fault that needs the repair, empty if none can: no
// rung restarts a service.
func lowest(r health.Repair) Rung {
	switch r {
	case health.RepairResetGPU:
		return RungResetGPU
	case health.RepairReboot:
		return RungReboot
	case health.RepairReplace:
		return RungReplace
	case health.RepairRMA:
		return RungQuarantine
	}
	return ""
}

// ladder returns the rungs for the fault of a node: those of the first ladder that matches, from the
// one that the fault needs, without those that the node or its class does not allow. false means that
// no ladder matches.
func (p Policy) ladder(n Node, f Fault) ([]Rung, bool) {
	i := slices.IndexFunc(p.Ladders, func(l Ladder) bool { return l.Match.fault(n, f) })
	if i < 0 {
		return nil, false
	}
	if n.powerless(f) {
		return nil, true
	}
	from := slices.Index(Rungs(), lowest(f.Repair))
	var fit []Rung
	for _, r := range p.Ladders[i].Rungs {
		if from >= 0 && slices.Index(Rungs(), r) >= from && p.allows(n, r) {
			fit = append(fit, r)
		}
	}
	return fit, true
}

// powerless reports whether no one can repair a node that is silent: its agent does not answer, and its
// provider has no power over its machine. A quarantine would keep it out of service after its return.
func (n Node) powerless(f Fault) bool {
	silent := slices.ContainsFunc(n.Conditions, func(c health.Condition) bool {
		return c.Checker == health.CheckerHeartbeat && c.Status == health.Unhealthy
	})
	return silent && !n.Creates && f.Repair != health.RepairRMA
}

// allows reports whether a rung may be done on a node.
func (p Policy) allows(n Node, r Rung) bool {
	switch r {
	case RungResetGPU:
		return n.GPUs > 0
	case RungReplace:
		classes := p.ReplaceClasses
		if n.GPUs > 0 {
			classes = p.GPUReplaceClasses
		}
		return n.Creates && slices.Contains(classes, n.Class)
	}
	return true
}

// untried returns the rungs above the highest one that was tried and left the fault. A rung is
// repeated only for a fault that began after its end, whatever its outcome was: an attempt with an
// unknown outcome is no reason to repeat a destructive rung.
func untried(all []Rung, n Node, f Fault) []Rung {
	for i, r := range slices.Backward(all) {
		if slices.ContainsFunc(n.Attempts, func(a Attempt) bool { return a.Rung == r && a.left(f) }) {
			return all[i+1:]
		}
	}
	return all
}

// left reports whether the fault was there before the attempt's end and is still there. An attempt for
// another fault counts if its rung was done and concerns the whole node.
func (a Attempt) left(f Fault) bool {
	if a.EndedAt.IsZero() || a.Outcome == OutcomeNotBegun || f.Since.After(a.EndedAt) {
		return false
	}
	if a.Fault.Checker == f.Checker && a.Fault.Component == f.Component {
		return true
	}
	done := a.Outcome == OutcomeCured || a.Outcome == OutcomeNotCured
	return done && a.Rung != RungResetGPU && !f.Since.After(a.StartedAt)
}

// request returns the repair with the rungs.
func (p Policy) request(n patient, left []Rung) Request {
	r := Request{Fault: n.fault, Rungs: slices.Clone(left)}
	if left[0] == RungResetGPU {
		r.GPUs = n.resets()
	}
	for _, rung := range left {
		if slices.Contains(p.Approvals, rung) && rung.Approvable() {
			r.Approve = append(r.Approve, rung)
		}
	}
	return r
}

// maxResets is how many GPUs a request lists.
const maxResets = 64

// resets returns the UUIDs of the GPUs whose faults need a reset, sorted; none means all, if a fault
// does not name its GPU. The node reports the names, so they are checked.
func (p patient) resets() []string {
	var gpus []string
	for _, f := range p.faults {
		if f.fault.Repair != health.RepairResetGPU {
			continue
		}
		if !strings.HasPrefix(f.fault.Component, "GPU-") || !text.IsToken(f.fault.Component, health.MaxComponent, "-") || len(gpus) == maxResets {
			return nil
		}
		gpus = append(gpus, f.fault.Component)
	}
	slices.Sort(gpus)
	return slices.Compact(gpus)
}

// phase returns the phase of a node on which a repair starts or runs.
func (r Rung) phase() health.Phase {
	switch r {
	case RungReboot:
		return health.PhaseWaitingReboot
	case RungReplace:
		return health.PhaseDrain
	}
	return health.PhaseUnhealthy
}

// cooling returns when the node's last repair ended, if that is less than the cool-down ago.
func (p Policy) cooling(n patient, at time.Time) (time.Time, bool) {
	var last time.Time
	for _, a := range n.Attempts {
		if a.EndedAt.After(last) {
			last = a.EndedAt
		}
	}
	return last, !last.IsZero() && at.Sub(last) < time.Duration(p.Cooldown)
}

// repaired counts the node's repairs within the time that the rule for flapping looks back.
func (p Policy) repaired(n patient, at time.Time) int {
	operations := map[string]bool{}
	for _, a := range n.Attempts {
		if at.Sub(a.StartedAt) < time.Duration(p.Flapping.Within) && a.Outcome != OutcomeNotBegun {
			operations[a.OperationID] = true
		}
	}
	return len(operations)
}
