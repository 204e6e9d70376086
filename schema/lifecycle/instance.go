package lifecycle

import (
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
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

// InstanceMove is the states that may follow a state of an instance.
type InstanceMove struct {
	From InstanceState
	To   []InstanceState
}

// InstanceMoves lists the legal moves of an instance. A move to the same state is always
// legal. A move may skip states that were not recorded. Terminated is final: the next machine
// is another instance. A provisioning that starts again continues the instance, so it may return
// to pending; a cancel returns an instance to the state that follows from its node's.
func InstanceMoves() []InstanceMove {
	return []InstanceMove{
		{InstanceNone, []InstanceState{InstancePending}},
		{InstancePending, []InstanceState{InstanceProvisioning, InstanceBootstrapping, InstanceRunning, InstanceTerminating, InstanceTerminated}},
		{InstanceProvisioning, []InstanceState{InstancePending, InstanceBootstrapping, InstanceRunning, InstanceTerminating, InstanceTerminated}},
		{InstanceBootstrapping, []InstanceState{InstancePending, InstanceRunning, InstanceTerminating, InstanceTerminated}},
		{InstanceRunning, []InstanceState{InstanceDraining, InstanceTerminating, InstanceTerminated}},
		{InstanceDraining, []InstanceState{InstanceRunning, InstanceTerminating, InstanceTerminated}},
		{InstanceTerminating, []InstanceState{InstancePending, InstanceRunning, InstanceDraining, InstanceTerminated}},
		{InstanceTerminated, nil},
	}
}

// CheckMove returns KindInvalidRequest, reason instance_state, if an instance in state s
// must not enter another one.
func (s InstanceState) CheckMove(to InstanceState) error {
	if s == to || s.mayBecome(to) {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "an instance that is %q cannot become %q", s, to).WithReason("instance_state")
}

func (s InstanceState) mayBecome(to InstanceState) bool {
	return slices.ContainsFunc(InstanceMoves(), func(m InstanceMove) bool { return m.From == s && slices.Contains(m.To, to) })
}

// Live reports whether the instance exists and is not terminated.
func (s InstanceState) Live() bool { return s != InstanceNone && s != InstanceTerminated }

// Follow returns the state of an instance in state s after its node has entered a state: an
// instance of a node out of service drains, and one of a node that is being removed terminates.
// A removal that is canceled returns it to draining, or to pending if the node never enrolled.
func (s InstanceState) Follow(n NodeState) InstanceState {
	switch {
	case !s.Live():
		return s
	case n == NodeRemoved:
		return InstanceTerminated
	case n == NodeRemoving:
		return InstanceTerminating
	case slices.Contains([]NodeState{NodeDraining, NodeDrained, NodeRetired}, n):
		return s.among(InstanceDraining, InstanceRunning, InstanceTerminating)
	case n.Enrolled():
		return s.among(InstanceRunning, InstanceDraining)
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
	MachineOptions
}

// MachineOptions choose the machine that a provisioning creates. Region, Type and Image are
// IDs of the provider's catalog, empty for its default.
type MachineOptions struct {
	Region string `json:"region,omitempty"`
	Type   string `json:"type,omitempty"`
	Image  string `json:"image,omitempty"`
	// Spot asks for a machine that the provider may take back.
	Spot bool `json:"spot,omitempty"`
	// SSHKeys are public keys in the format of authorized_keys, for access in an emergency.
	SSHKeys []string `json:"ssh_keys,omitempty"`
}

// Allows reports whether a request with other options can use a machine with these: it names
// none, or the same ones.
func (o MachineOptions) Allows(request MachineOptions) bool {
	same := func(is, asked string) bool { return asked == "" || asked == is }
	return same(o.Region, request.Region) && same(o.Type, request.Type) && same(o.Image, request.Image) && (!request.Spot || o.Spot) &&
		(len(request.SSHKeys) == 0 || slices.Equal(o.SSHKeys, request.SSHKeys))
}
