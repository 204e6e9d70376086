package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// run executes an accepted task and journals its result. It returns false without a
// result: when the agent is stopping, then the next start resumes, and when the lease
// was lost before the task began, then the server may offer the task again.
func (t *Runner) run(ctx context.Context, h *heldTask, e *Entry) bool {
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopProgress := t.progress(work, h, cancel)
	defer stopProgress()

	slot := t.changes
	if h.Effect == task.EffectRead {
		slot = t.reads
	}
	var out any
	var err error
	printed := &tail{}
	began := h.resumed
	started := t.conf.Local().UTC()
	select {
	case slot <- struct{}{}:
		started = t.conf.Local().UTC()
		if err = t.begin(work, h); err == nil {
			began = true
			out, err = t.execute(work, h, e.ClockOffset, printed)
		}
		<-slot
	case <-work.Done():
		err = context.Cause(work)
	}
	if ctx.Err() != nil && err != nil {
		h.log.Info("task left for the next start", "type", string(h.Type))
		return false
	}
	if errors.Is(err, errLeaseLost) && !began {
		h.log.Warn("task left because its lease was lost before it began", "epoch", e.LeaseEpoch)
		t.reported(ctx, h, e.LeaseEpoch)
		return false
	}
	r := resultOf(out, err)
	r.OutputTail, r.StartedAt, r.FinishedAt = printed.text(), started, t.conf.Local().UTC()
	t.finish(e, r)
	h.log.Info("task finished", "type", string(h.Type), "status", string(r.Status), "code", string(r.Code),
		"detail", r.Message, "took", r.FinishedAt.Sub(r.StartedAt).String())
	return true
}

// finish records the result durably before it is reported. Where the disk fails, the
// result is reported from memory and recorded when the disk accepts it.
func (t *Runner) finish(e *Entry, r task.Result) {
	e.Finish(r)
	if err := t.conf.Journal.update(e.TaskID, func(j *Entry) { j.Finish(r) }); err != nil {
		t.conf.Log.Error("task result not journaled", "task_id", e.TaskID, "err", err.Error())
	}
}

// begin returns when the task may change the node: the server confirmed it and it is
// not paused. Executors that check Task.Paused begin although it is paused. A task
// that has not begun when its envelope expires does not begin.
func (t *Runner) begin(ctx context.Context, h *heldTask) error {
	if h.Effect == task.EffectRead {
		return nil
	}
	valid, cancel := context.WithTimeoutCause(ctx, h.ExpiresAt.Sub(t.conf.Trusted()), schema.NewError(schema.KindTaskFailed,
		"the task expired at %s before it could start: it was paused, or the server did not confirm it", text.FormatTime(h.ExpiresAt)))
	defer cancel()
	confirming := valid
	if h.resumed {
		confirming = ctx // the task began while its envelope was valid
	}
	for {
		err := t.confirmStart(confirming, h)
		if err != nil || !h.paused.Load() || t.conf.Executors[h.Type].Pauses {
			return err
		}
		select {
		case <-valid.Done():
			return context.Cause(valid)
		case <-h.turned:
		}
	}
}

// execute runs the executor under its time limit. A panic is an error.
func (t *Runner) execute(ctx context.Context, h *heldTask, offset *time.Duration, printed *tail) (out any, err error) {
	x := t.conf.Executors[h.Type]
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, x.limit(h.Payload, t.conf.Server()), errTimeLimit)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			h.log.Error("executor panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = schema.NewError(schema.KindInternal, "the executor of %s panicked", h.Type)
		}
	}()
	task := t.view(h, offset, printed)
	task.Confirm = func(ctx context.Context, recent time.Duration) error {
		if h.confirmedRecently(t.wallClock(), recent) {
			return nil
		}
		err := t.confirm(ctx, h, h.message())
		if err != nil {
			end(err)
		}
		return err
	}
	if x.Folder {
		if task.Dir, err = makeFolder(t.conf.State, h.TaskID); err != nil {
			return nil, schema.Wrap(schema.KindTaskFailed, err, "cannot create the working folder")
		}
		defer func() {
			if err := os.RemoveAll(task.Dir); err != nil {
				h.log.Warn("cannot remove the working folder", "err", err.Error())
			}
		}()
	}
	out, err = x.Run(ctx, task)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}

// view returns the executor's view of a task.
func (t *Runner) view(h *heldTask, offset *time.Duration, printed *tail) Task {
	return Task{
		Payload: h.Payload, ClockOffset: offset, Output: printed, Paused: h.paused.Load,
		Note: func(m string) { h.note.Store(&m) },
		Remember: func(v any) error {
			memo, err := json.Marshal(v)
			if err != nil {
				return err
			}
			return t.conf.Journal.update(h.TaskID, func(j *Entry) { j.Memo = memo })
		},
		Recall: func(v any) (bool, error) {
			j, ok := t.conf.Journal.get(h.TaskID)
			if !ok || len(j.Memo) == 0 {
				return false, nil
			}
			return true, json.Unmarshal(j.Memo, v)
		},
	}
}

// resultOf converts what an executor returned into a result.
func resultOf(out any, err error) task.Result {
	if err == nil {
		var data []byte
		if data, err = json.Marshal(out); err == nil && len(data) <= wire.MaxOutput {
			return task.Result{Status: task.Succeeded, Output: data}
		}
		if err == nil {
			err = schema.NewError(schema.KindTaskFailed, "the output is larger than %d bytes", wire.MaxOutput)
		}
	}
	if errors.Is(err, errCanceled) || errors.Is(err, errLeaseLost) {
		return task.Result{Status: task.Canceled, Message: err.Error()}
	}
	code := schema.KindTaskFailed
	if e, ok := errors.AsType[*schema.Error](err); ok {
		code = e.Kind
	}
	return task.Result{Status: task.Failed, Code: code, Message: text.Sanitize(text.Truncate(err.Error()))}
}
