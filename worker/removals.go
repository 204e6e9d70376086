package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

const (
	// removalsEvery is the interval between searches for removals to sign.
	removalsEvery = 5 * time.Second
	// removalsAtOnce bounds the signatures of one search.
	removalsAtOnce = 100
)

// removalStore finds removals to sign and stores their documents.
type removalStore interface {
	DueRemovals(ctx context.Context, renewBefore time.Time, limit int) ([]trust.Removal, error)
	PutRemoval(ctx context.Context, r trust.Removal, document []byte) error
}

// removalSigner signs removals with the task key.
type removalSigner interface {
	SignRemoval(ctx context.Context, r trust.Removal) ([]byte, error)
}

// removals signs the removals of nodes, in the worker because the API may not sign with
// the task key. While Vault or Postgres is unavailable, removed agents wait with their
// identity. Several workers may sign the same removal; the last document is kept.
type removals struct {
	store  removalStore
	signer removalSigner
	env    string
	log    *slog.Logger
}

// run signs removals until ctx ends, and returns nil then. It logs a fault once.
func (r removals) run(ctx context.Context) error {
	tick := time.NewTicker(removalsEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := r.sign(ctx, time.Now())
		if err != nil && ctx.Err() == nil && !failing {
			r.log.Warn("cannot sign the removals of nodes; their agents keep their identity until then", slog.Any("err", err))
		}
		failing = err != nil
	}
}

// sign signs the removals that are due.
func (r removals) sign(ctx context.Context, now time.Time) error {
	due, err := r.store.DueRemovals(ctx, now.Add(trust.RemovalLifetime/2), removalsAtOnce)
	if err != nil {
		return err
	}
	for _, d := range due {
		d = trust.NewRemoval(trust.Identity{Env: r.env, NodeID: d.NodeID, Incarnation: d.Incarnation}, d.OperationID, now)
		document, err := r.signer.SignRemoval(ctx, d)
		if err == nil {
			err = r.store.PutRemoval(ctx, d, document)
		}
		if err != nil {
			return err
		}
		r.log.Info("removal signed", slog.String("node_id", d.NodeID), slog.String("operation_id", d.OperationID))
	}
	return nil
}
