package relay

import (
	"context"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Outbox is the table of messages for Temporal. A message is committed in the
// transaction of the change that it reports.
type Outbox interface {
	// Take deletes the delivered messages, unless they were rewritten since, and
	// reserves up to limit due messages for a short time, oldest first. It is one
	// transaction. A limit of 0 only deletes.
	Take(ctx context.Context, limit int, delivered []Message) ([]Message, error)
	// Release makes reserved messages that were not attempted due at once, unless
	// the reservation ended and another relay took them.
	Release(ctx context.Context, messages []Message) error
	// MarkOrphaned keeps a message without a recipient for inspection.
	MarkOrphaned(ctx context.Context, id int64, why string) error
	// MarkFailed records a failed attempt; the message is due again after a
	// backoff.
	MarkFailed(ctx context.Context, id int64, why string) error
	// Wake receives a value after a message was written.
	Wake() <-chan struct{}
}

// Temporal delivers messages. Both methods return KindNotFound if the workflow or
// activity is no longer waiting.
type Temporal interface {
	// CompleteTask ends the activity that waits for the task. Its workflow reads the
	// result from the database.
	CompleteTask(ctx context.Context, owner task.Owner, r task.Reference) error
	// SignalAgent sends an agent event to the node's running workflow.
	SignalAgent(ctx context.Context, workflowID string, e lifecycle.AgentEvent) error
}

// Metrics counts deliveries.
type Metrics interface {
	// Relayed counts an attempt. kind is result or event; outcome is delivered,
	// orphaned or failed.
	Relayed(kind, outcome string)
}
