package relay

import (
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Message is one message for Temporal. Exactly one of Result and Event is set.
type Message struct {
	ID int64
	// Owner is set with Result, WorkflowID with Event.
	Owner      task.Owner
	Result     *task.Result
	WorkflowID string
	Event      *lifecycle.AgentEvent
	Attempts   int
	CreatedAt  time.Time
}

// kind is the message's kind in metrics.
func (m Message) kind() string {
	if m.Event != nil {
		return "event"
	}
	return "result"
}

// recipient is the workflow that the message is for.
func (m Message) recipient() string {
	if m.Event != nil {
		return m.WorkflowID
	}
	return m.Owner.WorkflowID
}

// Outcomes of a delivery attempt.
const (
	outcomeDelivered = "delivered"
	outcomeOrphaned  = "orphaned"
	outcomeFailed    = "failed"
)

// outcome classifies the error of an attempt. An event without a recipient counts
// as delivered, because the database holds the same fact. A result without one
// is work of a node that no operation accepted, and stays visible.
func (m Message) outcome(err error) string {
	if err == nil {
		return outcomeDelivered
	}
	e := schema.AsError(err)
	if e.Kind != schema.KindNotFound {
		return outcomeFailed
	}
	if m.Event != nil || e.Reason == schema.ReasonActivityClosed {
		return outcomeDelivered
	}
	return outcomeOrphaned
}
