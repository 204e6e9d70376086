package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// dispatcher is the in-memory state of one Run. Only Run's goroutine uses it.
type dispatcher struct {
	*Relay
	// queue holds messages that wait for a delivery slot or for an earlier message
	// of their workflow, oldest first. A workflow receives its messages in the
	// order in which they were written.
	queue []Message
	// busy are the workflows with a delivery in progress.
	busy  map[string]bool
	ended chan delivery
	// delivered are still to be deleted from the outbox.
	delivered []Message
	// failed is when a delivery last failed.
	failed time.Time
	// paused is true while nothing is taken, because the database or Temporal is
	// unavailable.
	paused bool
	// pauses grow until a success, and pause is the current or last one.
	pauses *backoff.ExponentialBackOff
	pause  time.Duration
	// since is the time of the last Take or the start of the pause.
	since time.Time
}

// run delivers messages with the context work until ctx ends.
func (d *dispatcher) run(ctx, work context.Context) {
	for take := true; ctx.Err() == nil; {
		if take && !d.paused && d.free() >= maxInFlight/2 {
			take = d.take(ctx)
		}
		d.start(work)
		take = d.wait(ctx, work) || take
	}
	d.drain(ctx, work)
}

// drain delivers the messages in flight and deletes what was delivered.
func (d *dispatcher) drain(ctx, work context.Context) {
	for d.start(work); len(d.busy) > 0; d.start(work) {
		d.end(work, <-d.ended)
	}
	if len(d.delivered) == 0 {
		return
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if _, err := d.Outbox.Take(last, 0, d.delivered); err != nil {
		d.Log.Warn("cannot delete delivered messages", slog.Any("err", err))
	}
}

// free is how many more messages may be in flight.
func (d *dispatcher) free() int { return maxInFlight - len(d.queue) - len(d.busy) }

// take deletes delivered messages and takes due ones. It reports whether more may
// be due.
func (d *dispatcher) take(ctx context.Context) (more bool) {
	limit := d.free()
	d.since = time.Now()
	messages, err := d.Outbox.Take(ctx, limit, d.delivered)
	if err != nil {
		if ctx.Err() == nil {
			d.Log.Warn("cannot take messages from the outbox", slog.Any("err", err))
		}
		d.backOff()
		return true
	}
	if len(messages) == 0 && d.free() == maxInFlight {
		d.pauses.Reset()
	}
	d.delivered = nil
	d.queue = append(d.queue, messages...)
	return len(messages) == limit
}

// start begins the deliveries that have a slot and no earlier message of their
// workflow in progress. It drops the queue once work has ended.
func (d *dispatcher) start(work context.Context) {
	if work.Err() != nil {
		d.queue = nil
	}
	waiting := d.queue[:0]
	for _, m := range d.queue {
		to := m.recipient()
		if d.busy[to] || len(d.busy) >= parallel {
			waiting = append(waiting, m)
			continue
		}
		d.busy[to] = true
		go func() { d.ended <- d.deliver(work, m) }()
	}
	d.queue = waiting
}

// wait blocks until an event and reports whether a Take is due.
func (d *dispatcher) wait(ctx, work context.Context) (take bool) {
	var wake <-chan struct{}
	if !d.paused {
		wake = d.Outbox.Wake()
	}
	due := time.NewTimer(time.Until(d.since.Add(d.takeInterval())))
	defer due.Stop()
	select {
	case <-ctx.Done():
		return false
	case e := <-d.ended:
		d.end(work, e)
		return len(d.delivered) > 0
	case <-wake:
	case now := <-due.C:
		d.paused, d.since = false, now // a full relay cannot take yet, and must not spin
	}
	return true
}

// takeInterval is how long after the last Take the next one is due without a
// wake.
func (d *dispatcher) takeInterval() time.Duration {
	switch {
	case d.paused:
		return d.pause
	case time.Since(d.failed) < retryFor:
		return retryEvery
	}
	return idleEvery
}

// end processes the outcome of a delivery. If Temporal is unavailable, the queued
// messages return to the outbox: without an attempt they need no backoff.
func (d *dispatcher) end(ctx context.Context, e delivery) {
	delete(d.busy, e.message.recipient())
	switch e.outcome {
	case outcomeFailed:
		d.failed = time.Now()
	case outcomeDelivered:
		d.delivered = append(d.delivered, e.message)
		d.pauses.Reset()
	}
	if e.unavailable {
		d.release(ctx)
		d.backOff()
	}
}

// release returns the queued messages to the outbox.
func (d *dispatcher) release(ctx context.Context) {
	if len(d.queue) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	if err := d.Outbox.Release(ctx, d.queue); err != nil {
		// They become due again when their reservation ends.
		d.Log.Warn("cannot release messages", slog.Any("err", err))
	}
	d.queue = nil
}

// backOff starts a pause.
func (d *dispatcher) backOff() {
	if !d.paused {
		d.paused, d.pause, d.since = true, d.pauses.NextBackOff(), time.Now()
	}
}
