package relay

import (
	"cmp"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Message is one message for Temporal. At most one of Result and Event is set; a
// message without either cannot be delivered, because its task has no result or its
// event cannot be read.
type Message struct {
	ID         int64
	WorkflowID string
	Owner      task.Owner // set with Result
	Result     *task.Reference
	Event      *lifecycle.AgentEvent
	Attempts   int
	CreatedAt  time.Time
	// ReservedUntil is when other relays may take the message.
	ReservedUntil time.Time
}

// kind is the message's kind in metrics.
func (m Message) kind() string {
	if m.Event != nil {
		return "event"
	}
	return "result"
}

// recipient is the workflow that the message is for.
func (m Message) recipient() string { return cmp.Or(m.Owner.WorkflowID, m.WorkflowID) }

// Outcomes of a delivery attempt.
const (
	outcomeDelivered = "delivered"
	outcomeOrphaned  = "orphaned"
	outcomeFailed    = "failed"
)

// outcome classifies the error of an attempt. An event without a recipient counts
// as delivered, because the database holds the same fact. A result whose run is
// unknown or was terminated is work of a node that no operation accepted, and stays
// visible (gpuaas task list --orphaned).
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
