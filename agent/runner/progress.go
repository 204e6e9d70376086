package runner

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// progress extends the task's lease periodically, and at once when another task
// arrived, until the returned function is called. It ends the work when the control
// plane cancels it.
func (t *Runner) progress(ctx context.Context, h *heldTask, cancel context.CancelCauseFunc) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-h.wake:
			case <-time.After(t.conf.Timing.Progress):
			}
			t.progressOnce(ctx, h, cancel)
		}
	}()
	return func() {
		end()
		<-done
	}
}

// lostLease reports whether an answer means that the task is not this node's.
func lostLease(err error) bool {
	kind := schema.KindOf(err)
	return kind == schema.KindLeaseLost || kind == schema.KindNotFound
}

// confirm asks whether a task that a previous process accepted is still wanted,
// before it changes anything on the node: the operation may have ended while the
// agent was down. It retries until it gets an answer.
func (t *Runner) confirm(ctx context.Context, h *heldTask) error {
	if !h.resumed {
		return nil
	}
	retry := wait.Backoff{Range: t.conf.Timing.Report}
	for {
		a, err := t.progressCall(ctx, h, task.Progress{LeaseEpoch: h.epoch.Load(), Message: "resumed"})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && a.Cancel:
			return errCanceled
		case err == nil:
			h.pause(a.Paused)
			return nil
		case lostLease(err):
			return errLeaseLost
		}
		h.log.Warn("task waits for the server before it is resumed", "err", err.Error())
		if wait.Sleep(ctx, retry.Next()) != nil {
			return context.Cause(ctx)
		}
	}
}

func (t *Runner) progressOnce(ctx context.Context, h *heldTask, cancel context.CancelCauseFunc) {
	body := task.Progress{LeaseEpoch: h.epoch.Load()}
	if m := h.note.Load(); m != nil {
		body.Message = *m
	}
	a, err := t.progressCall(ctx, h, body)
	switch {
	case ctx.Err() != nil:
	case lostLease(err):
		if h.epoch.Load() == body.LeaseEpoch { // else a newer lease came meanwhile
			h.log.Warn("task lost its lease", "err", err.Error())
			cancel(errLeaseLost)
		}
	case err != nil:
		h.log.Warn("task progress not delivered", "err", err.Error())
	case a.Cancel:
		h.log.Info("task canceled by the control plane")
		cancel(errCanceled)
	case h.pause(a.Paused):
		h.log.Info("task paused or unpaused by the control plane", "paused", a.Paused)
	}
}

// pause notes whether anything new of the task may be begun, and reports whether
// that changed.
func (h *heldTask) pause(on bool) (changed bool) {
	changed = h.paused.Swap(on) != on
	if changed {
		signal(h.turned)
	}
	return changed
}
