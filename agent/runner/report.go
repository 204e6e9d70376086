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

// refusalTries bounds how often a refusal is posted. If the server does not receive it,
// the task is offered and refused again.
const refusalTries = 3

// report posts the recorded result until the server has stored or rejected it. It retries
// as long as the agent runs, and the next start continues. It returns true if the agent
// must stop now; see Executor.Reported.
func (t *Runner) report(ctx context.Context, h *heldTask, r task.Result) (last bool) {
	retry := wait.Backoff{Range: t.conf.Timing.Report}
	for {
		if err := t.conf.Journal.save(h.TaskID); err != nil {
			h.log.Warn("cannot journal the task", "err", err.Error())
		}
		r.LeaseEpoch = h.lease.Load().Epoch
		err := t.resultCall(ctx, h.TaskID, r, h.CorrelationID)
		switch {
		case err == nil:
			h.log.Info("task result delivered", "status", string(r.Status))
			if after := t.conf.Executors[h.Type].Reported; after != nil && r.Status == task.Succeeded && after(h.Payload) {
				return true
			}
		case ctx.Err() != nil:
			return false
		case final(err):
			if h.lease.Load().Epoch != r.LeaseEpoch {
				continue // a newer lease arrived meanwhile
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

// final reports whether a retry cannot change the answer.
func final(err error) bool {
	kinds := []schema.Kind{schema.KindLeaseLost, schema.KindNotFound, schema.KindInvalidRequest, schema.KindFenced, schema.KindForbidden}
	return slices.Contains(kinds, schema.KindOf(err))
}

// reported journals that the server has the result. It retries while the disk fails.
func (t *Runner) reported(ctx context.Context, h *heldTask, epoch int64) {
	retry := wait.Backoff{Range: t.conf.Timing.Report}
	for {
		err := t.conf.Journal.reported(h.TaskID, epoch)
		if err == nil {
			return
		}
		h.log.Warn("cannot journal the task", "err", err.Error())
		if wait.Sleep(ctx, retry.Next()) != nil {
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
