package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
)

// box is an outbox in memory. It returns each message once, and a failed message
// again at the next Take.
type box struct {
	mu       sync.Mutex
	due      []relay.Message
	wake     chan struct{}
	notes    map[int64][]string
	takes    int
	takeFail int
	released int
}

func newBox(messages ...relay.Message) *box {
	return &box{due: messages, wake: make(chan struct{}, 1), notes: map[int64][]string{}}
}

func (b *box) Take(_ context.Context, limit int, delivered []relay.Message) ([]relay.Message, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.takeFail > 0 {
		b.takeFail--
		return nil, schema.NewError(schema.KindServiceUnavailable, "Postgres does not answer")
	}
	b.takes++
	for _, m := range delivered {
		b.notes[m.ID] = append(b.notes[m.ID], "delivered")
	}
	n := min(limit, len(b.due))
	out := slices.Clone(b.due[:n])
	b.due = b.due[n:]
	return out, nil
}

func (b *box) note(id int64, what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notes[id] = append(b.notes[id], what)
}

func (b *box) Release(_ context.Context, messages []relay.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released += len(messages)
	b.due = append(messages, b.due...)
	return nil
}

func (b *box) MarkOrphaned(_ context.Context, id int64, _ string) error {
	b.note(id, "orphaned")
	return nil
}

func (b *box) MarkFailed(_ context.Context, id int64, _ string) error {
	b.note(id, "failed")
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = append(b.due, event(id, "w"))
	return nil
}

func (b *box) Wake() <-chan struct{} { return b.wake }

func (b *box) of(id int64) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.notes[id]...)
}

func event(id int64, workflow string) relay.Message {
	return relay.Message{ID: id, WorkflowID: workflow, Event: &lifecycle.AgentEvent{Event: lifecycle.EventFirstPoll, Incarnation: id},
		CreatedAt: time.Now().Add(-time.Minute)}
}

func result(id int64, workflow string) relay.Message {
	return relay.Message{ID: id, Owner: task.Owner{WorkflowID: workflow}, Result: &task.Reference{TaskID: strconv.FormatInt(id, 10)}, CreatedAt: time.Now()}
}

// fakeTemporal answers each message by a function.
type fakeTemporal struct {
	mu     sync.Mutex
	answer func(ctx context.Context, workflow string, id int64) error
	order  map[string][]int64
}

func (d *fakeTemporal) receive(ctx context.Context, workflow string, id int64) error {
	d.mu.Lock()
	if d.order == nil {
		d.order = map[string][]int64{}
	}
	d.order[workflow] = append(d.order[workflow], id)
	d.mu.Unlock()
	if d.answer == nil {
		return nil
	}
	return d.answer(ctx, workflow, id)
}

func (d *fakeTemporal) CompleteTask(ctx context.Context, o task.Owner, r task.Reference) error {
	id, err := strconv.ParseInt(r.TaskID, 10, 64)
	if err != nil {
		return err
	}
	return d.receive(ctx, o.WorkflowID, id)
}

func (d *fakeTemporal) SignalAgent(ctx context.Context, workflow string, e lifecycle.AgentEvent) error {
	return d.receive(ctx, workflow, e.Incarnation)
}

type tally struct {
	mu    sync.Mutex
	count map[string]int
}

func (c *tally) Relayed(kind, outcome string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[kind+" "+outcome]++
}

func (c *tally) read() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.count)
}

// run starts a relay and returns its counters and how to stop it.
func run(t *testing.T, b *box, d *fakeTemporal) (c *tally, stop func()) {
	t.Helper()
	c = &tally{count: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	r := &relay.Relay{Outbox: b, Temporal: d, Metrics: c, Log: slog.New(slog.DiscardHandler)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return c, stop
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	harness.Eventually(t, "it is delivered", ok)
}

func TestDeliveryOutcomes(t *testing.T) {
	gone := schema.NewError(schema.KindNotFound, "gone")
	closed := schema.NewError(schema.KindNotFound, "gone").WithReason(schema.ReasonActivityClosed)
	answers := map[int64]error{1: nil, 2: nil, 3: gone, 4: gone, 5: closed}
	empty := relay.Message{ID: 6, WorkflowID: "f"} // its task is missing
	b := newBox(event(1, "a"), result(2, "b"), event(3, "c"), result(4, "d"), result(5, "e"), empty)
	c, _ := run(t, b, &fakeTemporal{answer: func(_ context.Context, _ string, id int64) error { return answers[id] }})
	for id, want := range map[int64]string{1: "delivered", 2: "delivered", 3: "delivered", 4: "orphaned", 5: "delivered", 6: "orphaned"} {
		eventually(t, func() bool { return len(b.of(id)) == 1 })
		assert.Equal(t, []string{want}, b.of(id), "message %d", id)
	}
	eventually(t, func() bool {
		count := c.read()
		return count["event delivered"] == 2 && count["result delivered"] == 2 && count["result orphaned"] == 2
	})
}

// While Temporal is unavailable, a round attempts a few messages. The others return to
// the outbox without a failure, and every message is delivered once Temporal is available.
func TestTemporalUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var messages []relay.Message
		for id := range int64(40) {
			messages = append(messages, event(id, fmt.Sprint("w", id)))
		}
		b := newBox(messages...)
		var mu sync.Mutex
		away, attempts := true, map[int64]int{}
		c, _ := run(t, b, &fakeTemporal{answer: func(_ context.Context, _ string, id int64) error {
			mu.Lock()
			defer mu.Unlock()
			if !away {
				return nil
			}
			attempts[id]++
			return schema.NewError(schema.KindServiceUnavailable, "Temporal at 127.0.0.1:1 does not answer")
		}})
		eventually(t, func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.released > 0
		})
		mu.Lock()
		away = false
		mu.Unlock()
		failed := 0
		for id := range int64(40) {
			eventually(t, func() bool { n := b.of(id); return len(n) > 0 && n[len(n)-1] == "delivered" })
			assert.Len(t, b.of(id), attempts[id]+1, "message %d: a failure is recorded for each attempt", id)
			failed += attempts[id]
		}
		assert.Less(t, failed, 40)
		assert.Equal(t, map[string]int{"event delivered": 40, "event failed": failed}, c.read())
	})
}

// Messages of one workflow keep their order, and an undeliverable message delays
// no other workflow.
func TestOrderIsKeptPerWorkflow(t *testing.T) {
	b := newBox(event(1, "w"), event(2, "w"), event(3, "w"), event(9, "poison"))
	d := &fakeTemporal{answer: func(_ context.Context, workflow string, id int64) error {
		if id == 9 {
			return fmt.Errorf("no idea")
		}
		return nil
	}}
	run(t, b, d)
	eventually(t, func() bool { return len(b.of(9)) >= 3 })
	b.mu.Lock()
	b.due = append(b.due, event(4, "other"))
	b.mu.Unlock()
	eventually(t, func() bool { return len(b.of(4)) == 1 })
	d.mu.Lock()
	defer d.mu.Unlock()
	assert.Equal(t, []int64{1, 2, 3}, d.order["w"][:3])
}

func TestDatabaseUnavailable(t *testing.T) {
	b := newBox(event(1, "w"))
	b.takeFail = 3
	run(t, b, &fakeTemporal{})
	eventually(t, func() bool { return len(b.of(1)) == 1 })
}

func TestWake(t *testing.T) {
	b := newBox()
	run(t, b, &fakeTemporal{})
	b.mu.Lock()
	b.due = append(b.due, result(1, "w"))
	b.mu.Unlock()
	b.wake <- struct{}{}
	eventually(t, func() bool { return len(b.of(1)) == 1 })
}

// Run delivers and records the message in flight before it returns.
func TestStopFinishesInFlight(t *testing.T) {
	b := newBox(result(1, "w"))
	taken, release := make(chan struct{}), make(chan struct{})
	_, stop := run(t, b, &fakeTemporal{answer: func(ctx context.Context, _ string, _ int64) error {
		close(taken)
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	<-taken
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	close(release)
	<-stopped
	assert.Equal(t, []string{"delivered"}, b.of(1))
}

// A hanging Temporal does not delay the stop beyond its timeout.
func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox(result(1, "w"))
		taken := make(chan struct{})
		_, stop := run(t, b, &fakeTemporal{answer: func(ctx context.Context, _ string, _ int64) error {
			close(taken)
			<-ctx.Done()
			return ctx.Err()
		}})
		<-taken
		start := time.Now()
		stop()
		assert.Equal(t, 3*time.Second, time.Since(start))
	})
}

// A slow delivery delays no message of another workflow, not even one that was
// written later.
func TestHangingDeliveryBlocksOnlyItsWorkflow(t *testing.T) {
	b := newBox(result(1, "slow"))
	taken, release := make(chan struct{}), make(chan struct{})
	begun := sync.OnceFunc(func() { close(taken) })
	run(t, b, &fakeTemporal{answer: func(_ context.Context, workflow string, _ int64) error {
		if workflow == "slow" {
			begun()
			<-release
		}
		return nil
	}})
	defer close(release)
	<-taken
	b.mu.Lock()
	b.due = append(b.due, result(2, "quick"), result(3, "slow"))
	b.mu.Unlock()
	b.wake <- struct{}{}
	eventually(t, func() bool { return len(b.of(2)) == 1 })
	assert.Empty(t, b.of(1))
	assert.Empty(t, b.of(3))
}

// A message whose wake was lost, or of a process that cannot deliver it, is delivered
// without a wake.
func TestMessageWithoutWakeIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox()
		_, stop := run(t, b, &fakeTemporal{})
		defer stop()
		for id := range int64(3) {
			<-time.After(time.Minute)
			b.mu.Lock()
			b.due = append(b.due, result(id, "w"))
			b.mu.Unlock()
			<-time.After(6 * time.Second)
			require.Len(t, b.of(id), 1)
		}
	})
}

// A relay that is full waits for its deliveries and does not run in circles.
func TestFullRelayRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBox(result(0, "quick"))
		for id := range int64(63) {
			b.due = append(b.due, result(id+1, "slow"))
		}
		_, stop := run(t, b, &fakeTemporal{answer: func(ctx context.Context, workflow string, _ int64) error {
			if workflow == "slow" {
				<-ctx.Done()
			}
			return ctx.Err()
		}})
		defer stop()
		<-time.After(10 * time.Second)
		require.Empty(t, b.of(1))
	})
}
