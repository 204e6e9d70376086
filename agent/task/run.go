package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// run executes an accepted task and journals its result. It returns false when
// the agent is stopping: then nothing was decided and the next start resumes.
func (t *Runner) run(ctx context.Context, h *heldTask, e *Entry) bool {
	p, err := e.Task()
	if err != nil {
		t.log.Error("cannot parse journal entry", "task_id", e.TaskID, "err", err.Error())
		return false
	}
	log := t.logger(p)
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopProgress := t.progress(work, h, p, cancel)
	defer stopProgress()

	slot := t.changes
	if p.Effect == task.EffectRead {
		slot = t.reads
	}
	var out any
	said := &tail{}
	started := t.now().UTC()
	select {
	case slot <- struct{}{}:
		started = t.now().UTC()
		if err = t.begin(work, h, p); err == nil {
			out, err = t.execute(work, h, *e, said)
		}
		<-slot
	case <-work.Done():
		err = context.Cause(work)
	}
	if ctx.Err() != nil && err != nil {
		log.Info("task left for the next start", "type", string(p.Type))
		return false
	}
	r := resultOf(out, err)
	r.OutputTail, r.StartedAt, r.FinishedAt = said.text(), started, t.now().UTC()
	t.finish(e, r)
	log.Info("task finished", "type", string(p.Type), "status", string(r.Status), "code", string(r.Code),
		"detail", r.Message, "took", r.FinishedAt.Sub(r.StartedAt).String())
	return true
}

// finish records the result durably before it is reported. Where the disk fails, the
// result is reported from memory and recorded when the disk accepts it.
func (t *Runner) finish(e *Entry, r task.Result) {
	err := e.Finish(r)
	if err == nil {
		err = t.journal.updateInMemory(e.TaskID, func(j *Entry) {
			j.Step, j.Result, j.ResultSHA256, j.Memo = e.Step, e.Result, e.ResultSHA256, nil
		})
	}
	if err != nil {
		t.log.Error("task result not journaled", "task_id", e.TaskID, "err", err.Error())
	}
}

// begin returns when the task may begin: a resumed task is still wanted, and no task
// is paused. Executors that check Task.Paused begin at once. A task that stays paused
// until its envelope expires does not begin.
func (t *Runner) begin(ctx context.Context, h *heldTask, p task.Payload) error {
	if p.Effect == task.EffectRead {
		return nil
	}
	if err := t.confirm(ctx, h, p); err != nil || t.execs[p.Type].Pauses {
		return err
	}
	end := time.NewTimer(p.ExpiresAt.Sub(t.trusted()))
	defer end.Stop()
	for h.paused.Load() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end.C:
			return schema.NewError(schema.KindTaskFailed, "the task was paused until %s, the end of its time", text.FormatTime(p.ExpiresAt))
		case <-h.turned:
		}
	}
	return nil
}

// execute runs the executor under its time limit. A panic is an error.
func (t *Runner) execute(ctx context.Context, h *heldTask, e Entry, said *tail) (out any, err error) {
	p, err := e.Task()
	if err != nil {
		return nil, err
	}
	x := t.execs[p.Type]
	ctx, cancel := context.WithTimeoutCause(ctx, x.limit(p, t.server()), errTimeLimit)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			t.logger(p).Error("executor panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = schema.NewError(schema.KindInternal, "the executor of %s panicked", p.Type)
		}
	}()
	task := t.view(h, p, e, said)
	if x.Folder {
		if task.Dir, err = t.folders.make(p.TaskID); err != nil {
			return nil, schema.Wrap(schema.KindTaskFailed, err, "there is no working folder")
		}
		defer t.folders.remove(p.TaskID, t.log)
	}
	out, err = x.Run(ctx, task)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}

// view returns the executor's view of a task.
func (t *Runner) view(h *heldTask, p task.Payload, e Entry, said *tail) Task {
	return Task{
		Payload: p, ClockOffset: e.ClockOffset, Output: said, Paused: h.paused.Load,
		Note: func(m string) { h.note.Store(&m) },
		Remember: func(v any) error {
			memo, err := json.Marshal(v)
			if err != nil {
				return err
			}
			return t.journal.update(p.TaskID, func(j *Entry) { j.Memo = memo })
		},
		Recall: func(v any) (bool, error) {
			j, ok := t.journal.get(p.TaskID)
			if !ok || len(j.Memo) == 0 {
				return false, nil
			}
			return true, json.Unmarshal(j.Memo, v)
		},
	}
}

// resultOf turns what an executor returned into a result.
func resultOf(out any, err error) task.Result {
	if err == nil {
		var data []byte
		if data, err = json.Marshal(out); err == nil && len(data) <= wire.MaxResultBytes/2 {
			return task.Result{Status: task.Succeeded, Output: data}
		}
		if err == nil {
			err = schema.NewError(schema.KindTaskFailed, "the output is larger than %d bytes", wire.MaxResultBytes/2)
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
