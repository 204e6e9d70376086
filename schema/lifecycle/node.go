package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// NodeState is the lifecycle state of a node, as written on the wire and in
// the database. It is one of four vocabularies that are never mixed: node
// state, instance state (InstanceState), task status (Status) and, later,
// allocation state.
type NodeState string

// The node states, in the order of a node's life.
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
	NodeRemoving        NodeState = "removing"
	NodeRemoved         NodeState = "removed"
)

// NodeStates returns every node state in the order of a node's life.
func NodeStates() []NodeState {
	return []NodeState{
		NodeRegistered, NodeBootstrapIssued, NodeEnrolling, NodeActive, NodeOffline,
		NodeQuarantined, NodeDraining, NodeDrained, NodeRetired, NodeRemoving, NodeRemoved,
	}
}

// Action names what can be done to a node. Actions that run as workflows carry
// the workflow's type name (see WorkflowType).
type Action string

// The actions of the table of legal moves.
const (
	ActionRegister          Action = "register"
	ActionEnroll            Action = "enroll"
	ActionProvision         Action = "provision"
	ActionHeartbeatLost     Action = "heartbeat-lost"
	ActionHeartbeatBack     Action = "heartbeat-back"
	ActionQuarantine        Action = "quarantine"
	ActionRelease           Action = "release"
	ActionDrain             Action = "drain"
	ActionRetire            Action = "retire"
	ActionReactivate        Action = "reactivate"
	ActionRemove            Action = "remove"
	ActionReissueEnrollment Action = "reissue-enrollment"
)

// Move is one row of the table of legal moves.
type Move struct {
	Action Action
	// From lists the states the action may start in. Empty for register, which
	// creates the node.
	From []NodeState
	// Claim is the state the node enters when the operation is accepted; empty
	// means that acceptance leaves the state as it was.
	Claim NodeState
	// Through lists every state the node may be seen in while the operation
	// runs, apart from the state it started in.
	Through []NodeState
	// To is the state after success; empty means unchanged.
	To NodeState
	// Operation is true when the action runs as a workflow under the node's
	// workflow ID, and so excludes every other operation on the node.
	Operation bool
	// Does says in an operator's words what the action does.
	Does string
}

// Moves returns the table of legal moves. Everything it does not list is
// refused with KindInvalidRequest naming the state. docs/states.md is generated
// from it.
func Moves() []Move {
	return []Move{
		{Action: ActionRegister, To: NodeRegistered,
			Does: "Inventory row, SKU checked; no workflow."},
		{Action: ActionEnroll, Operation: true,
			From:    []NodeState{NodeRegistered, NodeBootstrapIssued, NodeEnrolling},
			Through: []NodeState{NodeBootstrapIssued, NodeEnrolling}, To: NodeActive,
			Does: "Identity only: bundle made, token claimed; ends at the agent's first authenticated poll."},
		{Action: ActionProvision, Operation: true,
			From: []NodeState{NodeRegistered, NodeActive}, To: NodeActive,
			Does: "A machine that can be given work: created or adopted, facts and probe checked against the SKU."},
		{Action: ActionHeartbeatLost, From: []NodeState{NodeActive}, To: NodeOffline,
			Does: "By the watchdog when heartbeats stop; not an operation."},
		{Action: ActionHeartbeatBack, From: []NodeState{NodeOffline}, To: NodeActive,
			Does: "By the watchdog when heartbeats return; not an operation."},
		{Action: ActionQuarantine, From: []NodeState{NodeActive, NodeOffline, NodeDrained}, To: NodeQuarantined,
			Does: "By an operator or a policy, with a reason."},
		{Action: ActionRelease, From: []NodeState{NodeQuarantined},
			Does: "Back to the state before the quarantine."},
		{Action: ActionDrain, Operation: true,
			From:  []NodeState{NodeActive, NodeOffline, NodeQuarantined},
			Claim: NodeDraining, Through: []NodeState{NodeDraining}, To: NodeDrained,
			Does: "Cordon, end or move the work before a deadline; cancel restores the state before."},
		{Action: ActionRetire, Operation: true,
			From: []NodeState{NodeActive, NodeOffline, NodeQuarantined, NodeDrained}, To: NodeRetired,
			Does: "Reversible: polling and renewal go on, no work is given. Refused while work is bound; with drain, drains first."},
		{Action: ActionReactivate, Operation: true,
			From: []NodeState{NodeRetired, NodeDrained}, To: NodeActive,
			Does: "Health probe first, then back to service."},
		{Action: ActionRemove, Operation: true,
			From:  []NodeState{NodeRetired},
			Claim: NodeRemoving, Through: []NodeState{NodeRemoving}, To: NodeRemoved,
			Does: "Machine torn down by the ledger, identity denied for ever, tokens void, row kept."},
		{Action: ActionReissueEnrollment,
			From: []NodeState{NodeRegistered, NodeBootstrapIssued, NodeEnrolling, NodeActive,
				NodeOffline, NodeQuarantined, NodeDrained, NodeRetired},
			Does: "New token and recovery bundle; state unchanged."},
	}
}

// MoveOf returns the row of an action. ok is false for an unknown action.
func MoveOf(a Action) (m Move, ok bool) {
	for _, m := range Moves() {
		if m.Action == a {
			return m, true
		}
	}
	return Move{}, false
}

// CheckMove returns the row for action a when it may start in state s, and
// otherwise a KindInvalidRequest error that names the state, the states the
// action starts in, and the action that leads there when one does.
func CheckMove(a Action, s NodeState) (Move, error) {
	m, ok := MoveOf(a)
	if !ok {
		return Move{}, schema.Errorf(schema.KindInvalidRequest, "unknown action %q", a)
	}
	if slices.Contains(m.From, s) {
		return m, nil
	}
	return Move{}, schema.NewError(schema.KindInvalidRequest, "%s", refusal(m, s)).WithReason("illegal_move")
}

func refusal(m Move, s NodeState) string {
	if s == NodeRemoved {
		return fmt.Sprintf("cannot %s a removed node: removal is final; register the host as a new node", m.Action)
	}
	names := make([]string, len(m.From))
	for i, f := range m.From {
		names[i] = string(f)
	}
	msg := fmt.Sprintf("cannot %s a node that is %s: it must be %s", m.Action, s, strings.Join(names, ", "))
	if via := leadsTo(s, m.From); via != "" {
		msg += fmt.Sprintf("; run: gpuaas node %s NODE", via)
	}
	return msg
}

// leadsTo names the operator's action that takes a node from s into one of the
// wanted states, or "" when no single action does.
func leadsTo(s NodeState, want []NodeState) Action {
	for _, m := range Moves() {
		if m.Operation && m.To != s && slices.Contains(m.From, s) && slices.Contains(want, m.To) {
			return m.Action
		}
	}
	return ""
}

// Refusing reports whether a node in state s is refused on every endpoint.
func (s NodeState) Refusing() bool { return s == NodeRemoved }

// TakesWork reports whether a node in state s may be given new work.
func (s NodeState) TakesWork() bool { return s == NodeActive }

// Valid reports whether s is a state of the table.
func (s NodeState) Valid() bool { return slices.Contains(NodeStates(), s) }

// SilentAfter is how long an active node may send no heartbeat before it is
// recorded as offline.
const SilentAfter = 5 * time.Minute
