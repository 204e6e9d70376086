package clusteragent

import (
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuaas/gpuaas/schema/health"
)

// forget drops nodes that are not in the list: their state, and their series. A node with the same
// name and another UID is a new one.
func (a *agent) forget(nodes []*corev1.Node) (changed bool) {
	present := map[string]string{}
	for _, n := range nodes {
		present[n.Name] = string(n.UID)
	}
	for name, t := range a.nodes {
		if uid, ok := present[name]; ok && t.UID == uid {
			continue
		}
		a.metrics.forget(name)
		a.states.Forget(name)
		delete(a.nodes, name)
		a.log.Info("node is gone", slog.String("node", name))
		changed = true
	}
	return changed
}

// observe checks a node, and records its conditions and its phase. It reports whether something
// changed that must be stored.
func (a *agent) observe(n *corev1.Node) (changed bool) {
	t := a.nodes[n.Name]
	if t == nil {
		t = &tracked{tracker: health.NewTracker(health.Report{})}
		a.nodes[n.Name] = t
	}
	t.sample, t.UID = sampleOf(n), string(n.UID)
	found := health.Run(a.checkers, t.sample)
	for _, f := range found {
		for _, r := range f.Results {
			a.metrics.checked(n.Name, f.Checker, r.Reason)
		}
	}
	before := t.tracker.Last()
	report := t.tracker.Observe(a.now(), t.sample.BootID, found)
	phase := a.enter(n.Name, t, report)
	a.show(n.Name)
	return phase || !slices.Equal(statuses(before), statuses(report))
}

// show sets the gauges of a node.
func (a *agent) show(name string) {
	state, unhealthy := a.states.State(name), time.Duration(0)
	if since := state.UnhealthySince(); !since.IsZero() {
		unhealthy = a.now().Sub(since)
	}
	a.metrics.state(name, state.Phase(), unhealthy)
}

// enter moves the node to the phase that its report shows, and reports whether that is another one.
func (a *agent) enter(name string, t *tracked, r health.Report) (changed bool) {
	before, err := a.states.State(name), error(nil)
	after := before
	switch faults := r.Faults(); {
	case len(faults) > 0:
		after, err = a.states.Unhealthy(name, r.At)
	case slices.ContainsFunc(r.Conditions, func(c health.Condition) bool { return c.Status == health.Unknown }):
		// Unknown ends no fault, and is none.
	case before.Phase() == health.PhaseWaitingReboot && t.sample.BootID == t.BootBefore && !before.Expired(r.At):
		// The restart is still to come: the node would leave again.
	default:
		after, err = a.states.Healthy(name, r.At)
	}
	if err != nil {
		a.failed(errorInternal, "cannot change the phase of a node", err, slog.String("node", name))
	}
	if after.Phase() == before.Phase() {
		return false
	}
	t.brake = ""
	log := a.log.With(slog.String("node", name), slog.String("phase", after.Phase().String()), slog.String("before", before.Phase().String()))
	if after.Phase() == health.PhaseUnhealthy {
		log.Warn("node is unhealthy", slog.Any("faults", texts(r.Faults())))
	} else if before.Phase() > health.PhaseHealthy {
		log.Info("node recovered", slog.Duration("unhealthy_for", r.At.Sub(before.UnhealthySince())), slog.Int("reboots", before.Reboots()))
	}
	return true
}

// statuses are the conditions without their times and counts.
func statuses(r health.Report) (all []health.Condition) {
	for _, c := range r.Conditions {
		all = append(all, health.Condition{Checker: c.Checker, Component: c.Component, Status: c.Status, Reason: c.Reason, Code: c.Code, Repair: c.Repair})
	}
	return all
}

// texts are conditions for logs: checker and reason.
func texts(all []health.Condition) (out []string) {
	for _, c := range all {
		out = append(out, c.Checker+": "+c.Reason)
	}
	return out
}
