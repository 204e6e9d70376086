// Package relay delivers the outbox's messages to Temporal: references to task results
// to the activities that wait for them, agent events to the node's running workflow. A
// response to an agent therefore never depends on Temporal, and a crash between
// the two loses nothing. Start with Relay.Run.
package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/gpuaas/gpuaas/schema"
)

const (
	maxInFlight = 64 // messages taken and not yet delivered
	parallel    = 8  // concurrent deliveries

	deliveryTimeout = 15 * time.Second // one delivery
	recordTimeout   = 10 * time.Second // recording its outcome
	stopTimeout     = 3 * time.Second  // messages in flight at shutdown

	// pauseMin and pauseMax bound the backoff while the database or Temporal is
	// unavailable.
	pauseMin = 250 * time.Millisecond
	pauseMax = 15 * time.Second

	// retryEvery is how often the relay queries for messages that are due again,
	// and retryFor is for how long after a failure. The outbox's own backoff is at
	// most a minute. idleEvery is how often it queries without a reason: for messages
	// whose wake was lost, or that were written by a process that cannot deliver them.
	retryEvery = time.Second
	retryFor   = 3 * time.Minute
	idleEvery  = 5 * time.Second
)

// Relay delivers an outbox's messages. Any number of relays may share one outbox.
type Relay struct {
	Outbox   Outbox
	Temporal Temporal
	Metrics  Metrics
	Log      *slog.Logger
}

// Run delivers messages until ctx ends, and then finishes the messages in flight
// within stopTimeout; another relay delivers the rest. While the database or
// Temporal is unavailable it retries with a growing pause.
func (r *Relay) Run(ctx context.Context) {
	work, cancel := graceful(ctx)
	defer cancel()
	d := &dispatcher{Relay: r, ended: make(chan delivery), busy: map[string]bool{},
		pauses: &backoff.ExponentialBackOff{InitialInterval: pauseMin, MaxInterval: pauseMax, Multiplier: 2}}
	d.pauses.Reset()
	d.run(ctx, work)
}

// graceful returns a context that ends stopTimeout after ctx.
func graceful(ctx context.Context) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(stopTimeout, cancel) })
	return work, cancel
}

// delivery is the outcome of a message.
type delivery struct {
	message     Message
	outcome     string
	unavailable bool // Temporal was
}

// deliver attempts one message and records a failure; the dispatcher records a
// success.
func (r *Relay) deliver(ctx context.Context, m Message) delivery {
	err := r.send(ctx, m)
	outcome := m.outcome(err)
	r.Metrics.Relayed(m.kind(), outcome)
	if outcome == outcomeDelivered {
		return delivery{m, outcome, false}
	}
	r.Log.Warn("message not delivered to Temporal", slog.String("outcome", outcome),
		slog.Int64("message", m.ID), slog.String("workflow_id", m.recipient()),
		slog.Int("attempts", m.Attempts+1), slog.Any("err", err))
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	record := r.Outbox.MarkFailed
	if outcome == outcomeOrphaned {
		record = r.Outbox.MarkOrphaned
	}
	if err := record(ctx, m.ID, err.Error()); err != nil {
		// The message becomes due again. A second delivery is harmless.
		r.Log.Warn("cannot record the outcome of a message", slog.Int64("message", m.ID), slog.Any("err", err))
		outcome = outcomeFailed
	}
	return delivery{m, outcome, schema.KindOf(err) == schema.KindServiceUnavailable}
}

func (r *Relay) send(ctx context.Context, m Message) error {
	ctx, cancel := context.WithTimeout(ctx, deliveryTimeout)
	defer cancel()
	switch {
	case m.Result != nil:
		return r.Temporal.CompleteTask(ctx, m.Owner, *m.Result)
	case m.Event != nil:
		return r.Temporal.SignalAgent(ctx, m.WorkflowID, *m.Event)
	}
	return schema.NewError(schema.KindNotFound, "the task or the event of outbox message %d is missing", m.ID)
}
