// Package relay carries messages that were committed in Postgres to Temporal:
// results of node tasks to the activities that wait for them, agent events to
// the node's running workflow. So the answer to an agent never depends on
// Temporal, and a crash between the two loses nothing. Start with Relay.Run.
package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

const (
	batch       = 64
	parallel    = 8
	tryBudget   = 15 * time.Second // one delivery
	writeBudget = 10 * time.Second // noting its outcome
	stopBudget  = 3 * time.Second  // what is in hand, once told to stop
	pauseMin    = 250 * time.Millisecond
	pauseMax    = 15 * time.Second

	// lateEvery is how often a message that failed is looked for, lateForgotten
	// how long one is believed to be there. The outbox backs off up to a minute.
	lateEvery     = time.Second
	lateForgotten = 3 * time.Minute

	// removeAfter is how long after a look delivered messages stay in the outbox,
	// to be removed together. A relay that dies meanwhile leaves them to be
	// delivered twice.
	removeAfter = 100 * time.Millisecond
)

// Metrics is what the relay counts.
type Metrics interface {
	// Relayed counts a try: kind result or event; outcome delivered, orphaned
	// or failed.
	Relayed(kind, outcome string)
	// OutboxAge sets the age of the oldest message that failed and is still to
	// be delivered, 0 for none.
	OutboxAge(age time.Duration)
}

// Relay delivers an outbox's messages. Any number may run on one outbox.
type Relay struct {
	Outbox   Outbox
	Temporal Temporal
	Metrics  Metrics
	Log      *slog.Logger
}

// Run delivers until ctx ends, and then finishes what it has in hand, for at most
// stopBudget; what is left is offered to the next relay. While the database or
// Temporal is away it tries again with a growing pause.
func (r *Relay) Run(ctx context.Context) {
	work, cancel := inHand(ctx)
	defer cancel()
	d := &desk{Relay: r, ended: make(chan delivery), busy: map[string]bool{}, late: map[int64]lateMessage{}}
	d.run(ctx, work)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// inHand lets work go on for stopBudget after the process was told to stop.
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

// deliver tries one message and notes the outcome; that it was delivered is for
// the desk to note. With away it is not tried: Temporal was away a moment ago.
func (r *Relay) deliver(ctx context.Context, m Message, away bool) delivery {
	err := error(schema.NewError(schema.KindServiceUnavailable, "Temporal was away a moment ago"))
	if !away {
		err = r.send(ctx, m)
	}
	outcome := outcomeOf(m, err)
	r.Metrics.Relayed(kindOf(m), outcome)
	if outcome == outcomeDelivered {
		return delivery{m, outcome, false}
	}
	r.Log.Warn("message for Temporal not delivered", slog.String("outcome", outcome),
		slog.Int64("message", m.ID), slog.String("workflow_id", workflowOf(m)),
		slog.Int("attempts", m.Attempts+1), slog.Any("err", err))
	ctx, cancel := context.WithTimeout(ctx, writeBudget)
	defer cancel()
	note := r.Outbox.MarkFailed
	if outcome == outcomeOrphaned {
		note = r.Outbox.MarkOrphaned
	}
	if err := note(ctx, m.ID, err.Error()); err != nil {
		// The message is offered again: delivering twice is harmless.
		r.Log.Warn("noting a message's outcome", slog.Int64("message", m.ID), slog.Any("err", err))
		outcome = outcomeFailed
	}
	return delivery{m, outcome, schema.KindOf(err) == schema.KindServiceUnavailable}
}

func (r *Relay) send(ctx context.Context, m Message) error {
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

const (
	outcomeDelivered = "delivered"
	outcomeOrphaned  = "orphaned"
	outcomeFailed    = "failed"
)

// outcomeOf is the decision about a try. An event nobody waits for is done: the
// database holds the same fact for whoever asks later. A result nobody waits
// for is work of a node that found no owner, and stays visible.
func outcomeOf(m Message, err error) string {
	if err == nil {
		return outcomeDelivered
	}
	e := schema.AsError(err)
	if e.Kind != schema.KindNotFound {
		return outcomeFailed
	}
	if m.Event != nil || e.Reason == schema.ReasonSettled {
		return outcomeDelivered
	}
	return outcomeOrphaned
}

func kindOf(m Message) string {
	if m.Event != nil {
		return "event"
	}
	return "result"
}

func workflowOf(m Message) string {
	if m.Event != nil {
		return m.WorkflowID
	}
	return m.Owner.WorkflowID
}
