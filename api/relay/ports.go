package relay

import (
	"context"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Outbox is the table of messages for Temporal that were committed with the
// change they speak of.
type Outbox interface {
	// Take removes the messages that were delivered since, unless they were
	// written anew meanwhile, and locks up to limit others that are due, oldest
	// first, for a short time (FOR UPDATE SKIP LOCKED and a next-try stamp, no
	// transaction held afterwards). All of it is one transaction; a limit of 0
	// only removes.
	Take(ctx context.Context, limit int, delivered []Message) ([]Message, error)
	// MarkOrphaned marks a message whose workflow is gone: kept and visible.
	MarkOrphaned(ctx context.Context, id int64, why string) error
	// MarkFailed notes a failed try; the message is due again after a backoff.
	MarkFailed(ctx context.Context, id int64, why string) error
	// LocalResults gets the results that this process stored: they are taken already.
	LocalResults() <-chan Message
	// Wake gets a value when a message was written, and now and then anyway.
	Wake() <-chan struct{}
}

// Temporal delivers messages. Both calls answer ErrGone's kind (KindNotFound)
// when the workflow or the activity is no longer waiting.
type Temporal interface {
	// CompleteTask completes the activity that waits for the task.
	CompleteTask(ctx context.Context, owner task.Owner, r task.Result) error
	// SignalAgent delivers an agent event to the node's running workflow.
	SignalAgent(ctx context.Context, workflowID string, e lifecycle.AgentEvent) error
}
