package task

import (
	"context"
	"errors"
	"slices"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// refusalTries bounds how often a refusal is posted: an unreported one only
// means that the task is offered and refused again.
const refusalTries = 3

// report posts the recorded result until the server has it or will never take
// it. It retries for as long as the agent runs; a restart continues. It
// returns true if the agent must stop now; see Executor.Reported.
func (t *Runner) report(ctx context.Context, h *heldTask, e Entry) (last bool) {
	p, err := e.Task()
	if err != nil {
		t.log.Error("cannot parse journal entry", "task_id", e.TaskID, "err", err.Error())
		return false
	}
	log := t.logger(p)
	retry := wait.Backoff{Range: t.timing.Report}
	for {
		t.save(e.TaskID)
		r := *e.Result
		r.LeaseEpoch = h.epoch.Load()
		err := t.api().Result(ctx, e.TaskID, r, p.CorrelationID)
		switch {
		case err == nil:
			log.Info("task result delivered", "status", string(r.Status))
			if after := t.execs[p.Type].Reported; after != nil && r.Status == task.Succeeded && after(p) {
				return true
			}
		case apierror.IsRemoved(err):
			t.removed(err)
			return false
		case ctx.Err() != nil:
			return false
		case final(err):
			if h.epoch.Load() != r.LeaseEpoch {
				continue // a newer lease came meanwhile
			}
			log.Warn("task result rejected", "code", string(schema.KindOf(err)), "reason", schema.AsError(err).Reason,
				"err", err.Error(), "status", string(r.Status), "detail", r.Message)
		default:
			delay := retry.Next()
			log.Warn("task result not delivered", "err", err.Error(), "retry_in", delay.String())
			if wait.Sleep(ctx, delay) != nil {
				return false
			}
			continue
		}
		t.reported(ctx, e.TaskID, r.LeaseEpoch)
		return false
	}
}

// save stores changes that the disk failed to store before, and reports whether all are
// stored.
func (t *Runner) save(taskID string) bool {
	err := t.journal.save(taskID)
	if err != nil {
		t.log.Warn("task still not journaled", "task_id", taskID, "err", err.Error())
	}
	return err == nil
}

// final reports whether a retry cannot change the answer.
func final(err error) bool {
	kinds := []schema.Kind{schema.KindLeaseLost, schema.KindNotFound, schema.KindInvalidRequest, schema.KindFenced, schema.KindForbidden}
	return slices.Contains(kinds, schema.KindOf(err))
}

// reported marks the entry, unless the task was offered again meanwhile, and
// returns when that is durable: otherwise a restart would run or finalize the task
// again.
func (t *Runner) reported(ctx context.Context, taskID string, epoch int64) {
	err := t.journal.updateInMemory(taskID, func(e *Entry) { e.Reported = e.LeaseEpoch <= epoch })
	if err == nil {
		return
	}
	t.log.Error("task report not journaled", "task_id", taskID, "err", err.Error())
	retry := wait.Backoff{Range: t.timing.Report}
	for wait.Sleep(ctx, retry.Next()) == nil {
		if t.save(taskID) {
			return
		}
	}
}

// reportRefusal reports to the server that the task is refused, and why.
func (t *Runner) reportRefusal(ctx context.Context, o wire.TaskOffer, why *schema.Error) {
	log := t.log.With("task_id", text.Truncate(o.TaskID))
	log.Error("task refused", "reason", why.Reason, "detail", why.Message)
	if _, ours := t.journal.get(o.TaskID); ours || !schema.IsID(o.TaskID) {
		return
	}
	now := t.now().UTC()
	r := task.Result{
		LeaseEpoch: o.Lease.Epoch, Status: task.Failed, Code: schema.KindTaskRefused,
		Message: text.Sanitize(text.Truncate(why.Reason + ": " + why.Message)), StartedAt: now, FinishedAt: now,
	}
	retry := wait.Backoff{Range: t.timing.Report}
	for range refusalTries {
		err := t.api().Result(ctx, o.TaskID, r, "")
		switch {
		case err == nil || final(err):
			return
		case apierror.IsRemoved(err):
			t.removed(err)
			return
		}
		log.Warn("task refusal not delivered", "err", err.Error())
		if errors.Is(wait.Sleep(ctx, retry.Next()), context.Canceled) {
			return
		}
	}
}
