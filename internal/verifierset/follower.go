// Package verifierset handles the verifier sets of the control plane. A Follower
// caches the newest set, has the signer check it and computes the minimum set that
// tasks require; Publish creates and renews sets. The format and
// its verification are in schema/trust.
package verifierset

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

const (
	// refreshEvery is the interval between reads of the newest set without a
	// notification.
	refreshEvery = 30 * time.Second
	// checkEvery is the interval between checks of an unchanged set.
	checkEvery = time.Hour
	// refreshBudget limits one read and one check.
	refreshBudget = 15 * time.Second
)

// Store stores verifier sets. Errors are *schema.Error.
type Store interface {
	// NewestSet returns the newest verifier set. KindNotFound if there is none.
	NewestSet(ctx context.Context) (trust.StoredSet, error)
	// SetsAfter returns up to limit sets above a version, in order.
	SetsAfter(ctx context.Context, version int64, limit int) ([]trust.StoredSet, error)
}

// Signer signs tasks under a verifier set.
type Signer interface {
	// Follow checks the set and then signs under it. KindInternal if the set is
	// invalid or differs from the signer's keys: the signer then signs nothing.
	// KindServiceUnavailable if the check is not possible now: the result of the
	// last check stays in force.
	Follow(ctx context.Context, set trust.StoredSet) error
}

// Follower caches the newest verifier set. It is safe for concurrent use.
type Follower struct {
	store   Store
	signer  Signer
	log     *slog.Logger
	observe func(ok bool)
	now     func() time.Time

	refreshing sync.Mutex // one refresh at a time
	mu         sync.Mutex
	newest     trust.StoredSet
	checked    time.Time // of the last completed check; zero to check again soon
	err        error     // the reason why the signer may not sign
	minimum    minimum
}

// New returns a follower that has not read a set yet. observe is called after each
// completed check; ok reports whether the signer may sign.
func New(store Store, signer Signer, log *slog.Logger, observe func(ok bool)) *Follower {
	return &Follower{store: store, signer: signer, log: log, observe: observe, now: time.Now,
		err: schema.NewError(schema.KindServiceUnavailable, "the newest verifier set has not been read yet").WithReason("no_verifier_set")}
}

// Run refreshes the set until ctx ends: after each notification on wake, and
// every 30 seconds. wake may be nil.
func (f *Follower) Run(ctx context.Context, wake <-chan struct{}) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-tick.C:
		}
		if err := f.Refresh(ctx); err != nil && ctx.Err() == nil {
			f.log.Error("cannot refresh the verifier set", slog.Any("err", err), slog.String("next", schema.AsError(err).Next))
		}
	}
}

// Refresh reads the newest set. It has the signer check the set if the set is new,
// if the last check failed, and once an hour.
func (f *Follower) Refresh(ctx context.Context) error {
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, refreshBudget)
	defer cancel()
	set, err := f.store.NewestSet(ctx)
	if err != nil {
		return err
	}
	if !f.due(set) {
		return nil
	}
	return f.check(ctx, set)
}

func (f *Follower) due(set trust.StoredSet) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err != nil || set.Hash != f.newest.Hash || f.now().Sub(f.checked) >= checkEvery
}

func (f *Follower) check(ctx context.Context, set trust.StoredSet) error {
	err := f.signer.Follow(ctx, set)
	f.mu.Lock()
	defer f.mu.Unlock()
	// The node API serves the set even if this process may not sign: nodes verify
	// it with the root key.
	f.newest = set
	if err != nil && schema.KindOf(err) == schema.KindServiceUnavailable {
		// The check has no result. An earlier one stays in force; check again soon.
		f.checked = time.Time{}
		return err
	}
	f.err, f.checked = err, f.now()
	f.observe(err == nil)
	return err
}

// Healthy returns the reason why nothing may be signed, or nil.
func (f *Follower) Healthy() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// NewestSet implements the node API's port from the cache. It is
// KindServiceUnavailable if no set has been read yet.
func (f *Follower) NewestSet(context.Context) (trust.StoredSet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.newest.Version == 0 {
		return trust.StoredSet{}, schema.NewError(schema.KindServiceUnavailable, "there is no verifier set yet").
			WithReason("no_verifier_set").WithNext("gpuaas admin setup")
	}
	return f.newest, nil
}

// SetsAfter implements the node API's port.
func (f *Follower) SetsAfter(ctx context.Context, version int64, limit int) ([]trust.StoredSet, error) {
	return f.store.SetsAfter(ctx, version, limit)
}
