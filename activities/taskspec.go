package activities

import (
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
)

// TaskSpec is what a workflow asks a node to do.
type TaskSpec struct {
	OperationID string          `json:"operation_id"`
	OpSeq       int64           `json:"op_seq"`
	NodeID      string          `json:"node_id"`
	Step        string          `json:"step"` // unique within the operation
	Type        task.Type       `json:"type"`
	Params      json.RawMessage `json:"params,omitempty"`
	Deadline    time.Time       `json:"deadline"` // after it the envelope is void
	// Attempt counts the tries of the step within the operation, from 1; 0
	// means 1. Expect.OpSeq is filled in from OpSeq.
	Attempt       int64            `json:"attempt,omitempty"`
	Expect        task.Expectation `json:"expect,omitzero"`
	CorrelationID string           `json:"correlation_id"`
}

// TaskRow is a stored task as the dispatching activity needs it.
type TaskRow struct {
	TaskID      string
	NodeID      string
	Incarnation int64
	Type        task.Type
	Effect      task.Effect
	Params      json.RawMessage
	Seq         int64
	Status      task.Status
	Signed      bool // the envelope is attached: the task can be offered
	CreatedAt   time.Time
	// Stored is false for a task that is to be signed and stored yet.
	Stored bool
	Result *task.Result // set when Status is terminal or lost
}
