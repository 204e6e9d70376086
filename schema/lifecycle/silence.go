package lifecycle

import "time"

// SilentAfter is how long a node's agent may send no heartbeat before the node counts as silent.
const SilentAfter = 5 * time.Minute

// Polls reports whether a node in state s has an agent that sends heartbeats. A node in another state
// waits for an enrollment, or its machine is about to end.
func (s NodeState) Polls() bool {
	switch s {
	case NodeActive, NodeOffline, NodeQuarantined, NodeDraining, NodeDrained, NodeRetired:
		return true
	default:
		return false
	}
}

// Silent reports whether a node that entered its state at since, and whose last heartbeat arrived at
// heartbeat, zero without one, is silent at a time of the same clock. An active node has SilentAfter
// from the start of its state. Of the others, only an offline one can be silent without any heartbeat.
// While the node API receives no requests, silence proves nothing: that is the caller's question. In
// SQL, it is the function node_silent.
func Silent(s NodeState, since, heartbeat, at time.Time) bool {
	switch {
	case !s.Polls():
		return false
	case s == NodeActive && heartbeat.Before(since), s == NodeOffline && heartbeat.IsZero():
		heartbeat = since
	case heartbeat.IsZero():
		return false
	}
	return at.Sub(heartbeat) > SilentAfter
}
