package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/schema/audit"
)

// checkpointStore prepares and stores checkpoints of the audit trail.
type checkpointStore interface {
	Newest(ctx context.Context) (audit.Checkpoint, error)
	Next(ctx context.Context) (audit.CheckpointBody, error)
	Put(ctx context.Context, b audit.CheckpointBody, signed audit.Checkpoint) (stored bool, err error)
}

// checkpointSigner signs checkpoints with a key of their own.
type checkpointSigner interface {
	SignCheckpoint(ctx context.Context, c audit.Checkpoint) (audit.Checkpoint, error)
}

// checkpoints signs a checkpoint of the audit trail each minute in which the trail grew,
// in the worker because the API may not sign with the checkpoint key. Of several workers
// one stores the checkpoint.
type checkpoints struct {
	store  checkpointStore
	signer checkpointSigner
	log    *slog.Logger
	every  time.Duration
}

// run signs checkpoints until ctx ends, and returns nil then. It logs a fault once.
func (c checkpoints) run(ctx context.Context) error {
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := c.sign(ctx, time.Now())
		if err != nil && ctx.Err() == nil && !failing {
			c.log.Warn("cannot sign a checkpoint of the audit trail", slog.Any("err", err))
		}
		failing = err != nil
	}
}

// sign signs and stores the next checkpoint if it is due.
func (c checkpoints) sign(ctx context.Context, now time.Time) error {
	newest, err := c.store.Newest(ctx)
	if err != nil || now.Sub(newest.At).Abs() < c.every/2 {
		return err // another worker was faster
	}
	body, err := c.store.Next(ctx)
	if err != nil || len(body.Heads) == 0 {
		return err
	}
	_, hash, err := body.Encode()
	if err != nil {
		return err
	}
	signed, err := c.signer.SignCheckpoint(ctx, audit.Checkpoint{Number: body.Number, Hash: hash, At: now.UTC().Truncate(time.Second)})
	if err == nil {
		_, err = c.store.Put(ctx, body, signed)
	}
	return err
}
