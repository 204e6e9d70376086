package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// refusalTries bounds how often a refusal is posted: an unreported one only
// means that the task is offered and refused again.
const refusalTries = 3

// progress extends the task's lease now and then, and at once when another task
// came, until the returned function is called. It ends the work when the
// control plane says so.
func (t *tasks) progress(ctx context.Context, h *heldTask, p schema.TaskPayload, cancel context.CancelCauseFunc) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for h.await(ctx, t.timing.progress) == nil {
			t.progressOnce(ctx, h, p, cancel)
		}
	}()
	return func() {
		end()
		<-done
	}
}

// await returns after d, at once when the task was nudged, or with the context's
// error.
func (h *heldTask) await(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h.nudge:
	case <-timer.C:
	}
	return nil
}

// confirm asks whether a task that a former process accepted is still wanted,
// before anything on the node is changed for it: while the agent was away the
// operation may have ended. It asks until it gets an answer. Reads need none.
func (t *tasks) confirm(ctx context.Context, h *heldTask, p schema.TaskPayload) error {
	if !h.resumed || p.Effect == schema.EffectRead {
		return nil
	}
	wait := backoff{min: t.timing.resultMin, max: t.timing.resultMax}
	for {
		a, err := t.api().progress(ctx, p.TaskID, schema.TaskProgress{LeaseEpoch: h.epoch.Load(), Message: "resumed"}, p.CorrelationID)
		switch kind := schema.KindOf(err); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && a.Cancel:
			return errCancelled
		case err == nil:
			return nil
		case isRemoved(err):
			t.removed(err)
		case kind == schema.KindLeaseLost || kind == schema.KindNotFound:
			return errLeaseLost
		}
		t.logger(p).Warn("task waits for the server before it is resumed", "err", err.Error())
		if pause(ctx, wait.next()) != nil {
			return context.Cause(ctx)
		}
	}
}

func (t *tasks) progressOnce(ctx context.Context, h *heldTask, p schema.TaskPayload, cancel context.CancelCauseFunc) {
	body := schema.TaskProgress{LeaseEpoch: h.epoch.Load()}
	if m := h.note.Load(); m != nil {
		body.Message = *m
	}
	a, err := t.api().progress(ctx, p.TaskID, body, p.CorrelationID)
	switch {
	case ctx.Err() != nil:
	case isRemoved(err):
		t.removed(err)
	case schema.KindOf(err) == schema.KindLeaseLost, schema.KindOf(err) == schema.KindNotFound:
		if h.epoch.Load() == body.LeaseEpoch { // else a newer lease came meanwhile
			t.logger(p).Warn("task lost its lease", "err", err.Error())
			cancel(errLeaseLost)
		}
	case err != nil:
		t.logger(p).Warn("task progress not delivered", "err", err.Error())
	case a.Cancel:
		t.logger(p).Info("task cancelled by the control plane")
		cancel(errCancelled)
	}
}

// report posts the recorded result until the server has it or will never take
// it. It goes on for as long as the agent runs; a restart goes on after it.
func (t *tasks) report(ctx context.Context, h *heldTask, e entry) {
	p, err := e.task()
	if err != nil {
		t.log.Error("journal entry does not read", "task_id", e.TaskID, "err", err.Error())
		return
	}
	log := t.logger(p)
	wait := backoff{min: t.timing.resultMin, max: t.timing.resultMax}
	for {
		r := *e.Result
		r.LeaseEpoch = h.epoch.Load()
		err := t.api().result(ctx, e.TaskID, r, p.CorrelationID)
		switch {
		case err == nil:
			log.Info("task result delivered", "status", string(r.Status))
		case isRemoved(err):
			t.removed(err)
			return
		case ctx.Err() != nil:
			return
		case final(err):
			if h.epoch.Load() != r.LeaseEpoch {
				continue // a newer lease came meanwhile
			}
			log.Warn("task result not wanted", "code", string(schema.KindOf(err)), "err", err.Error())
		default:
			delay := wait.next()
			log.Warn("task result not delivered", "err", err.Error(), "retry_in", delay.String())
			if pause(ctx, delay) != nil {
				return
			}
			continue
		}
		t.reported(e.TaskID, r.LeaseEpoch)
		return
	}
}

// final knows the answers that no repetition changes.
func final(err error) bool {
	kinds := []schema.Kind{schema.KindLeaseLost, schema.KindNotFound, schema.KindInvalidRequest, schema.KindFenced, schema.KindForbidden}
	return slices.Contains(kinds, schema.KindOf(err))
}

// reported marks the entry, unless the task was offered again meanwhile.
func (t *tasks) reported(taskID string, epoch int64) {
	err := t.journal.settle(taskID, func(e *entry) { e.Reported = e.LeaseEpoch <= epoch })
	if err != nil {
		t.log.Error("task report not journalled", "task_id", taskID, "err", err.Error())
	}
}

// reportRefusal tells the server that the task will not be run, and why.
func (t *tasks) reportRefusal(ctx context.Context, o schema.TaskOffer, why *schema.Error) {
	log := t.log.With("task_id", clip(o.TaskID))
	log.Error("task refused", "reason", why.Reason, "detail", why.Message)
	if _, ours := t.journal.get(o.TaskID); ours || !schema.IsID(o.TaskID) {
		return
	}
	now := t.now().UTC()
	r := schema.TaskResult{
		LeaseEpoch: o.Lease.Epoch, Status: schema.TaskFailed, Code: schema.KindTaskRefused,
		Message: clip(why.Reason + ": " + why.Message), StartedAt: now, FinishedAt: now,
	}
	wait := backoff{min: t.timing.resultMin, max: t.timing.resultMax}
	for range refusalTries {
		err := t.api().result(ctx, o.TaskID, r, "")
		switch {
		case err == nil || final(err):
			return
		case isRemoved(err):
			t.removed(err)
			return
		}
		log.Warn("task refusal not delivered", "err", err.Error())
		if errors.Is(pause(ctx, wait.next()), context.Canceled) {
			return
		}
	}
}

// timing is every interval of the agent, so that tests can be quick.
type timing struct {
	pollTimeout            time.Duration
	pollMin, pollMax       time.Duration
	refusedMin, refusedMax time.Duration // what only a new bundle mends
	renewMin, renewMax     time.Duration
	lockedMin, lockedMax   time.Duration
	rest                   time.Duration // longest sleep of the loop
	resultMin, resultMax   time.Duration
	progress, heartbeat    time.Duration
}

func defaultTiming() timing {
	return timing{
		pollTimeout: 55 * time.Second,
		pollMin:     500 * time.Millisecond, pollMax: schema.PollBackoffMax,
		refusedMin: time.Minute, refusedMax: 10 * time.Minute,
		renewMin: 30 * time.Second, renewMax: 15 * time.Minute,
		lockedMin: 5 * time.Minute, lockedMax: time.Hour,
		rest:      time.Minute,
		resultMin: schema.ResultBackoffMin, resultMax: schema.ResultBackoffMax,
		progress: 20 * time.Second, heartbeat: schema.HeartbeatEvery,
	}
}
