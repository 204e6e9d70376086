package task

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// progress extends the task's lease periodically, and at once when another task
// arrived, until the returned function is called. It ends the work when the control
// plane cancels it.
func (t *Runner) progress(ctx context.Context, h *heldTask, p task.Payload, cancel context.CancelCauseFunc) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for h.await(ctx, t.timing.Progress) == nil {
			t.progressOnce(ctx, h, p, cancel)
		}
	}()
	return func() {
		end()
		<-done
	}
}

// await returns after d, at once when the task was woken, or with the context's
// error.
func (h *heldTask) await(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h.wake:
	case <-timer.C:
	}
	return nil
}

// confirm asks whether a task that a former process accepted is still wanted,
// before it changes anything on the node: the operation may have ended while the
// agent was down. It retries until it gets an answer.
func (t *Runner) confirm(ctx context.Context, h *heldTask, p task.Payload) error {
	if !h.resumed {
		return nil
	}
	retry := wait.Backoff{Range: t.timing.Report}
	for {
		a, err := t.api().Progress(ctx, p.TaskID, task.Progress{LeaseEpoch: h.epoch.Load(), Message: "resumed"}, p.CorrelationID)
		switch kind := schema.KindOf(err); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && a.Cancel:
			return errCanceled
		case err == nil:
			h.pause(a.Paused)
			return nil
		case apierror.IsRemoved(err):
			t.removed(err)
		case kind == schema.KindLeaseLost || kind == schema.KindNotFound:
			return errLeaseLost
		}
		t.logger(p).Warn("task waits for the server before it is resumed", "err", err.Error())
		if wait.Sleep(ctx, retry.Next()) != nil {
			return context.Cause(ctx)
		}
	}
}

func (t *Runner) progressOnce(ctx context.Context, h *heldTask, p task.Payload, cancel context.CancelCauseFunc) {
	body := task.Progress{LeaseEpoch: h.epoch.Load()}
	if m := h.note.Load(); m != nil {
		body.Message = *m
	}
	a, err := t.api().Progress(ctx, p.TaskID, body, p.CorrelationID)
	switch {
	case ctx.Err() != nil:
	case apierror.IsRemoved(err):
		t.removed(err)
	case schema.KindOf(err) == schema.KindLeaseLost, schema.KindOf(err) == schema.KindNotFound:
		if h.epoch.Load() == body.LeaseEpoch { // else a newer lease came meanwhile
			t.logger(p).Warn("task lost its lease", "err", err.Error())
			cancel(errLeaseLost)
		}
	case err != nil:
		t.logger(p).Warn("task progress not delivered", "err", err.Error())
	case a.Cancel:
		t.logger(p).Info("task canceled by the control plane")
		cancel(errCanceled)
	default:
		if h.pause(a.Paused) {
			t.logger(p).Info("task paused or unpaused by the control plane", "paused", a.Paused)
		}
	}
}

// pause notes whether anything new of the task may be begun, and reports whether
// that changed.
func (h *heldTask) pause(on bool) (changed bool) {
	changed = h.paused.Swap(on) != on
	if changed {
		select {
		case h.turned <- struct{}{}:
		default:
		}
	}
	return changed
}
