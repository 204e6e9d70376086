package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// refusalTries bounds how often a refusal is posted: an unreported one only
// means that the task is offered and refused again.
const refusalTries = 3

// report posts the recorded result until the server has it or will never take
// it. It goes on for as long as the agent runs; a restart goes on after it. It
// returns true when this was the last thing of the agent; see Executor.Reported.
func (t *tasks) report(ctx context.Context, h *heldTask, e entry) (last bool) {
	p, err := e.task()
	if err != nil {
		t.log.Error("journal entry does not read", "task_id", e.TaskID, "err", err.Error())
		return false
	}
	log := t.logger(p)
	wait := backoff{min: t.timing.resultMin, max: t.timing.resultMax}
	for {
		t.save(e.TaskID)
		r := *e.Result
		r.LeaseEpoch = h.epoch.Load()
		err := t.api().result(ctx, e.TaskID, r, p.CorrelationID)
		switch {
		case err == nil:
			log.Info("task result delivered", "status", string(r.Status))
			if after := t.execs[p.Type].Reported; after != nil && r.Status == task.Succeeded && after(p) {
				return true
			}
		case isRemoved(err):
			t.removed(err)
			return false
		case ctx.Err() != nil:
			return false
		case final(err):
			if h.epoch.Load() != r.LeaseEpoch {
				continue // a newer lease came meanwhile
			}
			log.Warn("task result not wanted", "code", string(schema.KindOf(err)), "reason", schema.AsError(err).Reason,
				"err", err.Error(), "status", string(r.Status), "detail", r.Message)
		default:
			delay := wait.next()
			log.Warn("task result not delivered", "err", err.Error(), "retry_in", delay.String())
			if pause(ctx, delay) != nil {
				return false
			}
			continue
		}
		t.reported(ctx, e.TaskID, r.LeaseEpoch)
		return false
	}
}

// save makes durable what the disk did not take before, and reports whether
// nothing is left to store.
func (t *tasks) save(taskID string) bool {
	err := t.journal.save(taskID)
	if err != nil {
		t.log.Warn("task still not journalled", "task_id", taskID, "err", err.Error())
	}
	return err == nil
}

// final knows the answers that no repetition changes.
func final(err error) bool {
	kinds := []schema.Kind{schema.KindLeaseLost, schema.KindNotFound, schema.KindInvalidRequest, schema.KindFenced, schema.KindForbidden}
	return slices.Contains(kinds, schema.KindOf(err))
}

// reported marks the entry, unless the task was offered again meanwhile, and
// returns when that is durable: else a restart would run or settle the task
// again.
func (t *tasks) reported(ctx context.Context, taskID string, epoch int64) {
	err := t.journal.settle(taskID, func(e *entry) { e.Reported = e.LeaseEpoch <= epoch })
	if err == nil {
		return
	}
	t.log.Error("task report not journalled", "task_id", taskID, "err", err.Error())
	wait := backoff{min: t.timing.resultMin, max: t.timing.resultMax}
	for pause(ctx, wait.next()) == nil {
		if t.save(taskID) {
			return
		}
	}
}

// reportRefusal tells the server that the task will not be run, and why.
func (t *tasks) reportRefusal(ctx context.Context, o wire.TaskOffer, why *schema.Error) {
	log := t.log.With("task_id", clip(o.TaskID))
	log.Error("task refused", "reason", why.Reason, "detail", why.Message)
	if _, ours := t.journal.get(o.TaskID); ours || !schema.IsID(o.TaskID) {
		return
	}
	now := t.now().UTC()
	r := task.Result{
		LeaseEpoch: o.Lease.Epoch, Status: task.Failed, Code: schema.KindTaskRefused,
		Message: plain(clip(why.Reason + ": " + why.Message)), StartedAt: now, FinishedAt: now,
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
