package vault

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
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
	// historyPage is the number of sets of one read of the history.
	historyPage = 64
)

// SetStore stores verifier sets. Errors are *schema.Error.
type SetStore interface {
	// NewestSet returns the newest verifier set. KindNotFound if there is none.
	NewestSet(ctx context.Context) (trust.StoredSet, error)
	// SetsAfter returns up to limit sets above a version, in order. It may return
	// fewer although there are more.
	SetsAfter(ctx context.Context, version int64, limit int) ([]trust.StoredSet, error)
	// PutSet stores the successor of the newest set. Reason set_outdated if the
	// set does not follow the newest one.
	PutSet(ctx context.Context, set trust.StoredSet, by audit.Subject) error
}

// SetFollower caches the newest verifier set, has it checked and computes the
// minimum set that tasks require. It is safe for concurrent use.
type SetFollower struct {
	store   SetStore
	follow  func(ctx context.Context, set trust.StoredSet) error
	log     *slog.Logger
	observe func(ok bool)
	now     func() time.Time

	refreshing sync.Mutex // one refresh at a time
	mu         sync.Mutex
	newest     trust.StoredSet
	replaced   chan struct{} // closed when newest changes
	accepted   []string      // IDs of the newest set's keys that verify
	checked    time.Time     // of the last completed check; zero to check again soon
	err        error         // the reason why the signer may not sign

	reading   sync.Mutex // held while the history is read
	minimumOf string     // hash of the newest set at the last read
	minimum   int64
}

// NewSetFollower returns a follower that has not read a set yet. follow has the
// contract of Client.Follow. observe is called after each completed check; ok
// reports whether the signer may sign.
func NewSetFollower(store SetStore, follow func(ctx context.Context, set trust.StoredSet) error,
	log *slog.Logger, observe func(ok bool)) *SetFollower {
	return &SetFollower{store: store, follow: follow, log: log, observe: observe, now: time.Now, replaced: make(chan struct{}),
		err: schema.NewError(schema.KindServiceUnavailable, "the newest verifier set has not been read yet").WithReason(ReasonNoSet)}
}

// Run refreshes the set until ctx ends, and returns nil then: after each notification
// on wake, and every 30 seconds. wake may be nil.
func (f *SetFollower) Run(ctx context.Context, wake <-chan struct{}) error {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
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
func (f *SetFollower) Refresh(ctx context.Context) error {
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, refreshBudget)
	defer cancel()
	set, err := f.store.NewestSet(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	due := f.err != nil || set.Hash != f.newest.Hash || f.now().Sub(f.checked) >= checkEvery
	f.mu.Unlock()
	if !due {
		return nil
	}
	err = f.follow(ctx, set)
	f.mu.Lock()
	defer f.mu.Unlock()
	// The node API serves the set even if this process may not sign: nodes verify
	// it with the root key.
	if f.newest.Hash != set.Hash {
		f.newest, f.accepted = set, acceptedKeys(set)
		close(f.replaced)
		f.replaced = make(chan struct{})
	}
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
func (f *SetFollower) Healthy() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// NewestSet implements the node API's port from the cache. It is
// KindServiceUnavailable if no set has been read yet.
func (f *SetFollower) NewestSet(context.Context) (trust.StoredSet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.newest.Version == 0 {
		return trust.StoredSet{}, schema.NewError(schema.KindServiceUnavailable, "there is no verifier set yet").
			WithReason(ReasonNoSet).WithNext("gpuaas admin setup")
	}
	return f.newest, nil
}

// AcceptedKeys implements the node API's port from the cache.
func (f *SetFollower) AcceptedKeys() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.accepted
}

// Replaced implements the node API's port.
func (f *SetFollower) Replaced() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.replaced
}

func acceptedKeys(stored trust.StoredSet) []string {
	ids := []string{} // nodes that cannot parse the set either accept no key
	if set, err := trust.ParseVerifierSet(stored.Document); err == nil {
		for _, k := range set.Accepted() {
			ids = append(ids, k.KeyID)
		}
	}
	return ids
}

// SetsAfter implements the node API's port.
func (f *SetFollower) SetsAfter(ctx context.Context, version int64, limit int) ([]trust.StoredSet, error) {
	return f.store.SetsAfter(ctx, version, limit)
}

// MinVerifierSet implements activities.Sets: it returns the version since which
// the newest set's active key has been active. It returns 0 if that is version 1,
// because every node trusts that key. MinVerifierSet reads the history once per
// newest set.
func (f *SetFollower) MinVerifierSet(ctx context.Context) (int64, error) {
	newest, err := f.NewestSet(ctx)
	if err != nil {
		return 0, err
	}
	f.reading.Lock()
	defer f.reading.Unlock()
	if f.minimumOf == newest.Hash {
		return f.minimum, nil
	}
	since, err := activeSince(ctx, f.store, newest)
	if err != nil {
		return 0, err
	}
	if since == 1 {
		since = 0
	}
	f.minimumOf, f.minimum = newest.Hash, since
	return since, nil
}

// activeSince returns the first version in which the active key of the newest set was
// active. It trusts the history as far as hashes link it to the newest set, which the
// signer has checked.
func activeSince(ctx context.Context, store SetStore, newest trust.StoredSet) (int64, error) {
	var last trust.VerifierSet
	since := map[string]int64{}
	for last.Doc.Version < newest.Version {
		page, err := store.SetsAfter(ctx, last.Doc.Version, historyPage)
		if err != nil {
			return 0, err
		}
		if len(page) == 0 {
			return 0, badHistory(last.Doc.Version+1, "it is missing")
		}
		for _, stored := range page[:min(len(page), int(newest.Version-last.Doc.Version))] {
			set, err := trust.ParseVerifierSet(stored.Document)
			if err == nil {
				err = last.CheckSuccessor(set)
			}
			if err != nil {
				return 0, badHistory(stored.Version, schema.AsError(err).Message)
			}
			if key := identify(set.Active()); since[key] == 0 {
				since[key] = set.Doc.Version
			}
			last = set
		}
	}
	if last.Hash != newest.Hash {
		return 0, badHistory(newest.Version, "there are two sets of this version")
	}
	return since[identify(last.Active())], nil
}

func identify(k trust.VerifierKey) string { return k.KeyID + ":" + string(k.Public) }

func badHistory(version int64, why string) error {
	return schema.NewError(schema.KindInternal, "verifier set %d in the history is invalid: %s", version, why).
		WithReason("bad_verifier_history").WithNext("restore the table verifier_sets from a backup: nodes follow the same chain")
}
