// Package relay carries messages that were committed in Postgres to Temporal:
// results of node tasks to the activities that wait for them, agent events to
// the node's running workflow. So the answer to an agent never depends on
// Temporal, and a crash between the two loses nothing. Start with Relay.Run.
package relay

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// ReasonSettled is the reason of a KindNotFound answer when the activity was
// completed before or was superseded: there is nothing left to deliver. Without
// it a result whose activity is gone is kept as orphaned.
const ReasonSettled = "settled"

const (
	batch       = 64
	parallel    = 8
	tryBudget   = 15 * time.Second // one delivery
	writeBudget = 10 * time.Second // noting its outcome
	stopBudget  = 3 * time.Second  // a round's rest, once told to stop
	pauseMin    = 250 * time.Millisecond
	pauseMax    = 15 * time.Second
)

// Metrics is what the relay counts.
type Metrics interface {
	// Relayed counts a try: kind result or event; outcome delivered, orphaned
	// or failed.
	Relayed(kind, outcome string)
	// OutboxAge sets the age of the oldest message that the last round with
	// messages could not deliver, 0 for none.
	OutboxAge(age time.Duration)
}

// Relay delivers an outbox's messages. Any number may run on one outbox.
type Relay struct {
	Outbox   Outbox
	Temporal Temporal
	Metrics  Metrics
	Log      *slog.Logger
}

// Run delivers until ctx ends, and then finishes the round it is in, for at most
// stopBudget; what is left is offered to the next relay. While the database or
// Temporal is away it tries again with a growing pause.
func (r *Relay) Run(ctx context.Context) {
	pause := time.Duration(0)
	for ctx.Err() == nil {
		n, ok := r.round(ctx)
		switch {
		case !ok:
			pause = min(max(2*pause, pauseMin), pauseMax)
			sleep(ctx, pause)
		case n == batch:
			pause = 0
		default:
			pause = 0
			select {
			case <-ctx.Done():
			case <-r.Outbox.Wake():
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// round takes and delivers one batch. ok is false when the database or Temporal
// is away.
func (r *Relay) round(ctx context.Context) (n int, ok bool) {
	messages, err := r.Outbox.Take(ctx, batch)
	if err != nil {
		if ctx.Err() == nil {
			r.Log.Warn("taking messages from the outbox", slog.Any("err", err))
		}
		return 0, false
	}
	if len(messages) == 0 {
		return 0, true
	}
	ctx, cancel := inHand(ctx)
	defer cancel()
	done := make([]bool, len(messages))
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, m := range messages {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			done[i] = r.deliver(ctx, m)
		})
	}
	wg.Wait()
	return len(messages), r.judge(messages, done)
}

// inHand lets a round go on for stopBudget after the process was told to stop.
func inHand(ctx context.Context) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep(work, stopBudget)
		cancel()
	})
	return work, func() {
		stop()
		cancel()
	}
}

// judge publishes the age of the oldest message that is still there.
func (r *Relay) judge(messages []schema.OutboxMessage, done []bool) (all bool) {
	var oldest time.Time
	all = true
	for i, m := range messages {
		if done[i] {
			continue
		}
		all = false
		if oldest.IsZero() || m.CreatedAt.Before(oldest) {
			oldest = m.CreatedAt
		}
	}
	age := time.Duration(0)
	if !oldest.IsZero() {
		age = time.Since(oldest)
	}
	r.Metrics.OutboxAge(age)
	return all
}

// deliver tries one message and notes the outcome. It reports false when the
// message is still to be delivered.
func (r *Relay) deliver(ctx context.Context, m schema.OutboxMessage) bool {
	err := r.send(ctx, m)
	outcome := outcomeOf(m, err)
	r.Metrics.Relayed(kindOf(m), outcome)
	if outcome != outcomeDelivered {
		r.Log.Warn("message for Temporal not delivered", slog.String("outcome", outcome),
			slog.Int64("message", m.ID), slog.String("workflow_id", workflowOf(m)),
			slog.Int("attempts", m.Attempts+1), slog.Any("err", err))
	}
	ctx, cancel := context.WithTimeout(ctx, writeBudget)
	defer cancel()
	if err := r.note(ctx, m, outcome, err); err != nil {
		// The message is offered again: delivering twice is harmless.
		r.Log.Warn("noting a message's outcome", slog.Int64("message", m.ID), slog.Any("err", err))
		return false
	}
	return outcome != outcomeFailed
}

func (r *Relay) send(ctx context.Context, m schema.OutboxMessage) error {
	ctx, cancel := context.WithTimeout(ctx, tryBudget)
	defer cancel()
	switch {
	case m.Result != nil:
		return r.Temporal.CompleteTask(ctx, m.Owner, *m.Result)
	case m.Event != nil:
		return r.Temporal.SignalAgent(ctx, m.WorkflowID, *m.Event)
	}
	return schema.Errorf(schema.KindInternal, "outbox message %d holds neither result nor event", m.ID)
}

func (r *Relay) note(ctx context.Context, m schema.OutboxMessage, outcome string, err error) error {
	switch outcome {
	case outcomeDelivered:
		return r.Outbox.Delivered(ctx, m.ID)
	case outcomeOrphaned:
		return r.Outbox.Orphaned(ctx, m.ID, err.Error())
	default:
		return r.Outbox.Failed(ctx, m.ID, err.Error())
	}
}

const (
	outcomeDelivered = "delivered"
	outcomeOrphaned  = "orphaned"
	outcomeFailed    = "failed"
)

// outcomeOf is the decision about a try. An event nobody waits for is done: the
// database holds the same fact for whoever asks later. A result nobody waits
// for is work of a node that found no owner, and stays visible.
func outcomeOf(m schema.OutboxMessage, err error) string {
	if err == nil {
		return outcomeDelivered
	}
	e := schema.AsError(err)
	if e.Kind != schema.KindNotFound {
		return outcomeFailed
	}
	if m.Event != nil || e.Reason == ReasonSettled {
		return outcomeDelivered
	}
	return outcomeOrphaned
}

func kindOf(m schema.OutboxMessage) string {
	if m.Event != nil {
		return "event"
	}
	return "result"
}

func workflowOf(m schema.OutboxMessage) string {
	if m.Event != nil {
		return m.WorkflowID
	}
	return m.Owner.WorkflowID
}
