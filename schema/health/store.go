package health

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// ReasonPhase is the reason of a KindInvalidRequest for a transition that the node's phase does not
// allow.
const ReasonPhase = "wrong_phase"

// StateStore keeps the state of each node. Each transition is checked: one that the node's phase does
// not allow is a KindInvalidRequest with ReasonPhase and changes nothing. A transition that already
// happened, such as Healthy of a healthy node, changes nothing either and returns no failure. The methods are
// safe for concurrent use.
//
// A caller that acts on a transition first stores it (see Snapshot) and then acts, so that a restart
// between the two never acts twice.
type StateStore interface {
	// State returns the state of the node: the zero phase for an unknown one.
	State(node string) State
	// Healthy records that no check finds a fault. It is allowed in every phase. A reboot whose time has
	// not passed still counts, and no other one may start: the node may not have begun to restart yet.
	Healthy(node string, at time.Time) (State, error)
	// Unhealthy records that a check finds a fault. Only a node in PhaseUnknown or PhaseHealthy changes:
	// the others have a fault already.
	Unhealthy(node string, at time.Time) (State, error)
	// StartReboot reserves one reboot before it is requested. It is allowed in PhaseUnhealthy and
	// PhaseWaitingReboot, when the time of the last reboot has passed. wait is how long the node has to
	// become healthy; see RebootWait.
	StartReboot(node string, at time.Time, wait time.Duration) (State, error)
	// RefuseReboot returns the reservation of a reboot that certainly did not happen, for example
	// because the provider rejected the request. After a timeout, the reboot may have happened: then
	// the reservation stays. It is allowed in PhaseWaitingReboot.
	RefuseReboot(node string, at time.Time) (State, error)
	// StartDrain begins the drain before a replacement. It is allowed in PhaseUnhealthy and
	// PhaseWaitingReboot, when the time of the last reboot has passed.
	StartDrain(node string, at time.Time, wait time.Duration) (State, error)
	// StartReplace begins the replacement of the machine. It is allowed in PhaseDrain.
	StartReplace(node string, at time.Time) (State, error)
	// Forget drops the state of a node that is gone. An unknown node is not an error.
	Forget(node string)
	// Snapshot returns the states of all nodes, by name.
	Snapshot() []State
	// Restore replaces all states, for example with a stored snapshot. Two states of one node, or one
	// without a name, are a KindInvalidRequest.
	Restore(states []State) error
}

// memoryStore is a StateStore in memory.
type memoryStore struct {
	mu    sync.Mutex
	nodes map[string]stateFields
}

// NewMemoryStore returns an empty StateStore in memory. Snapshot and Restore carry it over a restart.
func NewMemoryStore() StateStore { return &memoryStore{nodes: map[string]stateFields{}} }

func (m *memoryStore) State(node string) State {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.nodes[node]
	f.Node = node
	return State{f}
}

func (m *memoryStore) Healthy(node string, at time.Time) (State, error) {
	return m.change(node, func(f *stateFields) bool {
		next := stateFields{Node: node, Phase: PhaseHealthy, Since: at}
		if f.Phase == PhaseHealthy {
			next.Since = f.Since
		}
		if at.Before(f.RebootUntil) {
			next.Reboots, next.RebootedAt, next.RebootUntil = f.Reboots, f.RebootedAt, f.RebootUntil
		}
		*f = next
		return true
	})
}

func (m *memoryStore) Unhealthy(node string, at time.Time) (State, error) {
	return m.change(node, func(f *stateFields) bool {
		if f.Phase == PhaseUnknown || f.Phase == PhaseHealthy {
			f.enter(PhaseUnhealthy, at)
			f.UnhealthySince = at
		}
		return true
	})
}

func (m *memoryStore) StartReboot(node string, at time.Time, wait time.Duration) (State, error) {
	return m.change(node, func(f *stateFields) bool {
		if !(State{*f}).CanRepair(at) {
			return false
		}
		f.enter(PhaseWaitingReboot, at)
		f.RebootUntil, f.RebootedAt = at.Add(wait), at
		f.Reboots++
		return true
	})
}

func (m *memoryStore) RefuseReboot(node string, at time.Time) (State, error) {
	return m.change(node, func(f *stateFields) bool {
		if f.Phase != PhaseWaitingReboot {
			return false
		}
		f.enter(PhaseUnhealthy, at)
		f.Reboots--
		f.RefusedAt, f.RebootUntil = at, time.Time{}
		return true
	})
}

func (m *memoryStore) StartDrain(node string, at time.Time, wait time.Duration) (State, error) {
	return m.change(node, func(f *stateFields) bool {
		if f.Phase == PhaseDrain {
			return true
		}
		if !(State{*f}).CanRepair(at) {
			return false
		}
		f.enter(PhaseDrain, at)
		f.DrainUntil = at.Add(wait)
		return true
	})
}

func (m *memoryStore) StartReplace(node string, at time.Time) (State, error) {
	return m.change(node, func(f *stateFields) bool {
		if f.Phase == PhaseDrain {
			f.enter(PhaseReplace, at)
		}
		return f.Phase == PhaseReplace
	})
}

func (m *memoryStore) Forget(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.nodes, node)
}

func (m *memoryStore) Snapshot() []State {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []State
	for _, node := range slices.Sorted(maps.Keys(m.nodes)) {
		all = append(all, State{m.nodes[node]})
	}
	return all
}

func (m *memoryStore) Restore(states []State) error {
	nodes := map[string]stateFields{}
	for _, s := range states {
		if _, twice := nodes[s.f.Node]; twice || s.f.Node == "" {
			return schema.NewError(schema.KindInvalidRequest, "stored states name the node %q twice or not at all", s.f.Node)
		}
		nodes[s.f.Node] = s.f
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes = nodes
	return nil
}

// change applies one transition to the state of a node, which f receives as a copy. f returns false
// if the phase does not allow the transition.
func (m *memoryStore) change(node string, f func(*stateFields) bool) (State, error) {
	if strings.TrimSpace(node) == "" {
		return State{}, schema.NewError(schema.KindInvalidRequest, "a node's state needs its name")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	next := m.nodes[node]
	next.Node = node
	if !f(&next) {
		before := m.nodes[node]
		before.Node = node
		return State{before}, schema.NewError(schema.KindInvalidRequest, "node %s is in phase %s, which does not allow this", node, before.Phase).WithReason(ReasonPhase)
	}
	m.nodes[node] = next
	return State{next}, nil
}

// enter starts a phase.
func (f *stateFields) enter(p Phase, at time.Time) { f.Phase, f.Since = p, at }
