package clusteragent

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// policy is the policy of health recovery with its breaker and the agent's limit of restarts only: what else
// stops a restart is the agent's own.
func (s settings) policy() recovery.Policy {
	p := recovery.Default()
	if !s.monitorOnly {
		p.Mode = recovery.ModeArmed
	}
	p.Ladders = []recovery.Ladder{{Rungs: []recovery.Rung{recovery.RungReboot}}}
	p.Budgets = []recovery.Budget{{Scope: recovery.ScopeFleet, Count: s.maxRebooting, Percent: 100}}
	p.MaxOut, p.Cooldown, p.Flapping.Within = nil, 0, 0
	p.Suspect.Percent = 101 // more nodes than there are
	p.Thresholds = map[string]recovery.Duration{}
	for name, d := range health.Thresholds(s.checkers) {
		p.Thresholds[name] = recovery.Duration(d)
	}
	return p
}

// breaker is an agent whose restarts stop if many nodes become unhealthy at once.
type breaker struct{ *agent }

// step opens the breaker if many nodes become unhealthy at once, which rarely is a fault of these
// nodes, and later chooses the node whose restart shows whether it can close. It reports whether the breaker
// changed.
func (a breaker) step() (changed bool) {
	before := a.storm
	if a.breakerOff || a.control != nil {
		return false
	}
	p := a.policy()
	a.storm = recovery.Decide(p, a.fleet()).Breaker
	if a.storm.OpenSince.IsZero() && a.now().Sub(a.storm.ClosedAt) > time.Duration(p.Breaker.Within) {
		a.storm = recovery.BreakerState{} // it has no effect any longer
	}
	a.metrics.breakerOpen(!a.storm.OpenSince.IsZero())
	switch {
	case a.storm.OpenSince.IsZero() && !before.OpenSince.IsZero():
		a.log.Info("the breaker closed; nodes are restarted again", slog.String("why", a.storm.Why))
	case !a.storm.OpenSince.Equal(before.OpenSince):
		a.log.Warn("the breaker is open; no node is restarted", slog.String("why", a.storm.Why))
	case a.storm.Probing != "" && a.storm.Probing != before.Probing:
		a.log.Info("one node is restarted, to find out whether the breaker can close", slog.String("node", a.storm.Probing))
	}
	return a.storm != before
}

// stops reports whether the breaker stops the restart of a node.
func (a breaker) stops(name string) bool {
	return !a.storm.OpenSince.IsZero() && a.storm.Probing != name
}

// fleet is what the breaker reads: the nodes with a fault and the one that it probes.
func (a breaker) fleet() recovery.Fleet {
	all := recovery.Size{Scope: recovery.ScopeFleet, Nodes: len(a.nodes), Busy: a.rebooting("")}
	f := recovery.Fleet{At: a.now(), Breaker: a.storm, CloseWith: "delete the key " + breakerKey + " of the ConfigMap " + a.record.namespace + "/" + recordName}
	for _, name := range slices.Sorted(maps.Keys(a.nodes)) {
		t := a.nodes[name]
		if health.HasGPU(t.sample) {
			all.GPUNodes++
		}
		if last := t.tracker.Last(); len(last.Faults()) > 0 || name == a.storm.Probing {
			f.Nodes = append(f.Nodes, recovery.Node{NodeID: name, Host: name, State: "active", Held: a.held(name, t),
				Phase: a.states.State(name).Phase(), Conditions: last.Conditions, Attempts: a.attempts(name, t)})
		}
	}
	f.Sizes = []recovery.Size{all}
	return f
}

// attempts is the node's restart that runs, or that the breaker waits for.
func (a breaker) attempts(name string, t *tracked) []recovery.Attempt {
	times := append(slices.Clone(t.Reboots), t.shadow...)
	if len(times) == 0 {
		return nil
	}
	state, last := a.states.State(name), times[len(times)-1]
	one := recovery.Attempt{NodeID: name, Rung: recovery.RungReboot, StartedAt: last}
	switch probed := name == a.storm.Probing && !last.Before(a.storm.ProbingSince); {
	case state.Phase() == health.PhaseWaitingReboot && !state.Expired(a.now()):
	case !probed:
		return nil
	case state.Phase() == health.PhaseHealthy:
		one.EndedAt, one.Outcome = a.now(), recovery.OutcomeCured
	default:
		one.EndedAt, one.Outcome = a.now(), recovery.OutcomeNotCured
	}
	return []recovery.Attempt{one}
}
