package lifecycle

import (
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// InstanceState is the state of the machine behind a node: created by a
// provider or adopted by the manual one.
type InstanceState string

// The instance states, in lifecycle order. An instance is pending from the claim of the
// operation that gets its machine, and running after facts, probe and SKU check.
const (
	InstanceNone          InstanceState = ""
	InstancePending       InstanceState = "pending"
	InstanceProvisioning  InstanceState = "provisioning"
	InstanceBootstrapping InstanceState = "bootstrapping"
	InstanceRunning       InstanceState = "running"
	InstanceDraining      InstanceState = "draining"
	InstanceTerminating   InstanceState = "terminating"
	InstanceTerminated    InstanceState = "terminated"
)

// InstanceMoves lists the legal moves of an instance: the states that may follow each state. A move to the same state is always
// legal. A move may skip states that were not recorded. Terminated is final: the next machine
// is another instance. A provisioning that starts again continues the instance, so it may return
// to pending; a cancel returns an instance to the state that follows from its node's, and that of a
// termination to the state before it.
func InstanceMoves() map[InstanceState][]InstanceState {
	return map[InstanceState][]InstanceState{
		InstanceNone:          {InstancePending},
		InstancePending:       {InstanceProvisioning, InstanceBootstrapping, InstanceRunning, InstanceTerminating, InstanceTerminated},
		InstanceProvisioning:  {InstancePending, InstanceBootstrapping, InstanceRunning, InstanceTerminating, InstanceTerminated},
		InstanceBootstrapping: {InstancePending, InstanceRunning, InstanceTerminating, InstanceTerminated},
		InstanceRunning:       {InstanceDraining, InstanceTerminating, InstanceTerminated},
		InstanceDraining:      {InstanceRunning, InstanceTerminating, InstanceTerminated},
		InstanceTerminating:   {InstancePending, InstanceProvisioning, InstanceBootstrapping, InstanceRunning, InstanceDraining, InstanceTerminated},
		InstanceTerminated:    {},
	}
}

// CheckMove returns KindInvalidRequest, reason instance_state, if an instance in state s
// must not enter another one.
func (s InstanceState) CheckMove(to InstanceState) error {
	if s == to || slices.Contains(InstanceMoves()[s], to) {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "an instance that is %q cannot become %q", s, to).WithReason("instance_state")
}

// Live reports whether the instance exists and is not terminated.
func (s InstanceState) Live() bool { return s != InstanceNone && s != InstanceTerminated }

// Follow returns the state of an instance in state s after its node has entered a state: an
// instance of a node out of service drains, and one of a node that is being terminated or removed
// terminates. If a removal or a termination ends early and the node returns to a state, the instance
// follows it: running in service, draining out of service, and pending if the node is not enrolled.
// Its machine may be gone nevertheless.
func (s InstanceState) Follow(n NodeState) InstanceState {
	switch {
	case !s.Live():
		return s
	case n == NodeRemoved:
		return InstanceTerminated
	case n == NodeTerminating || n == NodeRemoving:
		return InstanceTerminating
	case slices.Contains([]NodeState{NodeDraining, NodeDrained, NodeRetired}, n):
		return s.among(InstanceDraining, InstanceRunning, InstanceTerminating)
	case n.Enrolled():
		return s.among(InstanceRunning, InstanceDraining, InstanceTerminating)
	}
	return s.among(InstancePending, InstanceTerminating)
}

// among returns to if s is one of the states, and s otherwise.
func (s InstanceState) among(to InstanceState, states ...InstanceState) InstanceState {
	if slices.Contains(states, s) {
		return to
	}
	return s
}

// Instance is the machine behind a node: one machine's time as that node.
type Instance struct {
	InstanceID string        `json:"instance_id"`
	Provider   string        `json:"provider"`
	ExternalID string        `json:"external_id"`
	State      InstanceState `json:"state"`
	// StateSince is when the instance entered its state.
	StateSince time.Time `json:"state_since,omitzero"`
	machine.Options
}
