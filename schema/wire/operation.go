package wire

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
)

// OperationSummary is one operation in a list.
type OperationSummary struct {
	OperationID   string                   `json:"operation_id"`
	NodeID        string                   `json:"node_id"`
	Host          string                   `json:"host"`
	WorkflowID    string                   `json:"workflow_id"`
	RunID         string                   `json:"run_id"`
	Action        lifecycle.Action         `json:"action"`
	OpSeq         int64                    `json:"op_seq"`
	Status        lifecycle.OperationState `json:"status"`
	Phase         string                   `json:"phase"`
	WaitingOn     lifecycle.Attention      `json:"waiting_on"`
	Stuck         *lifecycle.Stuck         `json:"stuck,omitempty"`
	Actor         string                   `json:"actor"`
	Reason        string                   `json:"reason,omitempty"`
	CorrelationID string                   `json:"correlation_id"`
	Outcome       string                   `json:"outcome,omitempty"`
	StartedAt     time.Time                `json:"started_at"`
	EndedAt       *time.Time               `json:"ended_at,omitempty"`
	DeadlineAt    *time.Time               `json:"deadline_at,omitempty"`
	// PriorState is the node's state before the operation.
	PriorState lifecycle.NodeState `json:"prior_state,omitempty"`
}

// OperationList is the response to GET /api/v1/admin/operations.
type OperationList struct {
	Operations    []OperationSummary `json:"operations"`
	NextPageToken string             `json:"next_page_token,omitempty"`
}

// OperationView is the response to GET /api/v1/admin/operations/{operation_id} and every
// decision: the operation's whole status document.
type OperationView struct {
	lifecycle.OperationStatus
	// WebURL is the operation's page in Temporal's Web UI, when its address is
	// configured.
	WebURL string `json:"web_url,omitempty"`
	// Faults are the calls of an open operation that fail and are retried; empty if Temporal
	// does not respond.
	Faults []ControlPlaneFault `json:"faults,omitempty"`
	// ProbableCause is what the workers found about the operation's park; nil without one.
	ProbableCause *cause.Report `json:"probable_cause,omitempty"`
}

// ResolveOperation is the body of POST
// /api/v1/admin/operations/{operation_id}/{decision}. Phase and StuckSince address
// the decision to the parking that the operator saw: a decision about another one is
// rejected with decision_outdated. An empty field is not compared.
type ResolveOperation struct {
	Reason     string     `json:"reason"`
	Phase      string     `json:"phase,omitempty"`
	StuckSince *time.Time `json:"stuck_since,omitempty"`
}

// StuckOperation is an operation that needs attention: parked or overdue.
type StuckOperation struct {
	OperationSummary
	State  lifecycle.NodeState `json:"state"`
	WebURL string              `json:"web_url,omitempty"`
	// ProbableCause is the first candidate of the operation's probable cause.
	ProbableCause *cause.Candidate `json:"probable_cause,omitempty"`
}

// ComponentNodeIdentity is the component of the faults about identities of nodes: locks and alarms.
const ComponentNodeIdentity = "node-identity"

// ControlPlaneFault is something of the control plane that needs attention.
type ControlPlaneFault struct {
	Component string `json:"component"` // for example worker, or the ID of a schedule
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Next      string `json:"next,omitempty"`
}

// StuckList is the response to GET /api/v1/admin/stuck, oldest first. Only the first
// page has the nodes and the faults.
type StuckList struct {
	Stuck []StuckOperation `json:"stuck"`
	// Nodes are the nodes and requests that need attention, at most stuck.MaxNodes.
	Nodes []stuck.Node `json:"nodes"`
	// MoreNodes is the number of further nodes.
	MoreNodes int                 `json:"more_nodes,omitempty"`
	Faults    []ControlPlaneFault `json:"faults"`
	// More is the number of operations that follow those in Stuck.
	More          int    `json:"more"`
	NextPageToken string `json:"next_page_token,omitempty"`
}
