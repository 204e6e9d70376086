package activities

import "github.com/gpuaas/gpuaas/schema/task"

// ReclaimResult is what the reclaimer decided about one task.
type ReclaimResult string

// The reclaimer's decisions.
const (
	// ReclaimRequeued: a read or idempotent task is offered again.
	ReclaimRequeued ReclaimResult = "requeued"
	// ReclaimLost: a destructive one is given up; its operation parks.
	ReclaimLost ReclaimResult = "lost"
	// ReclaimVoided: its operation is over.
	ReclaimVoided ReclaimResult = "voided"
	// ReclaimRedelivered: a result is stored and not delivered for too long.
	ReclaimRedelivered ReclaimResult = "nudged"
)

// ReclaimResults returns the decisions, for metrics.
func ReclaimResults() []ReclaimResult {
	return []ReclaimResult{ReclaimRequeued, ReclaimLost, ReclaimVoided, ReclaimRedelivered}
}

// ReclaimRequest asks for one batch of the reclaimer.
type ReclaimRequest struct {
	// After is the last task of the batch before, "" for the first.
	After string `json:"after,omitempty"`
	Limit int    `json:"limit"`
}

// ReclaimDecision is one decision.
type ReclaimDecision struct {
	TaskID string        `json:"task_id"`
	NodeID string        `json:"node_id"`
	Host   string        `json:"host"`
	Type   task.Type     `json:"type"`
	Result ReclaimResult `json:"result"`
}

// ReclaimReport is what a batch came to.
type ReclaimReport struct {
	Decisions []ReclaimDecision `json:"decisions,omitempty"`
	// Next is the After of the next batch, "" when there is none.
	Next string `json:"next,omitempty"`
}
