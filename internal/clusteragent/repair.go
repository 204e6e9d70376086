package clusteragent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

const (
	// refusedPause is how long a restart that the provider refused is not repeated.
	refusedPause = time.Minute
	// actionTimeout bounds one action of the executor.
	actionTimeout = 90 * time.Second
)

// repairAll starts the repairs that are due, the longest unhealthy node first. The failure of one node
// does not stop the others.
func (a *agent) repairAll(ctx context.Context) {
	thresholds := health.Thresholds(a.checkers)
	var due []string
	for name, t := range a.nodes {
		if len(t.tracker.Last().Due(thresholds)) > 0 {
			due = append(due, name)
		}
	}
	slices.SortFunc(due, func(x, y string) int {
		return cmp.Or(a.states.State(x).UnhealthySince().Compare(a.states.State(y).UnhealthySince()), cmp.Compare(x, y))
	})
	for _, name := range due {
		if ctx.Err() != nil || !a.loaded {
			return
		}
		t := a.nodes[name]
		a.repair(ctx, name, t, t.tracker.Last().Due(thresholds))
		a.show(name)
	}
}

// repair starts the next repair of a node with faults that are due.
func (a *agent) repair(ctx context.Context, name string, t *tracked, faults []health.Condition) {
	log := a.log.With(slog.String("node", name), slog.Any("faults", texts(faults)))
	state, now := a.states.State(name), a.now()
	if !state.CanRepair(now) {
		return // it waits for a restart, or an operator must act
	}
	reboots := append(t.recent(t.Reboots, now), t.recent(t.shadow, now)...)
	brake := a.brake(name, t)
	if brake == "" && len(reboots) >= a.maxReboots {
		a.drain(ctx, name, log)
		return
	}
	if brake == "" {
		a.reboot(ctx, name, t, faults, log)
	} else if brake != t.brake {
		log.Warn("the restart of a node must wait", slog.String("why", brake))
	}
	t.brake = brake
}

// brake returns why a node must not be repaired now, "" if nothing prevents it.
func (a *agent) brake(name string, t *tracked) string {
	held := a.held(name, t)
	switch {
	case held != "" && held != heldByRestarts:
		return held
	case breaker{a}.stops(name):
		return "the breaker is open: many nodes became unhealthy at once"
	case held == "" && a.rebooting(name) >= a.maxRebooting:
		return "as many nodes as allowed are restarting"
	}
	return ""
}

// heldByRestarts is why no further restart of a node starts: an operator must act.
const heldByRestarts = "the node was restarted as often as allowed"

// held returns what about a node prevents its restart, "" if nothing does.
func (a *agent) held(name string, t *tracked) string {
	state, now := a.states.State(name), a.now()
	reboots := append(t.recent(t.Reboots, now), t.recent(t.shadow, now)...)
	switch {
	case t.sample.Labels[heldLabel] == heldValue:
		return "the node has the label " + heldLabel + "=" + heldValue
	case !state.RefusedAt().IsZero() && now.Sub(state.RefusedAt()) < refusedPause:
		return "the last request was refused less than " + refusedPause.String() + " ago"
	case slices.ContainsFunc(reboots, func(at time.Time) bool { return now.Sub(at) < a.waitOf(t) }):
		return "the node was restarted less than " + a.waitOf(t).String() + " ago"
	case len(reboots) >= a.maxReboots:
		return heldByRestarts
	}
	return ""
}

// rebooting counts the other nodes that restart now.
func (a *agent) rebooting(except string) (count int) {
	for name := range a.nodes {
		if s := a.states.State(name); name != except && s.Phase() == health.PhaseWaitingReboot && !s.Expired(a.now()) {
			count++
		}
	}
	return count
}

// waitOf is how long the node may take to become healthy after a restart.
func (a *agent) waitOf(t *tracked) time.Duration {
	if health.HasGPU(t.sample) {
		return a.gpuWait
	}
	return a.wait
}

// drain ends the agent's own repairs of a node.
func (a *agent) drain(ctx context.Context, name string, log *slog.Logger) {
	if _, err := a.states.StartDrain(name, a.now(), 0); err != nil {
		a.failed(errorInternal, "cannot change the phase of a node", err, slog.String("node", name))
		return
	}
	log.Warn("restarts did not repair the node", slog.Int("max_reboots", a.maxReboots), slog.Duration("within", rebootPeriod),
		slog.String("next", "drain the node with kubectl drain, and replace its machine"))
	a.save(ctx)
}

// reboot restarts the machine of a node, or logs that it would. The restart is stored before it is
// requested, so that a crash between the two does not repeat it.
func (a *agent) reboot(ctx context.Context, name string, t *tracked, faults []health.Condition, log *slog.Logger) {
	if !a.stillFaulty(ctx, name, faults, log) {
		return
	}
	now := a.now()
	if _, err := a.states.StartReboot(name, now, a.waitOf(t)); err != nil {
		a.failed(errorInternal, "cannot change the phase of a node", err, slog.String("node", name))
		return
	}
	if a.monitorOnly {
		t.shadow = append(t.recent(t.shadow, now), now)
		a.metrics.acted(name, actionReboot, true)
		log.Warn("would restart the node; CIVO_NODE_AGENT_MONITOR_ONLY is true", slog.Duration("wait", a.waitOf(t)))
		return
	}
	bootBefore := t.BootBefore
	t.Reboots, t.BootBefore = append(t.recent(t.Reboots, now), now), t.sample.BootID
	if !a.save(ctx) {
		return
	}
	a.metrics.acted(name, actionReboot, false)
	acting, cancel := context.WithTimeout(ctx, actionTimeout)
	defer cancel()
	err := a.executor.Reboot(acting, name)
	if err == nil {
		log.Warn("restarted the node", slog.Int("restart", len(t.Reboots)), slog.Duration("wait", a.waitOf(t)))
		return
	}
	a.metrics.failures.WithLabelValues(name, actionReboot).Inc()
	if !errors.Is(err, ErrNotRebooted) {
		a.failed(errorAction, "the restart failed; it counts, because the machine may have restarted", err, slog.String("node", name))
		return
	}
	a.failed(errorAction, "the restart was refused", err, slog.String("node", name), slog.Duration("retry_in", refusedPause))
	if _, err := a.states.RefuseReboot(name, now); err != nil {
		a.failed(errorInternal, "cannot change the phase of a node", err, slog.String("node", name))
	}
	t.Reboots, t.BootBefore = t.Reboots[:len(t.Reboots)-1], bootBefore
	a.save(context.WithoutCancel(ctx))
}

// stillFaulty reads the node again and reports whether one of the faults is still there.
func (a *agent) stillFaulty(ctx context.Context, name string, faults []health.Condition, log *slog.Logger) bool {
	n, err := a.live(ctx, name)
	if err != nil {
		a.failed(errorNode, "cannot read a node before its restart", err, slog.String("node", name))
		return false
	}
	if uid := string(n.UID); uid != a.nodes[name].UID {
		log.Info("the node is another one now")
		return false
	}
	for _, f := range health.Run(a.checkers, sampleOf(n)) {
		for _, r := range f.Results {
			if r.Status == health.Unhealthy && slices.ContainsFunc(faults, func(c health.Condition) bool { return c.Checker == f.Checker && c.Component == r.Component }) {
				return true
			}
		}
	}
	log.Info("the node has recovered")
	return false
}
