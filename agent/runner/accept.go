package runner

import (
	"context"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Offer takes one task from the server: it verifies it, journals it and starts
// it. A task in the journal is not run again: its lease is renewed, and a
// recorded result is reported once more. A refusal is a KindTaskRefused error
// and is reported to the server, unless the node holds the very task: a forged
// second envelope must not end the real one.
func (t *Runner) Offer(ctx context.Context, verify func(wire.TaskOffer) (task.Verified, error), o wire.TaskOffer) error {
	v, err := verify(o)
	if err == nil {
		err = t.take(ctx, v, o)
	}
	if schema.KindOf(err) == schema.KindTaskRefused {
		t.reportRefusal(ctx, o, schema.AsError(err))
	}
	return err
}

func (t *Runner) take(ctx context.Context, v task.Verified, o wire.TaskOffer) error {
	p := v.Payload
	if known, ok := t.conf.Journal.get(p.TaskID); ok {
		return t.again(ctx, known, v, o)
	}
	x, ok := t.conf.Executors[p.Type]
	if !ok {
		return refuse(reasonUnknownType, "the task type is unsupported")
	}
	if err := x.Check(p.Params); err != nil {
		return refuse(reasonParams, "the params are not those of %s: %v", p.Type, err)
	}
	offset := t.conf.Local().Sub(v.At)
	e := Entry{
		TaskID: p.TaskID, Digest: v.Digest, Payload: v.Raw, Seq: p.Seq, LeaseEpoch: o.Lease.Epoch,
		AcceptedAt: t.conf.Local().UTC(), TrustedAt: v.At.UTC(), ExpiresAt: p.ExpiresAt, Step: stepAccepted, ClockOffset: &offset,
	}
	if err := t.conf.Journal.accept(e); err != nil {
		return err
	}
	t.conf.Log.Info("task accepted", "task_id", p.TaskID, "correlation_id", p.CorrelationID, "type", string(p.Type), "seq", p.Seq, "epoch", e.LeaseEpoch)
	t.wakeAll()
	t.hold(ctx, e, false)
	return nil
}

// again handles a task that is in the journal.
func (t *Runner) again(ctx context.Context, known Entry, v task.Verified, o wire.TaskOffer) error {
	if known.Digest != v.Digest {
		return refuse(reasonOtherPayload, "the task was accepted before with another body")
	}
	if o.Lease.Epoch < known.LeaseEpoch {
		return refuse(reasonEpoch, "the lease is %d, and lease %d was taken", o.Lease.Epoch, known.LeaseEpoch)
	}
	err := t.conf.Journal.update(known.TaskID, func(e *Entry) {
		e.LeaseEpoch, e.Reported = max(e.LeaseEpoch, o.Lease.Epoch), false
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	h, running := t.held[known.TaskID]
	t.mu.Unlock()
	t.conf.Log.Info("task offered again", "task_id", known.TaskID, "correlation_id", v.Payload.CorrelationID, "step", known.Step, "epoch", o.Lease.Epoch)
	if running {
		h.epoch.Store(max(h.epoch.Load(), o.Lease.Epoch))
		return nil
	}
	known, _ = t.conf.Journal.get(known.TaskID)
	t.hold(ctx, known, false)
	return nil
}
