package runner

import (
	"context"

	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Offer verifies, journals and starts a task. A task that is already in the journal does
// not run again: its lease is replaced, and a recorded result is reported again. A
// refusal is a KindTaskRefused error, and is reported to the server unless the journal
// has a task with this ID: a forged second envelope must not end the real task. Offer
// waits for the report of a quick task, whose connection the next poll would occupy.
func (t *Runner) Offer(ctx context.Context, verify func(wire.TaskOffer) (task.Verified, error), o wire.TaskOffer) error {
	v, err := verify(o)
	if err == nil {
		err = t.take(ctx, v, o)
	}
	if schema.KindOf(err) == schema.KindTaskRefused {
		t.reportRefusal(ctx, o, schema.AsError(err))
	}
	t.mu.Lock()
	h, held := t.held[o.TaskID]
	t.mu.Unlock()
	if !held {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, t.conf.Timing.Quick)
	defer cancel()
	select {
	case <-h.ended:
	case <-ctx.Done():
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
		return refusal.New(refusal.UnknownType, "the task type is unsupported")
	}
	if err := x.Check(p.Params); err != nil {
		return refusal.New(refusal.Params, "the params are not those of %s: %v", p.Type, err)
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
	t.hold(ctx, e, o.Lease, false)
	return nil
}

// again handles a task that is in the journal.
func (t *Runner) again(ctx context.Context, known Entry, v task.Verified, o wire.TaskOffer) error {
	if known.Digest != v.Digest {
		return refusal.New(refusal.OtherPayload, "the task was accepted before with another body")
	}
	if o.Lease.Epoch < known.LeaseEpoch {
		return refusal.New(refusal.OlderLease, "the offer is under lease %d, but lease %d is newer", o.Lease.Epoch, known.LeaseEpoch)
	}
	err := t.conf.Journal.offeredAgain(known.TaskID, o.Lease.Epoch)
	if err != nil {
		t.conf.Log.Warn("cannot journal the task", "task_id", known.TaskID, "err", err.Error()) // the report needs no journal
	}
	t.mu.Lock()
	h, running := t.held[known.TaskID]
	t.mu.Unlock()
	t.conf.Log.Info("task offered again", "task_id", known.TaskID, "correlation_id", v.Payload.CorrelationID, "step", known.Step, "epoch", o.Lease.Epoch)
	if running {
		h.lease.Store(&o.Lease)
		return nil
	}
	known, _ = t.conf.Journal.get(known.TaskID)
	if known.leftUnbegun() {
		return err // it was not journaled
	}
	t.hold(ctx, known, o.Lease, false)
	return nil
}
