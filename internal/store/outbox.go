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
	s      *Store
	l      *Listener
	wake   <-chan struct{}
	handed chan relay.Message
}

const (
	// holdFor is how long a message that was taken is offered to nobody else.
	holdFor = 30 * time.Second
	// handedMost is how many results may wait for the relay of their process, and
	// handedRoom what is left of that for results that are being stored.
	handedMost, handedRoom = 512, 256
)

// Outbox returns the outbox, woken by the listener.
func (s *Store) Outbox(l *Listener) *Outbox {
	wake, _ := l.subscribe(channelOutbox, 0)
	return &Outbox{s, l, wake, make(chan relay.Message, handedMost)}
}

// Take removes what was delivered and locks up to limit undelivered messages
// that are due, oldest first, for half a minute: who takes them and dies leaves
// them due again after it. To remove twice is to remove once.
func (o *Outbox) Take(ctx context.Context, limit int, delivered []relay.Message) ([]relay.Message, error) {
	var messages []relay.Message
	err := o.s.read(ctx, "taking messages from the outbox", func(ctx context.Context) error {
		ids, created := make([]int64, len(delivered)), make([]time.Time, len(delivered))
		for i, m := range delivered {
			ids[i], created[i] = m.ID, m.CreatedAt
		}
		rows, err := o.s.q.TakeOutbox(ctx, ids, created, int32(min(limit, 1000)))
		if err != nil {
			return err
		}
		messages = make([]relay.Message, len(rows))
		for i, r := range rows {
			if messages[i], err = outboxMessage(r); err != nil {
				return err
			}
		}
		return nil
	})
	return messages, err
}

func outboxMessage(r sqlc.TakeOutboxRow) (relay.Message, error) {
	m := relay.Message{ID: r.ID, Attempts: int(r.Attempts), CreatedAt: r.CreatedAt}
	if r.TaskID == nil {
		m.WorkflowID = r.WorkflowID
		return m, json.Unmarshal(r.Event, &m.Event)
	}
	m.Result = resultOf(task.Status(r.TaskStatus), r.LeaseEpoch, r.Result)
	m.Owner = task.Owner{WorkflowID: *r.OwnerWorkflowID, RunID: *r.OwnerRunID, ActivityID: *r.OwnerActivityID}
	return m, nil
}

// MarkOrphaned marks a message whose workflow is gone: kept and visible.
func (o *Outbox) MarkOrphaned(ctx context.Context, id int64, why string) error {
	return o.s.read(ctx, "marking a message as orphaned", func(ctx context.Context) error {
		_, err := o.s.q.OrphanOutbox(ctx, id, cleanText(why))
		return err
	})
}

// MarkFailed notes a failed try; the message is due again after a backoff of 1 s
// doubling to a minute.
func (o *Outbox) MarkFailed(ctx context.Context, id int64, why string) error {
	return o.s.read(ctx, "noting a failed delivery", func(ctx context.Context) error {
		_, err := o.s.q.FailOutbox(ctx, id, cleanText(why))
		return err
	})
}

// Wake gets a value when a message was written, and now and then anyway. From
// the call to Rest on, whoever called is this process's relay: results that are
// stored here wake it and nobody else. A notification would make their
// transactions wait for each other, which the database lets commit one at a time
// when they notify.
func (o *Outbox) Wake() <-chan struct{} {
	o.s.relay.Store(o)
	return o.wake
}

// LocalResults gives the results that this process stored: they are taken as by Take,
// which saves the relay a look and a transaction for each. Those that nobody
// reads are due after holdFor.
func (o *Outbox) LocalResults() <-chan relay.Message { return o.handed }

// hold is how long a result's message is kept from the others: holdFor when it
// can be handed to this process's relay, else 0.
func (o *Outbox) hold() time.Duration {
	if o == nil || len(o.handed) > handedMost-handedRoom {
		return 0
	}
	return holdFor
}

// hand gives a held message to the relay.
func (o *Outbox) hand(m relay.Message) {
	select {
	case o.handed <- m:
	default: // it is due when it is held no more
	}
}

// Rest says that this process's relay ended: results wake the others' again.
func (o *Outbox) Rest() { o.s.relay.Store(nil) }

// resultChannel is where a stored result is told: nowhere for a process that
// has a relay.
func (s *Store) resultChannel() string {
	if s.relay.Load() != nil {
		return ""
	}
	return channelOutbox
}

// wakeRelay wakes this process's relay, if it has one.
func (s *Store) wakeRelay() {
	if o := s.relay.Load(); o != nil {
		o.l.wakeOne(channelOutbox)
	}
}

// tell puts an event of a node for a workflow into the outbox.
func (u *unit) tell(ctx context.Context, workflowID, nodeID string, incarnation int64, event lifecycle.AgentEventName) error {
	return u.tellEvent(ctx, workflowID, lifecycle.AgentEvent{Event: event, NodeID: nodeID, Incarnation: incarnation})
}

func (u *unit) tellEvent(ctx context.Context, workflowID string, e lifecycle.AgentEvent) error {
	return u.later.InsertEventMessage(ctx, channelOutbox, workflowID, &e)
}

// tellEnrolment tells an event of an identity to the workflow that waits for it:
// the node's enrolment, or its reissue. An enrolment that is open while the
// identity is reissued waits for the same node and hears it too.
func (u *unit) tellEnrolment(ctx context.Context, nodeID string, incarnation int64, reissued bool, event lifecycle.AgentEventName) error {
	node, err := u.GetNode(ctx, nodeID)
	if err != nil {
		return err
	}
	if !reissued {
		return u.tell(ctx, lifecycle.NodeWorkflowID(node.Host, nodeID), nodeID, incarnation, event)
	}
	open, err := u.OpenOperations(ctx, nodeID)
	if err != nil {
		return err
	}
	for _, op := range open {
		if op.Action != lifecycle.ActionEnroll {
			continue
		}
		if err := u.tell(ctx, lifecycle.NodeWorkflowID(node.Host, nodeID), nodeID, incarnation, event); err != nil {
			return err
		}
	}
	return u.tell(ctx, lifecycle.ReissueWorkflowID(node.Host, nodeID), nodeID, incarnation, event)
}
