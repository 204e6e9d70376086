package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Bounds of concurrent work: changes one at a time in the order they came,
// reads alongside.
const (
	maxReads     = 4
	maxHeldTasks = 32
)

// Causes that end a running task.
var (
	errCancelled = errors.New("cancelled by the control plane")
	errLeaseLost = errors.New("the lease was lost")
	errTimeLimit = errors.New("the time limit was reached")
)

// tasks accepts, runs and reports. Every task it holds has one goroutine, which
// Wait waits for.
type tasks struct {
	journal *journal
	execs   map[task.Type]Executor
	api     func() *client
	removed func(error) // an answer said that the node is removed
	log     *slog.Logger
	now     func() time.Time // local
	server  func() time.Time // the server's, as far as it is known
	trusted func() time.Time // by which tasks are accepted
	timing  timing
	folders folders

	changes chan struct{} // one token: the right to change the node
	reads   chan struct{}
	wg      sync.WaitGroup

	mu   sync.Mutex
	held map[string]*heldTask // tasks with a goroutine
}

// heldTask is a task of this process.
type heldTask struct {
	resumed bool
	nudge   chan struct{} // asks for a progress call at once
	epoch   atomic.Int64
	note    atomic.Pointer[string]
	paused  atomic.Bool
	turned  chan struct{} // gets a value when paused may have changed
	heard   bool          // the server had news of it; guarded by tasks.mu
}

func newTasks(j *journal, execs map[task.Type]Executor, t timing, now func() time.Time, log *slog.Logger) *tasks {
	return &tasks{
		journal: j, execs: execs, timing: t, now: now, server: now, trusted: now, log: log,
		changes: make(chan struct{}, 1), reads: make(chan struct{}, maxReads), held: map[string]*heldTask{},
	}
}

// full reports whether the agent holds as many tasks as it is willing to.
func (t *tasks) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.held) >= maxHeldTasks
}

// offer takes one task from the server: it verifies it, journals it and starts
// it. A task it already knows is not run again: its lease is renewed, and a
// recorded result is reported once more. A refusal is a KindTaskRefused error
// and is reported to the server, unless the node holds the very task: a forged
// second envelope must not end the real one.
func (t *tasks) offer(ctx context.Context, v verifier, o wire.TaskOffer) error {
	task, err := v.judge(o)
	if err == nil {
		err = t.take(ctx, task, o)
	}
	if schema.KindOf(err) == schema.KindTaskRefused {
		t.reportRefusal(ctx, o, schema.AsError(err))
	}
	return err
}

func (t *tasks) take(ctx context.Context, task verified, o wire.TaskOffer) error {
	p := task.payload
	if known, ok := t.journal.get(p.TaskID); ok {
		return t.again(ctx, known, task, o)
	}
	x, ok := t.execs[p.Type]
	if !ok {
		return refuse(refusedTask, "the task type is not known here")
	}
	if err := x.Check(p.Params); err != nil {
		return refuse(refusedParams, "the params are not those of %s: %v", p.Type, err)
	}
	offset := t.now().Sub(task.at)
	e := entry{
		TaskID: p.TaskID, Digest: task.digest, Payload: task.raw, Seq: p.Seq, LeaseEpoch: o.Lease.Epoch,
		AcceptedAt: t.now().UTC(), TrustedAt: task.at.UTC(), ExpiresAt: p.ExpiresAt, Step: stepAccepted, ClockOffset: &offset,
	}
	if err := t.journal.accept(e); err != nil {
		return err
	}
	t.logger(p).Info("task accepted", "type", string(p.Type), "seq", p.Seq, "epoch", e.LeaseEpoch)
	t.nudgeAll()
	t.hold(ctx, e, false)
	return nil
}

// nudgeAll makes every running task ask whether it is still wanted: a new task
// often comes because an older one was cancelled.
func (t *tasks) nudgeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.held {
		h.ask()
	}
}

// hear makes the tasks that the server has news of ask what it is. fresh is true
// when it is the first word about one of them: a server that repeats itself must
// not make the polls a loop.
func (t *tasks) hear(news []string) (fresh bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range news {
		if h, ok := t.held[id]; ok {
			h.ask()
			fresh, h.heard = fresh || !h.heard, true
		}
	}
	return fresh
}

// ask makes the task's progress call due at once.
func (h *heldTask) ask() {
	select {
	case h.nudge <- struct{}{}:
	default:
	}
}

// again handles a task the journal knows.
func (t *tasks) again(ctx context.Context, known entry, task verified, o wire.TaskOffer) error {
	if known.Digest != task.digest {
		return refuse(refusedDigest, "the task was accepted before with another body")
	}
	if o.Lease.Epoch < known.LeaseEpoch {
		return refuse(refusedEpoch, "the lease is %d, and lease %d was taken", o.Lease.Epoch, known.LeaseEpoch)
	}
	err := t.journal.update(known.TaskID, func(e *entry) {
		e.LeaseEpoch, e.Reported = max(e.LeaseEpoch, o.Lease.Epoch), false
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	h, running := t.held[known.TaskID]
	t.mu.Unlock()
	t.logger(task.payload).Info("task offered again", "step", known.Step, "epoch", o.Lease.Epoch)
	if running {
		h.epoch.Store(max(h.epoch.Load(), o.Lease.Epoch))
		return nil
	}
	known, _ = t.journal.get(known.TaskID)
	t.hold(ctx, known, false)
	return nil
}

// resume goes on with what a former process left: finished tasks are reported,
// accepted ones are run again when that cannot do harm.
func (t *tasks) resume(ctx context.Context) {
	for _, e := range t.journal.unreported() {
		if e.Step == stepAccepted {
			t.settle(&e)
		}
		t.hold(ctx, e, true)
	}
}

// settle decides about a task that was interrupted. One that must not run twice
// gets a failed result, because nobody knows how far it came.
func (t *tasks) settle(e *entry) {
	p, err := e.task() // it read when the journal was opened
	x, known := t.execs[p.Type]
	if err == nil && known && (p.Effect != task.EffectDestructive || x.Resumable) {
		t.logger(p).Info("task resumed after a restart", "type", string(p.Type))
		return
	}
	t.logger(p).Error("task interrupted by a restart, outcome unknown", "type", string(p.Type))
	t.finish(e, task.Result{
		Status: task.Failed, Code: schema.KindTaskFailed, StartedAt: e.AcceptedAt, FinishedAt: t.now().UTC(),
		Message: "outcome unknown: the agent restarted while this task ran, and it must not run twice",
	})
}

// hold starts the task's goroutine: run when unfinished, then report. resumed
// says that a former process accepted it.
func (t *tasks) hold(ctx context.Context, e entry, resumed bool) {
	h := &heldTask{resumed: resumed, nudge: make(chan struct{}, 1), turned: make(chan struct{}, 1)}
	h.epoch.Store(e.LeaseEpoch)
	t.mu.Lock()
	if _, ok := t.held[e.TaskID]; ok {
		t.mu.Unlock()
		return
	}
	t.held[e.TaskID] = h
	t.mu.Unlock()
	t.wg.Go(func() {
		if e.Step == stepFinished || t.run(ctx, h, &e) {
			if last := t.report(ctx, h, e); last {
				return
			}
		}
		t.release(ctx, e.TaskID)
	})
}

// release ends the task's goroutine, unless the server offered the task again
// after the report: then its result is wanted once more.
func (t *tasks) release(ctx context.Context, taskID string) {
	t.mu.Lock()
	delete(t.held, taskID)
	t.mu.Unlock()
	if e, ok := t.journal.get(taskID); ok && e.Step == stepFinished && !e.Reported && ctx.Err() == nil {
		t.hold(ctx, e, false)
	}
}

// wait returns when every task's goroutine ended.
func (t *tasks) wait() { t.wg.Wait() }

func (t *tasks) logger(p task.Payload) *slog.Logger {
	return t.log.With("task_id", p.TaskID, "correlation_id", p.CorrelationID)
}
