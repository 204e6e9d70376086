// Package relay carries messages that were committed in Postgres to Temporal:
// results of node tasks to the activities that wait for them, agent events to
// the node's running workflow. So the answer to an agent never depends on
// Temporal, and a crash between the two loses nothing. Start with Relay.Run.
package relay

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

const (
	batch       = 64
	parallel    = 8
	tryBudget   = 15 * time.Second // one delivery
	writeBudget = 10 * time.Second // noting its outcome
	stopBudget  = 3 * time.Second  // a round's rest, once told to stop
	pauseMin    = 250 * time.Millisecond
	pauseMax    = 15 * time.Second

	// lateEvery is how often a message that failed is looked for, lateForgotten
	// how long one is believed to be there. The outbox backs off up to a minute.
	lateEvery     = time.Second
	lateForgotten = 3 * time.Minute
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

// Relay delivers an outbox's messages. Any number may run on one outbox, each in
// one call of Run.
type Relay struct {
	Outbox   Outbox
	Temporal Temporal
	Metrics  Metrics
	Log      *slog.Logger

	late map[int64]lateMessage // Run's own
}

// lateMessage is a message that could not be delivered yet.
type lateMessage struct{ created, failed time.Time }

// Run delivers until ctx ends, and then finishes the round it is in, for at most
// stopBudget; what is left is offered to the next relay. While the database or
// Temporal is away it tries again with a growing pause.
func (r *Relay) Run(ctx context.Context) {
	r.late = map[int64]lateMessage{}
	pause := time.Duration(0)
	for ctx.Err() == nil {
		n, ok := r.round(ctx)
		r.publishAge()
		if !ok {
			pause = min(max(2*pause, pauseMin), pauseMax)
			sleep(ctx, pause)
			continue
		}
		pause = 0
		if n < batch {
			r.rest(ctx)
		}
	}
}

// rest waits for a message, or for one that failed to be due again.
func (r *Relay) rest(ctx context.Context) {
	var again <-chan time.Time
	if len(r.late) > 0 {
		t := time.NewTimer(lateEvery)
		defer t.Stop()
		again = t.C
	}
	select {
	case <-ctx.Done():
	case <-r.Outbox.Wake():
	case <-again:
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
	var away atomic.Bool
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for _, group := range byWorkflow(messages) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			for _, i := range group {
				done[i] = r.deliver(ctx, messages[i], &away)
			}
		})
	}
	wg.Wait()
	r.remember(messages, done)
	return len(messages), !slices.Contains(done, false)
}

// byWorkflow groups the messages' indexes so that a workflow gets its own in
// the order in which they were written.
func byWorkflow(messages []schema.OutboxMessage) [][]int {
	at, groups := map[string]int{}, [][]int{}
	for i, m := range messages {
		id := workflowOf(m)
		g, ok := at[id]
		if !ok {
			g = len(groups)
			at[id], groups = g, append(groups, nil)
		}
		groups[g] = append(groups[g], i)
	}
	return groups
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

// remember keeps the messages that are still to be delivered. Those that
// another relay delivered since are forgotten after a while.
func (r *Relay) remember(messages []schema.OutboxMessage, done []bool) {
	now := time.Now()
	for i, m := range messages {
		if done[i] {
			delete(r.late, m.ID)
		} else {
			r.late[m.ID] = lateMessage{created: m.CreatedAt, failed: now}
		}
	}
}

func (r *Relay) publishAge() {
	age := time.Duration(0)
	for id, m := range r.late {
		if time.Since(m.failed) > lateForgotten {
			delete(r.late, id)
			continue
		}
		age = max(age, time.Since(m.created))
	}
	r.Metrics.OutboxAge(age)
}

// deliver tries one message and notes the outcome. It reports false when the
// message is still to be delivered. Once one message of a round found Temporal
// away, the others are not tried.
func (r *Relay) deliver(ctx context.Context, m schema.OutboxMessage, away *atomic.Bool) bool {
	err := error(schema.NewError(schema.KindServiceUnavailable, "Temporal was away a moment ago"))
	if !away.Load() {
		err = r.send(ctx, m)
	}
	if schema.KindOf(err) == schema.KindServiceUnavailable {
		away.Store(true)
	}
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
	if m.Event != nil || e.Reason == schema.ReasonSettled {
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
