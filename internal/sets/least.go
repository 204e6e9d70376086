package sets

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// setsPage is how many sets one reading of the history gets.
const setsPage = 64

// least is what MinVerifierSet found for a newest set.
type least struct {
	hash    string // of the newest set
	version int64
}

// MinVerifierSet implements activities.Sets. It reads the history once for each newest
// set, and believes it as far as the hashes lead from the newest one to it.
func (f *Follower) MinVerifierSet(ctx context.Context) (int64, error) {
	newest, err := f.NewestSet(ctx)
	if err != nil {
		return 0, err
	}
	f.mu.Lock()
	known := f.least
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
	f.least = least{newest.Hash, version}
	return version, nil
}

// activeSince is the first version in which the newest set's active key was the
// active one, 0 for version 1: every node's set knows that key.
func (f *Follower) activeSince(ctx context.Context, newest trust.StoredSet) (int64, error) {
	var active []trust.VerifierSetKey // of each version, from 1
	for last := (trust.StoredSet{}); last.Version < newest.Version; {
		page, err := f.store.SetsAfter(ctx, last.Version, setsPage)
		if err != nil {
			return 0, err
		}
		if len(page) == 0 {
			return 0, badHistory(last.Version+1, "it is missing")
		}
		for _, set := range page[:min(len(page), int(newest.Version-last.Version))] {
			key, err := follows(last, set)
			if err != nil {
				return 0, err
			}
			active, last = append(active, key), set
		}
		if last.Version == newest.Version && last.Hash != newest.Hash {
			return 0, badHistory(last.Version, "there are two")
		}
	}
	first := int64(slices.Index(active, active[len(active)-1])) + 1
	if first == 1 {
		return 0, nil
	}
	return first, nil
}

// follows checks that a set is the successor of another, and returns its active
// key without what changes from set to set.
func follows(last, set trust.StoredSet) (trust.VerifierSetKey, error) {
	var envelope struct {
		Payload []byte `json:"payload"` // base64
	}
	var doc trust.VerifierSetDoc
	if json.Unmarshal(set.Document, &envelope) != nil || json.Unmarshal(envelope.Payload, &doc) != nil {
		return trust.VerifierSetKey{}, badHistory(set.Version, "it does not read")
	}
	sum := sha256.Sum256(envelope.Payload)
	if hex.EncodeToString(sum[:]) != set.Hash || doc.Version != last.Version+1 || doc.PrevHash != last.Hash {
		return trust.VerifierSetKey{}, badHistory(set.Version, "it is not the successor of the one before")
	}
	for _, k := range doc.Keys {
		if k.State == trust.KeyActive {
			return trust.VerifierSetKey{KeyID: k.KeyID, Public: k.Public}, nil
		}
	}
	return trust.VerifierSetKey{}, badHistory(set.Version, "it has no active key")
}

func badHistory(version int64, why string) error {
	return schema.NewError(schema.KindInternal, "verifier set %d of the history is not good: %s", version, why).
		WithReason("bad_verifier_history").WithNext("restore the table verifier_sets from a backup: nodes walk the same sets")
}
