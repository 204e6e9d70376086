package wire

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// TaskView is a task as operators see it, the body of GET /tasks/{task_id} and
// an element of GET /tasks.
type TaskView struct {
	TaskID        string      `json:"task_id"`
	NodeID        string      `json:"node_id"`
	Host          string      `json:"host"`
	Type          task.Type   `json:"type"`
	Effect        task.Effect `json:"effect"`
	Status        task.Status `json:"status"`
	Step          string      `json:"step"`
	Seq           int64       `json:"seq"`
	Incarnation   int64       `json:"incarnation"`
	OperationID   string      `json:"operation_id"`
	WorkflowID    string      `json:"workflow_id"`
	RunID         string      `json:"run_id"`
	CorrelationID string      `json:"correlation_id,omitempty"`
	// Attempts is the number of dispatches, which is the newest lease's epoch.
	Attempts int64 `json:"attempts"`
	// Holder and LeaseUntil are of the newest lease; LeaseUntil is null before
	// the first.
	Holder       string     `json:"holder,omitempty"`
	LeaseUntil   *time.Time `json:"lease_until"`
	Progress     string     `json:"progress,omitempty"`
	Paused       bool       `json:"paused,omitempty"`
	Deadline     *time.Time `json:"deadline"`
	CreatedAt    time.Time  `json:"created_at"`
	DispatchedAt *time.Time `json:"dispatched_at"`
	FinishedAt   *time.Time `json:"finished_at"`
	// CancelRequested is the reason of an operator's cancel that the agent has
	// not acknowledged yet.
	CancelRequested string       `json:"cancel_requested,omitempty"`
	Result          *task.Result `json:"result,omitempty"`
	// ResultProof proves that the node reported the result; not in lists.
	ResultProof *trust.ResultProof `json:"result_proof,omitempty"`
}

// TaskList is the response to GET /api/v1/admin/tasks.
type TaskList struct {
	Tasks         []TaskView `json:"tasks"`
	NextPageToken string     `json:"next_page_token,omitempty"`
}

// TaskDecision is the body of POST /tasks/{task_id}/resume and …/cancel.
type TaskDecision struct {
	Reason string `json:"reason"`
}
