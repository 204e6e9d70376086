package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Outbox implements relay.Outbox.
type Outbox struct {
	db   *db
	wake <-chan struct{}
}

const (
	// holdFor is how long a message stays reserved for the relay that took it.
	holdFor = 30 * time.Second
	// maxTake bounds the messages of one Take.
	maxTake = 1000
)

// Outbox returns the outbox, woken by the listener.
func (s *Tasks) Outbox(l *Listener) *Outbox {
	wake, _ := l.Subscribe(channelOutbox, 0)
	return &Outbox{s.db, wake}
}

// Take removes the delivered messages and reserves up to limit due ones, oldest
// first, for half a minute. The messages of a relay that dies become due again
// after that. Removing a message twice is a no-op.
func (o *Outbox) Take(ctx context.Context, limit int, delivered []relay.Message) ([]relay.Message, error) {
	p := sqlc.TakeOutboxParams{DeliveredIds: make([]int64, len(delivered)), DeliveredCreated: make([]time.Time, len(delivered)),
		MaxRows: int32(min(limit, maxTake)), HoldSeconds: holdFor.Seconds()}
	for i, m := range delivered {
		p.DeliveredIds[i], p.DeliveredCreated[i] = m.ID, m.CreatedAt
	}
	rows, err := query(ctx, o.db, "taking messages from the outbox", func(ctx context.Context) ([]sqlc.TakeOutboxRow, error) {
		return o.db.q.TakeOutbox(ctx, p)
	})
	return convert(rows, outboxMessage), err
}

func outboxMessage(r sqlc.TakeOutboxRow) relay.Message {
	m := relay.Message{ID: r.ID, WorkflowID: r.WorkflowID, Attempts: int(r.Attempts), CreatedAt: r.CreatedAt, ReservedUntil: r.NextTryAt}
	switch {
	case r.TaskID == nil:
		_ = json.Unmarshal(r.Event, &m.Event) // the relay keeps a message without content as orphaned
		return m
	case r.OwnerWorkflowID == nil: // its task is gone, as after a partial restore
		return m
	}
	if s := task.Status(r.TaskStatus); s.Terminal() || s == task.Lost {
		m.Result = &task.Reference{TaskID: *r.TaskID, Status: s}
	}
	m.Owner = task.Owner{WorkflowID: *r.OwnerWorkflowID, RunID: *r.OwnerRunID, ActivityID: *r.OwnerActivityID}
	return m
}

// Release makes messages due at once that Take reserved and no one attempted. It
// changes no message that another relay took after the reservation ended.
func (o *Outbox) Release(ctx context.Context, messages []relay.Message) error {
	ids := convert(messages, func(m relay.Message) int64 { return m.ID })
	until := convert(messages, func(m relay.Message) time.Time { return m.ReservedUntil })
	return o.db.Call(ctx, "releasing messages", func(ctx context.Context) error { return o.db.q.ReleaseOutbox(ctx, ids, until) })
}

// MarkOrphaned marks a message whose workflow is gone. It is kept for inspection.
func (o *Outbox) MarkOrphaned(ctx context.Context, id int64, why string) error {
	return o.db.Call(ctx, "marking a message as orphaned", func(ctx context.Context) error {
		return o.db.q.OrphanOutbox(ctx, id, cleanText(why))
	})
}

// MarkFailed records a failed delivery. The message is due again after a backoff of
// 1 s that doubles up to a minute.
func (o *Outbox) MarkFailed(ctx context.Context, id int64, why string) error {
	return o.db.Call(ctx, "recording a failed delivery", func(ctx context.Context) error {
		return o.db.q.FailOutbox(ctx, id, cleanText(why))
	})
}

// Wake returns a channel that receives after a message was written.
func (o *Outbox) Wake() <-chan struct{} { return o.wake }

// enqueueSignal puts an event for a workflow into the outbox.
func (tx *tx) enqueueSignal(ctx context.Context, workflowID string, e lifecycle.AgentEvent) error {
	tx.notify(channelOutbox, "")
	return tx.InsertEventMessage(ctx, workflowID, &e)
}

// enqueueResult puts a task's result, or the lack of one, into the outbox.
func (tx *tx) enqueueResult(ctx context.Context, taskID, workflowID string) error {
	if workflowID == "" { // a task of a rotation, for which no activity waits
		return nil
	}
	tx.notify(channelOutbox, "")
	return tx.InsertResultMessage(ctx, &taskID, workflowID)
}

// signalEnrollment signals the open enrollment of the node, for the first poll its open
// provisioning or repair, which may have created the machine, and for a reissued identity its open reissue. Without an open operation there is none to signal:
// a later one reads the state from the database.
func (tx *tx) signalEnrollment(ctx context.Context, nodeID string, incarnation int64, reissued bool, event lifecycle.AgentEventName) error {
	return tx.signalOpen(ctx, lifecycle.AgentEvent{Event: event, NodeID: nodeID, Incarnation: incarnation}, func(a lifecycle.Action) bool {
		return a == lifecycle.ActionEnroll || (a == lifecycle.ActionProvision || a == lifecycle.ActionRecover) && event == lifecycle.EventFirstPoll || reissued && (a == lifecycle.ActionReissueEnrollment || a == lifecycle.ActionReactivate)
	})
}

// signalNodeRemoved signals the node's open reissue that the node was removed.
func (tx *tx) signalNodeRemoved(ctx context.Context, nodeID string) error {
	return tx.signalOpen(ctx, lifecycle.AgentEvent{Event: lifecycle.EventNodeRemoved, NodeID: nodeID}, func(a lifecycle.Action) bool {
		return a == lifecycle.ActionReissueEnrollment
	})
}

// signalOpen signals the workflows of the node's open operations of the actions.
func (tx *tx) signalOpen(ctx context.Context, e lifecycle.AgentEvent, of func(lifecycle.Action) bool) error {
	open, err := tx.OpenOperations(ctx, e.NodeID)
	if err != nil {
		return err
	}
	for _, op := range open {
		if !of(op.Action) {
			continue
		}
		if err := tx.enqueueSignal(ctx, op.WorkflowID, e); err != nil {
			return err
		}
	}
	return nil
}
