package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// stateActive and the others are the node states in which a repair may start, as lifecycle.NodeState
// writes them. That package imports this one.
const (
	stateActive      = "active"
	stateOffline     = "offline"
	stateQuarantined = "quarantined"
)

func repairable(state string) bool {
	return slices.Contains([]string{stateActive, stateOffline, stateQuarantined}, state)
}

func sentence(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// stamp returns a time for sentences.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// nodeBrake returns what about the node or its fault stops every rung.
func (r *round) nodeBrake(n patient) (Brake, string) {
	if !repairable(n.State) {
		return BrakeHeld, sentence("a node in state %s is not repaired", n.State)
	}
	if n.Held != "" {
		return BrakeHeld, "the node is held: " + n.Held
	}
	if w, ok := r.policy.Window(n.Node, r.at); ok {
		return BrakeWindow, "a maintenance window covers the node: " + w.Reason
	}
	if n.booting(r.policy, r.at) {
		return BrakeBootGrace, sentence("the node booted %s ago, and the grace is %s", age(r.at, n.BootedAt), r.policy.BootGrace)
	}
	if f, ok := r.frozen[n.NodeID]; ok {
		return f.brake, f.why
	}
	if n.samples < r.policy.Samples {
		return BrakeSamples, sentence("%s: %d of %d checks have seen it", n.fault.name(), n.samples, r.policy.Samples)
	}
	if limit := r.policy.threshold(n.fault.Checker); n.lasted < limit {
		return BrakeThreshold, sentence("%s for %s, and its threshold is %s", n.fault.name(), seconds(n.lasted), brief(limit))
	}
	if count := r.policy.repaired(n, r.at); count >= r.policy.Flapping.Repairs {
		return BrakeFlapping, sentence("%s: %d repairs within %s did not last, and the limit is %d: find the cause, then repair it by hand: %s",
			n.fault.name(), count, r.policy.Flapping.Within, r.policy.Flapping.Repairs, n.command(nil))
	}
	if last, ok := r.policy.cooling(n, r.at); ok {
		return BrakeCooldown, sentence("%s: a repair ended %s ago, and the cool-down is %s", n.fault.name(), age(r.at, last), r.policy.Cooldown)
	}
	return "", ""
}

// startBrake returns what stops the start of the repair that d requests, or why it starts. A repair
// that starts takes its share of the budgets.
func (r *round) startBrake(n patient, d Decision) (Brake, string) {
	what := sentence("%s for %s, seen by %d checks", n.fault.name(), seconds(n.lasted), n.samples)
	if slices.Contains(d.Request.Approve, d.Rung) {
		return BrakeApproval, sentence("%s: rung %s needs an approval: %s", what, d.Rung, n.command(d.Request.Rungs))
	}
	if !r.breaker.OpenSince.IsZero() && !r.probe {
		return BrakeBreaker, "the breaker is open: " + r.breaker.Why
	}
	if why := r.overBudget(n); why != "" {
		return BrakeBudget, sentence("%s: %s", what, why)
	}
	r.spend(n)
	probing := r.probe
	r.probe = false
	if r.policy.Mode != ModeArmed {
		return BrakeMonitor, sentence("%s: monitor mode; an armed policy would start with rung %s", what, d.Rung)
	}
	if probing {
		r.breaker.Probing, r.breaker.ProbingSince = n.NodeID, r.at
		return "", sentence("%s: start with rung %s, to find out whether the breaker can close", what, d.Rung)
	}
	return "", sentence("%s: start with rung %s of %s", what, d.Rung, list(d.Request.Rungs))
}

// noRung says why no rung is left for a fault.
func (r *round) noRung(n patient, all []Rung, matched bool) string {
	switch {
	case !matched:
		return sentence("%s: no ladder of the policy matches it", n.fault.name())
	case len(all) == 0:
		return sentence("%s needs %s, and no rung of its ladder does that on this node: repair it by hand", n.fault.name(), n.fault.Repair)
	}
	return sentence("%s: every rung was tried (%s) and the fault is still there: a person decides: %s", n.fault.name(), list(all), n.command(nil))
}

// command returns what an operator types to repair the node.
func (p patient) command(rungs []Rung) string {
	s := "gpuaas node recover " + p.Host
	if len(rungs) > 0 {
		s += " --rung " + strings.ReplaceAll(list(rungs), " ", "")
	}
	return s
}

// age returns the time since then, to the second.
func age(at, since time.Time) string { return seconds(at.Sub(since)) }

func seconds(d time.Duration) string { return brief(d.Truncate(time.Second)) }
