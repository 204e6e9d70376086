package relay

import (
	"context"
	"log/slog"
	"time"
)

// desk is what one Run has in hand. Only the goroutine of Run touches it.
type desk struct {
	*Relay
	// queue are messages that wait, oldest first: for a slot, or for an earlier
	// message of their workflow. A workflow gets its own in the order in which
	// they were written.
	queue []Message
	// busy are the workflows that a message is on its way to.
	busy  map[string]bool
	ended chan delivery
	// delivered are still to be removed.
	delivered []Message
	late      map[int64]lateMessage
	// paused is set while nothing is taken, and away while that is because
	// Temporal was found away: what is in hand is put off untried.
	paused, away bool
	// pause is how long the last pause was, 0 when all went well since.
	pause time.Duration
	// looked is when the outbox was looked at last, or the pause began.
	looked time.Time
}

// delivery is what became of a message.
type delivery struct {
	message Message
	outcome string
	away    bool // Temporal was
}

// lateMessage is a message that could not be delivered yet.
type lateMessage struct{ created, failed time.Time }

// run ends soon after ctx, and what is delivered then with work.
func (d *desk) run(ctx, work context.Context) {
	for look := true; ctx.Err() == nil; {
		if look && !d.paused && d.room() >= batch/2 {
			look = d.take(ctx)
		}
		d.begin(work)
		d.publishAge()
		look = d.rest(ctx) || look
	}
	for d.left(work) {
		d.end(<-d.ended)
	}
	if len(d.delivered) > 0 {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBudget)
		defer cancel()
		d.remove(last)
	}
}

// left reports whether there is something in hand, once nothing is taken any
// more but what was handed over already.
func (d *desk) left(work context.Context) bool {
	for {
		select {
		case m := <-d.Outbox.LocalResults():
			d.queue = append(d.queue, m)
		default:
			d.begin(work)
			return len(d.busy) > 0
		}
	}
}

// room is how many more messages the desk may have in hand.
func (d *desk) room() int { return batch - len(d.queue) - len(d.busy) }

// take removes what was delivered and takes what is due. more says that there
// may be more of it.
func (d *desk) take(ctx context.Context) (more bool) {
	limit := d.room()
	d.looked = time.Now()
	messages, err := d.Outbox.Take(ctx, limit, d.delivered)
	if err != nil {
		if ctx.Err() == nil {
			d.Log.Warn("taking messages from the outbox", slog.Any("err", err))
		}
		d.rests()
		return true
	}
	if len(messages) == 0 && d.room() == batch {
		d.pause = 0
	}
	d.delivered = nil
	d.queue = append(d.queue, messages...)
	return len(messages) == limit
}

// remove is take for a relay that stops.
func (d *desk) remove(ctx context.Context) {
	if _, err := d.Outbox.Take(ctx, 0, d.delivered); err != nil {
		d.Log.Warn("removing delivered messages", slog.Any("err", err))
	}
}

// begin starts what may be started. Nothing is once the time to stop is over.
func (d *desk) begin(work context.Context) {
	if work.Err() != nil {
		d.queue = nil
	}
	waiting := d.queue[:0]
	for _, m := range d.queue {
		to := workflowOf(m)
		if d.busy[to] || len(d.busy) >= parallel {
			waiting = append(waiting, m)
			continue
		}
		d.busy[to] = true
		away := d.away
		go func() { d.ended <- d.deliver(work, m, away) }()
	}
	d.queue = waiting
}

// rest waits until something is to be done, and reports whether that is to look
// at the outbox.
func (d *desk) rest(ctx context.Context) (look bool) {
	var wake <-chan struct{}
	var handed <-chan Message
	if !d.paused {
		wake = d.Outbox.Wake()
		if d.room() > 0 {
			handed = d.Outbox.LocalResults()
		}
	}
	var again <-chan time.Time
	if every := d.lookEvery(); every > 0 {
		t := time.NewTimer(time.Until(d.looked.Add(every)))
		defer t.Stop()
		again = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case e := <-d.ended:
		d.end(e)
		return false
	case m := <-handed:
		d.queue = append(d.queue, m)
		return false
	case <-wake:
	case <-again:
		d.paused, d.away = false, false
	}
	return true
}

// lookEvery is how long after the last look the next one is due without a wake,
// 0 for never.
func (d *desk) lookEvery() time.Duration {
	switch {
	case d.paused:
		return d.pause
	case len(d.delivered) > 0:
		return removeAfter
	case len(d.late) > 0:
		return lateEvery
	}
	return 0
}

// end takes note of what became of a message.
func (d *desk) end(e delivery) {
	delete(d.busy, workflowOf(e.message))
	switch e.outcome {
	case outcomeFailed:
		d.late[e.message.ID] = lateMessage{created: e.message.CreatedAt, failed: time.Now()}
	case outcomeDelivered:
		d.delivered = append(d.delivered, e.message)
		d.pause = 0
		fallthrough
	default:
		delete(d.late, e.message.ID)
	}
	if e.away {
		d.away = true
		d.rests()
	}
}

// rests begins a pause, longer than the last one.
func (d *desk) rests() {
	if !d.paused {
		d.paused, d.pause, d.looked = true, min(max(2*d.pause, pauseMin), pauseMax), time.Now()
	}
}

// publishAge tells of the oldest message that is late. One that another relay
// delivered since is forgotten after a while.
func (d *desk) publishAge() {
	age := time.Duration(0)
	for id, m := range d.late {
		if time.Since(m.failed) > lateForgotten {
			delete(d.late, id)
			continue
		}
		age = max(age, time.Since(m.created))
	}
	d.Metrics.OutboxAge(age)
}
