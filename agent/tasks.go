package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema"
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
	execs   map[schema.TaskType]Executor
	api     func() *client
	removed func(error) // an answer said that the node is removed
	log     *slog.Logger
	now     func() time.Time
	timing  timing

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
}

func newTasks(j *journal, execs map[schema.TaskType]Executor, t timing, now func() time.Time, log *slog.Logger) *tasks {
	return &tasks{
		journal: j, execs: execs, timing: t, now: now, log: log,
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
func (t *tasks) offer(ctx context.Context, v verifier, o schema.TaskOffer) error {
	task, err := v.check(o.Envelope)
	if err == nil && task.payload.TaskID != o.TaskID {
		err = refuse(refusedID, "the offer names task %q, the signed body %q", clip(o.TaskID), task.payload.TaskID)
	}
	if err == nil {
		err = t.take(ctx, task, o)
	}
	if schema.KindOf(err) == schema.KindTaskRefused {
		t.reportRefusal(ctx, o, schema.AsError(err))
	}
	return err
}

func (t *tasks) take(ctx context.Context, task verified, o schema.TaskOffer) error {
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
	offset := t.now().Sub(o.ServerTime)
	e := entry{
		TaskID: p.TaskID, Digest: task.digest, Payload: task.raw, Seq: p.Seq, LeaseEpoch: o.Lease.Epoch,
		AcceptedAt: t.now().UTC(), ExpiresAt: p.ExpiresAt, Step: stepAccepted,
	}
	if !o.ServerTime.IsZero() {
		e.ClockOffset = &offset
	}
	if err := t.journal.accept(e); err != nil {
		return err
	}
	t.logger(p).Info("task accepted", "type", string(p.Type), "seq", p.Seq, "epoch", e.LeaseEpoch)
	t.nudge()
	t.hold(ctx, e, false)
	return nil
}

// nudge makes every running task ask whether it is still wanted: a new task
// often comes because an older one was cancelled.
func (t *tasks) nudge() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.held {
		select {
		case h.nudge <- struct{}{}:
		default:
		}
	}
}

// again handles a task the journal knows.
func (t *tasks) again(ctx context.Context, known entry, task verified, o schema.TaskOffer) error {
	if known.Digest != task.digest {
		return refuse(refusedDigest, "the task was accepted before with another body")
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
			if err := t.settle(&e); err != nil {
				t.log.Error("task cannot be resumed", "task_id", e.TaskID, "err", err.Error())
				continue
			}
		}
		t.hold(ctx, e, true)
	}
}

// settle decides about a task that was interrupted. One that must not run twice
// gets a failed result, because nobody knows how far it came.
func (t *tasks) settle(e *entry) error {
	p, err := e.task()
	if err != nil {
		return err
	}
	x, known := t.execs[p.Type]
	if known && (p.Effect != schema.EffectDestructive || x.Resumable) {
		t.logger(p).Info("task resumed after a restart", "type", string(p.Type))
		return nil
	}
	t.logger(p).Error("task interrupted by a restart, outcome unknown", "type", string(p.Type))
	return t.finish(e, schema.TaskResult{
		Status: schema.TaskFailed, Code: schema.KindTaskFailed, StartedAt: e.AcceptedAt, FinishedAt: t.now().UTC(),
		Message: "outcome unknown: the agent restarted while this task ran, and it must not run twice",
	})
}

// hold starts the task's goroutine: run when unfinished, then report. resumed
// says that a former process accepted it.
func (t *tasks) hold(ctx context.Context, e entry, resumed bool) {
	h := &heldTask{resumed: resumed, nudge: make(chan struct{}, 1)}
	h.epoch.Store(e.LeaseEpoch)
	t.mu.Lock()
	if _, ok := t.held[e.TaskID]; ok {
		t.mu.Unlock()
		return
	}
	t.held[e.TaskID] = h
	t.mu.Unlock()
	t.wg.Go(func() {
		defer t.release(ctx, e.TaskID)
		if e.Step != stepFinished && !t.run(ctx, h, &e) {
			return
		}
		t.report(ctx, h, e)
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

// run executes an accepted task and journals its result. It returns false when
// the agent is stopping: then nothing was decided and the next start resumes.
func (t *tasks) run(ctx context.Context, h *heldTask, e *entry) bool {
	p, err := e.task()
	if err != nil {
		t.log.Error("journal entry does not read", "task_id", e.TaskID, "err", err.Error())
		return false
	}
	log := t.logger(p)
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopProgress := t.progress(work, h, p, cancel)
	defer stopProgress()

	slot := t.changes
	if p.Effect == schema.EffectRead {
		slot = t.reads
	}
	var out any
	started := t.now().UTC()
	select {
	case slot <- struct{}{}:
		started = t.now().UTC()
		if err = t.confirm(work, h, p); err == nil {
			out, err = t.execute(work, h, p, *e)
		}
		<-slot
	case <-work.Done():
		err = context.Cause(work)
	}
	if ctx.Err() != nil && err != nil {
		log.Info("task left for the next start", "type", string(p.Type))
		return false
	}
	r := t.resultOf(out, err)
	r.StartedAt, r.FinishedAt = started, t.now().UTC()
	if err := t.finish(e, r); err != nil {
		// The result is not lost while this process lives: it is reported from
		// memory, and a restart would run or settle the task again.
		log.Error("task result not journalled", "err", err.Error())
	}
	log.Info("task finished", "type", string(p.Type), "status", string(r.Status), "code", string(r.Code),
		"detail", r.Message, "took", r.FinishedAt.Sub(r.StartedAt).String())
	return true
}

// finish records the result, durably, before anybody hears of it.
func (t *tasks) finish(e *entry, r schema.TaskResult) error {
	e.Step, e.Result = stepFinished, &r
	return t.journal.settle(e.TaskID, func(j *entry) {
		j.Step, j.Result, j.Memo = stepFinished, &r, nil
	})
}

// execute runs the executor under its time limit. A panic is an error.
func (t *tasks) execute(ctx context.Context, h *heldTask, p schema.TaskPayload, e entry) (out any, err error) {
	x := t.execs[p.Type]
	ctx, cancel := context.WithTimeoutCause(ctx, x.limit(p, t.now()), errTimeLimit)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			t.logger(p).Error("executor panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = schema.NewError(schema.KindInternal, "the executor of %s panicked", p.Type)
		}
	}()
	out, err = x.Run(ctx, Task{
		TaskPayload: p, ClockOffset: e.ClockOffset,
		Note: func(m string) { h.note.Store(&m) },
		Remember: func(v any) error {
			memo, err := json.Marshal(v)
			if err != nil {
				return err
			}
			return t.journal.update(p.TaskID, func(j *entry) { j.Memo = memo })
		},
		Recall: func(v any) (bool, error) {
			j, ok := t.journal.get(p.TaskID)
			if !ok || len(j.Memo) == 0 {
				return false, nil
			}
			return true, json.Unmarshal(j.Memo, v)
		},
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}

// resultOf turns what an executor returned into a result.
func (t *tasks) resultOf(out any, err error) schema.TaskResult {
	if err == nil {
		var data []byte
		if data, err = json.Marshal(out); err == nil && len(data) <= schema.MaxResultBytes/2 {
			return schema.TaskResult{Status: schema.TaskSucceeded, Output: data}
		}
		if err == nil {
			err = schema.NewError(schema.KindTaskFailed, "the output is larger than %d bytes", schema.MaxResultBytes/2)
		}
	}
	if errors.Is(err, errCancelled) || errors.Is(err, errLeaseLost) {
		return schema.TaskResult{Status: schema.TaskCancelled, Message: err.Error()}
	}
	code := schema.KindTaskFailed
	if e, ok := errors.AsType[*schema.Error](err); ok {
		code = e.Kind
	}
	return schema.TaskResult{Status: schema.TaskFailed, Code: code, Message: clip(err.Error())}
}

func (t *tasks) logger(p schema.TaskPayload) *slog.Logger {
	return t.log.With("task_id", p.TaskID, "correlation_id", p.CorrelationID)
}
