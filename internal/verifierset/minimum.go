package verifierset

import (
	"context"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// minimum is the result of MinVerifierSet for a newest set.
type minimum struct {
	hash    string // of the newest set
	version int64
}

// MinVerifierSet implements activities.Sets: it returns the version since which
// the newest set's active key has been active. It returns 0 if that is version 1,
// because every node trusts that key. MinVerifierSet reads the history once for
// each newest set. It trusts the history as far as hashes link it to the newest
// set, which the signer has checked.
func (f *Follower) MinVerifierSet(ctx context.Context) (int64, error) {
	newest, err := f.NewestSet(ctx)
	if err != nil {
		return 0, err
	}
	f.mu.Lock()
	known := f.minimum
	f.mu.Unlock()
	if known.hash == newest.Hash {
		return known.version, nil
	}
	version, err := f.activeSince(ctx, newest)
	if err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.minimum = minimum{newest.Hash, version}
	return version, nil
}

// activeSince returns the first version with the active key of the newest set, or
// 0 if that is version 1.
func (f *Follower) activeSince(ctx context.Context, newest trust.StoredSet) (int64, error) {
	history, err := f.store.SetsAfter(ctx, 0, int(newest.Version))
	if err != nil {
		return 0, err
	}
	since := map[string]int64{} // first version, by active key
	var last trust.VerifierSet
	for _, stored := range history {
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
	if last.Doc.Version < newest.Version {
		return 0, badHistory(last.Doc.Version+1, "it is missing")
	}
	if last.Hash != newest.Hash {
		return 0, badHistory(newest.Version, "there are two sets of this version")
	}
	if version := since[identify(last.Active())]; version > 1 {
		return version, nil
	}
	return 0, nil
}

func identify(k trust.VerifierKey) string { return k.KeyID + ":" + string(k.Public) }

func badHistory(version int64, why string) error {
	return schema.NewError(schema.KindInternal, "verifier set %d in the history is invalid: %s", version, why).
		WithReason("bad_verifier_history").WithNext("restore the table verifier_sets from a backup: nodes follow the same chain")
}
