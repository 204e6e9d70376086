package lifecycle

// AgentEvent is the argument of SignalAgent.
type AgentEvent struct {
	Event AgentEventName `json:"event"`
	// NodeID and Incarnation identify the identity, so that events of an older one
	// are ignored.
	NodeID      string `json:"node_id"`
	Incarnation int64  `json:"incarnation"`
	// Step is the task's step within its operation, of EventTaskReturned only.
	Step        string `json:"step,omitempty"`
	OperationID string `json:"operation_id,omitempty"`
}

// AgentEventName names an event that the node API observed.
type AgentEventName string

// The agent events.
const (
	EventBundleIssued AgentEventName = "bundle_issued"
	EventTokenClaimed AgentEventName = "token_claimed"
	EventFirstPoll    AgentEventName = "first_poll"
	// EventNodeRemoved ends operations that still wait for the node's agent.
	EventNodeRemoved AgentEventName = "node_removed"
	// EventTaskReturned: the node reported a lost task again, or an operator resumed
	// it. Step names the task.
	EventTaskReturned AgentEventName = "task_back"
)
