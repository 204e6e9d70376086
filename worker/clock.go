package worker

import (
	"context"
	"log/slog"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// compareClocks compares this machine's clock with those of the servers before the first task is
// signed. A wrong clock does not stop the start: operations continue up to their next task.
func (p *parts) compareClocks(ctx context.Context) {
	p.Clocks.Compare(daemon.ClockOfPostgres, "this worker signs no task", p.store.Now)
	p.Clocks.Compare("vault", "certificates may be rejected as expired or not valid yet", p.vault.Now)
	if err := p.Clocks.Check(ctx); err != nil {
		p.Log.Error("clocks differ", slog.Any("err", err), slog.String("next", schema.AsError(err).Next))
	}
}

// documentSigner signs what nodes verify with the task key.
type documentSigner interface {
	Sign(ctx context.Context, payload []byte) ([]byte, error)
	removalSigner
}

// timelySigner signs nothing while the clocks of this worker and the database differ: the times
// in a task are the worker's, and nodes compare them with the database's.
type timelySigner struct {
	documentSigner

	clocks *daemon.Clocks
}

// Sign implements activities.Signer.
func (s timelySigner) Sign(ctx context.Context, payload []byte) ([]byte, error) {
	if err := s.clocks.Fault(daemon.ClockOfPostgres); err != nil {
		return nil, err
	}
	return s.documentSigner.Sign(ctx, payload)
}

// SignRemoval implements removalSigner.
func (s timelySigner) SignRemoval(ctx context.Context, r trust.Removal) ([]byte, error) {
	if err := s.clocks.Fault(daemon.ClockOfPostgres); err != nil {
		return nil, err
	}
	return s.documentSigner.SignRemoval(ctx, r)
}

// timelyRotator signs no verifier set while the clocks of this worker and the database differ: the
// times in a set are the worker's, and nodes compare them with the database's.
type timelyRotator struct {
	activities.KeyRotator

	clocks *daemon.Clocks
}

// SignSet implements activities.KeyRotator.
func (r timelyRotator) SignSet(ctx context.Context, newest trust.StoredSet, t rotation.Target) (set trust.StoredSet, due bool, err error) {
	if err := r.clocks.Fault(daemon.ClockOfPostgres); err != nil {
		return set, false, err
	}
	return r.KeyRotator.SignSet(ctx, newest, t)
}

// RenewSet implements activities.KeyRotator.
func (r timelyRotator) RenewSet(ctx context.Context, newest trust.StoredSet) (set trust.StoredSet, due bool, err error) {
	if err := r.clocks.Fault(daemon.ClockOfPostgres); err != nil {
		return set, false, err
	}
	return r.KeyRotator.RenewSet(ctx, newest)
}
