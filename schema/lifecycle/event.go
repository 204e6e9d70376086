package lifecycle

// AgentEvent is the argument of SignalAgent.
type AgentEvent struct {
	Event AgentEventName `json:"event"`
	// NodeID and Incarnation say whose event it is, so that one of an older
	// identity is ignored.
	NodeID      string `json:"node_id"`
	Incarnation int64  `json:"incarnation"`
	// Step is the task's step within its operation, of EventTaskReturned only.
	Step        string `json:"step,omitempty"`
	OperationID string `json:"operation_id,omitempty"`
}

// AgentEventName names what the node API saw.
type AgentEventName string

// The agent events.
const (
	EventBundleIssued AgentEventName = "bundle_issued"
	EventTokenClaimed AgentEventName = "token_claimed"
	EventFirstPoll    AgentEventName = "first_poll"
	// EventNodeRemoved ends what still waits for the node's agent.
	EventNodeRemoved AgentEventName = "node_removed"
	// EventTaskReturned: a task that was given up for lost was heard of again, or
	// an operator wants it offered again. Step names it.
	EventTaskReturned AgentEventName = "task_back"
)
