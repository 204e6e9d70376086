package lifecycle

import "slices"

// NodeState is the lifecycle state of a node, as written on the wire and in
// the database. It is separate from the instance state (InstanceState) and from
// the status of a node task.
type NodeState string

// The node states, in lifecycle order.
const (
	NodeRegistered      NodeState = "registered"
	NodeBootstrapIssued NodeState = "bootstrap_issued"
	NodeEnrolling       NodeState = "enrolling"
	NodeActive          NodeState = "active"
	NodeOffline         NodeState = "offline"
	NodeQuarantined     NodeState = "quarantined"
	NodeDraining        NodeState = "draining"
	NodeDrained         NodeState = "drained"
	NodeRetired         NodeState = "retired"
	NodeTerminating     NodeState = "terminating"
	NodeRemoving        NodeState = "removing"
	NodeRemoved         NodeState = "removed"
)

// NodeStates returns every node state in lifecycle order.
func NodeStates() []NodeState {
	return []NodeState{
		NodeRegistered, NodeBootstrapIssued, NodeEnrolling, NodeActive, NodeOffline,
		NodeQuarantined, NodeDraining, NodeDrained, NodeRetired, NodeTerminating, NodeRemoving, NodeRemoved,
	}
}

// unenrolled returns the states of a node whose agent has never polled.
func unenrolled() []NodeState {
	return []NodeState{NodeRegistered, NodeBootstrapIssued, NodeEnrolling}
}

// Enrolled reports whether a node in state s has completed an enrollment.
func (s NodeState) Enrolled() bool { return !slices.Contains(unenrolled(), s) }

// Refusing reports whether every endpoint rejects a node in state s.
func (s NodeState) Refusing() bool { return s == NodeRemoved }
