// Package sets follows the newest verifier set: it keeps what the database says,
// has the signer check it, and says what that came to. Start at New.
package sets

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

const (
	// refreshEvery is how often the newest set is read without a wake.
	refreshEvery = 30 * time.Second
	// checkEvery is how often a set that did not change is checked again.
	checkEvery = time.Hour
	// readBudget bounds one reading and one check.
	readBudget = 15 * time.Second
)

// Store is where sets are kept. Errors are *schema.Error.
type Store interface {
	// NewestSet returns the newest verifier set. KindNotFound when there is
	// none.
	NewestSet(ctx context.Context) (trust.StoredSet, error)
	// SetsAfter returns up to limit sets above a version, in order.
	SetsAfter(ctx context.Context, version int64, limit int) ([]trust.StoredSet, error)
}

// Signer signs under a set.
type Signer interface {
	// Follow checks the set and signs under it from then on. KindInternal when
	// the set or the signer's keys are not what they should be: nothing is
	// signed then. KindServiceUnavailable when that cannot be told now: what was
	// checked before stays.
	Follow(ctx context.Context, set trust.StoredSet) error
}

// Follower keeps the newest set. It is safe for concurrent use.
type Follower struct {
	store  Store
	signer Signer
	log    *slog.Logger
	told   func(ok bool)
	now    func() time.Time

	refreshing sync.Mutex // one at a time
	mu         sync.Mutex
	newest     trust.StoredSet
	checked    time.Time // the last check that came to an end; zero for none
	err        error     // what keeps the signer from signing
	least      least
}

// New returns a follower that has read nothing yet. told hears after each check
// whether the signer may sign.
func New(store Store, signer Signer, log *slog.Logger, told func(ok bool)) *Follower {
	return &Follower{store: store, signer: signer, log: log, told: told, now: time.Now,
		err: schema.NewError(schema.KindServiceUnavailable, "the newest verifier set was not read yet").WithReason("no_verifier_set")}
}

// Run refreshes until ctx ends: after each wake, and now and then anyway.
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
			f.log.Error("following the verifier sets", slog.Any("err", err), slog.String("next", schema.AsError(err).Next))
		}
	}
}

// Refresh reads the newest set, and has it checked when it is new, when the last
// check failed, and once an hour.
func (f *Follower) Refresh(ctx context.Context) error {
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, readBudget)
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
	// The set is handed out whatever this process may sign: nodes judge it by
	// the root's signature.
	f.newest = set
	if err != nil && schema.KindOf(err) == schema.KindServiceUnavailable {
		// Nothing is known anew. An old check counts on and is made again soon.
		f.checked = time.Time{}
		return err
	}
	f.err, f.checked = err, f.now()
	f.told(err == nil)
	return err
}

// Healthy says why nothing may be signed, nil when something may.
func (f *Follower) Healthy() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// NewestSet implements nodeapi.Sets from what was read last.
func (f *Follower) NewestSet(context.Context) (trust.StoredSet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.newest.Version == 0 {
		return trust.StoredSet{}, schema.NewError(schema.KindServiceUnavailable, "there is no verifier set yet").
			WithReason("no_verifier_set").WithNext("gpuaas admin setup")
	}
	return f.newest, nil
}

// SetsAfter implements nodeapi.Sets.
func (f *Follower) SetsAfter(ctx context.Context, version int64, limit int) ([]trust.StoredSet, error) {
	return f.store.SetsAfter(ctx, version, limit)
}
