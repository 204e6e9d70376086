package relay

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Message is one message for Temporal, committed with the change it
// speaks of. Exactly one of Result and Event is set.
type Message struct {
	ID int64
	// Owner is set with Result; WorkflowID with Event.
	Owner      task.Owner
	Result     *task.Result
	WorkflowID string
	Event      *lifecycle.AgentEvent
	Attempts   int
	CreatedAt  time.Time
}
