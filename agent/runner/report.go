package runner

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
func (t *Runner) report(ctx context.Context, h *heldTask, r task.Result) (last bool) {
	retry := wait.Backoff{Range: t.conf.Timing.Report}
	for {
		t.save(h)
		r.LeaseEpoch = h.epoch.Load()
		err := t.resultCall(ctx, h.TaskID, r, h.CorrelationID)
		switch {
		case err == nil:
			h.log.Info("task result delivered", "status", string(r.Status))
			if after := t.conf.Executors[h.Type].Reported; after != nil && r.Status == task.Succeeded && after(h.Payload) {
				return true
			}
		case apierror.IsRemoved(err) || ctx.Err() != nil:
			return false
		case final(err):
			if h.epoch.Load() != r.LeaseEpoch {
				continue // a newer lease came meanwhile
			}
			h.log.Warn("task result rejected", "code", string(schema.KindOf(err)), "reason", schema.AsError(err).Reason,
				"err", err.Error(), "status", string(r.Status), "detail", r.Message)
		default:
			delay := retry.Next()
			h.log.Warn("task result not delivered", "err", err.Error(), "retry_in", delay.String())
			if wait.Sleep(ctx, delay) != nil {
				return false
			}
			continue
		}
		t.reported(ctx, h, r.LeaseEpoch)
		return false
	}
}

// save stores changes that the disk failed to store before, and reports whether all are
// stored.
func (t *Runner) save(h *heldTask) bool {
	err := t.conf.Journal.save(h.TaskID)
	if err != nil {
		h.log.Warn("task still not journaled", "err", err.Error())
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
func (t *Runner) reported(ctx context.Context, h *heldTask, epoch int64) {
	err := t.conf.Journal.updateInMemory(h.TaskID, func(e *Entry) { e.Reported = e.LeaseEpoch <= epoch })
	if err == nil {
		return
	}
	h.log.Error("task report not journaled", "err", err.Error())
	retry := wait.Backoff{Range: t.conf.Timing.Report}
	for wait.Sleep(ctx, retry.Next()) == nil {
		if t.save(h) {
			return
		}
	}
}

// reportRefusal reports to the server that the task is refused, and why.
func (t *Runner) reportRefusal(ctx context.Context, o wire.TaskOffer, why *schema.Error) {
	log := t.conf.Log.With("task_id", text.Truncate(o.TaskID))
	log.Error("task refused", "reason", why.Reason, "detail", why.Message)
	if _, ours := t.conf.Journal.get(o.TaskID); ours || !schema.IsID(o.TaskID) {
		return
	}
	now := t.conf.Local().UTC()
	r := task.Result{
		LeaseEpoch: o.Lease.Epoch, Status: task.Failed, Code: schema.KindTaskRefused,
		Message: text.Sanitize(text.Truncate(why.Reason + ": " + why.Message)), StartedAt: now, FinishedAt: now,
	}
	retry := wait.Backoff{Range: t.conf.Timing.Report}
	for range refusalTries {
		err := t.resultCall(ctx, o.TaskID, r, "")
		if err == nil || final(err) || apierror.IsRemoved(err) {
			return
		}
		log.Warn("task refusal not delivered", "err", err.Error())
		if errors.Is(wait.Sleep(ctx, retry.Next()), context.Canceled) {
			return
		}
	}
}
