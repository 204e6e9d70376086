package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// maxAnswerAge is how old the confirmation of a task may be when it is read. The
	// lease that it extended is then at least half left.
	maxAnswerAge = task.LeaseDuration / 2
	// maxOldAnswers bounds the confirmations that are older.
	maxOldAnswers = 3
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
			t.reportProgress(ctx, h, cancel)
		}
	}()
	return func() {
		end()
		<-done
	}
}

// progressCall reports a task's progress under a lease and extends the lease.
func (t *Runner) progressCall(ctx context.Context, h *heldTask, lease *task.Lease, message string) (wire.ProgressResponse, error) {
	asked := t.wallClock()
	a, err := t.conf.API().Progress(ctx, h.TaskID, task.Progress{LeaseEpoch: lease.Epoch, Message: message}, h.CorrelationID)
	if apierror.IsRemoved(err) {
		t.conf.Removed()
	}
	if err == nil && a.Lease.Epoch == lease.Epoch {
		h.lease.CompareAndSwap(lease, &a.Lease) // unless a newer one arrived meanwhile
	}
	if err == nil && !a.Cancel {
		h.confirmed.Store(&asked)
	}
	return a, err
}

// lostLease reports whether a response means that the task was voided or dispatched
// again.
func lostLease(err error) bool {
	kind := schema.KindOf(err)
	return kind == schema.KindLeaseLost || kind == schema.KindNotFound
}

// confirmStart asks the server whether a task is still wanted, before the task changes
// the node. A resumed task is confirmed because its operation may have ended while the
// agent was down. A destructive task is confirmed because its offer may be old: an
// agent that was suspended reads an answer that arrived long ago.
func (t *Runner) confirmStart(ctx context.Context, h *heldTask) error {
	switch {
	case h.resumed:
		return t.confirm(ctx, h, "resumed")
	case h.Effect == task.EffectDestructive:
		return t.confirm(ctx, h, "starting")
	}
	return nil
}

// confirmedRecently reports whether the server confirmed the task during the last recent.
func (h *heldTask) confirmedRecently(now time.Time, recent time.Duration) bool {
	at := h.confirmed.Load()
	return at != nil && now.Sub(*at).Abs() < recent
}

// confirm asks the server whether a task is still wanted. It retries until it gets an
// answer, and also if it was suspended before it read the answer.
func (t *Runner) confirm(ctx context.Context, h *heldTask, message string) error {
	retry, old := wait.Backoff{Range: t.conf.Timing.Report}, 0
	for {
		lease, asked := h.lease.Load(), t.wallClock()
		a, err := t.progressCall(ctx, h, lease, message)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && a.Cancel:
			return errCanceled
		case lostLease(err) && h.lease.Load().Epoch == lease.Epoch:
			return errLeaseLost
		case lostLease(err):
			continue // a newer lease arrived meanwhile
		}
		if err == nil {
			age := t.wallClock().Sub(asked)
			if age.Abs() <= maxAnswerAge {
				h.pause(a.Paused)
				return nil
			}
			err = fmt.Errorf("the server's answer was %s old when it was read", age.Round(time.Second))
			if old++; old == maxOldAnswers {
				return schema.Wrap(schema.KindTaskFailed, err, "the server did not confirm the task")
			}
		}
		h.log.Warn("task waits for the server's confirmation", "err", err.Error())
		if wait.Sleep(ctx, retry.Next()) != nil {
			return context.Cause(ctx)
		}
	}
}

// wallClock is the node's wall clock. Unlike the monotonic clock, it also advances while
// the machine is suspended.
func (t *Runner) wallClock() time.Time { return t.conf.Local().Round(0) }

// reportProgress makes one progress call and obeys the answer.
func (t *Runner) reportProgress(ctx context.Context, h *heldTask, cancel context.CancelCauseFunc) {
	lease := h.lease.Load()
	a, err := t.progressCall(ctx, h, lease, h.message())
	switch {
	case ctx.Err() != nil:
	case lostLease(err):
		if h.lease.Load().Epoch == lease.Epoch { // else a newer lease arrived meanwhile
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

// message is the executor's last note.
func (h *heldTask) message() string {
	if m := h.note.Load(); m != nil {
		return *m
	}
	return ""
}

// pause sets whether the task is paused and reports whether that changed.
func (h *heldTask) pause(on bool) (changed bool) {
	changed = h.paused.Swap(on) != on
	if changed {
		signal(h.turned)
	}
	return changed
}
