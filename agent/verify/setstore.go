package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// setFile is the name of the set in use in the state folder.
const setFile = "verifier-set.json"

// SetStore holds the verifier set in use, which is never replaced by an older one, and
// the server's time. It is safe for concurrent use.
type SetStore struct {
	env   string
	state disk.StateDir
	log   *slog.Logger
	Clock *Clock

	walking sync.Mutex // held during a walk
	retryAt wait.Timer // after a walk that failed
	retry   wait.Backoff
	missed  trust.VerifierSetRef // the newest set that a walk did not reach

	mu         sync.Mutex
	roots      []trust.VerifierKey
	set        Set
	bundle     trust.VerifierSetRef // the set that the bundle names
	lastWarned time.Time            // about an expired set
}

// OpenSets reads the set that a previous process stored. An unreadable one is
// set aside and logged: the agent then uses the bundle's keys and loads the later sets
// again.
func OpenSets(s disk.StateDir, env string, bundle trust.TaskTrust, clock *Clock, retry wait.Range, log *slog.Logger) (*SetStore, error) {
	r := &SetStore{env: env, state: s, log: log, Clock: clock, retry: wait.Backoff{Range: retry}}
	stored, _, err := load(s, env)
	if unreadable, known := errors.AsType[*fs.PathError](err); known {
		return nil, unreadable
	}
	if err != nil {
		log.Error("stored verifier set set aside, the keys of the bundle are used", "err", err.Error())
		if err := s.Rename(s.File(setFile), s.File(setFile+".bad")); err != nil {
			return nil, err
		}
		stored = setOnDisk{}
	}
	r.set, r.bundle = stored.Set, stored.Bundle
	r.Configure(bundle)
	return r, nil
}

// Configure applies a bundle: always its roots, and its keys if they are of a newer set
// than the one in use, unless it was applied before, or no set is stored.
func (r *SetStore) Configure(bundle trust.TaskTrust) {
	r.mu.Lock()
	defer r.mu.Unlock()
	applied := r.bundle
	r.roots, r.bundle = bundle.Roots, bundle.Floor
	switch {
	case bundle.Floor == applied && r.set.Document != nil:
	case bundle.Floor.Version > r.set.Doc.Version:
		s := trust.Bundled(bundle.Keys, bundle.Floor)
		if err := r.state.WriteJSON(r.state.File(setFile), setOnDisk{s, r.bundle}); err != nil {
			// The env file still holds it.
			r.log.Warn("the bundle's verifier set is not stored", "version", s.Doc.Version, "err", err.Error())
		}
		r.set = s
	case r.set.Doc.Version == 0:
		r.set = trust.Bundled(bundle.Keys, bundle.Floor)
	case bundle.Floor.Version == r.set.Doc.Version && bundle.Floor.Hash != r.set.Hash:
		r.log.Error("the bundle names another verifier set of the version in use, the one in use is kept",
			"version", r.set.Doc.Version, "held", r.set.Hash, "bundle", bundle.Floor.Hash)
	}
}

// Current is the set in use.
func (r *SetStore) Current() Set {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set
}

func (r *SetStore) rootKeys() []trust.VerifierKey {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set.TrustedRoots(r.roots)
}

// adopt stores a set, then uses it, unless it is in use.
func (r *SetStore) adopt(s Set) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Hash == r.set.Hash && r.set.Document != nil {
		return nil
	}
	if err := r.state.WriteJSON(r.state.File(setFile), setOnDisk{s, r.bundle}); err != nil {
		return fmt.Errorf("storing verifier set %d: %w", s.Doc.Version, err)
	}
	r.set, r.lastWarned = s, time.Time{}
	r.log.Info("verifier set in use", "version", s.Doc.Version, "hash", s.Hash, "epoch", s.Doc.Epoch, "expires_at", s.Doc.ExpiresAt)
	return nil
}

// Source returns set documents above a version, oldest first.
type Source func(ctx context.Context, after int64) (trust.VerifierSets, error)

// Follow loads the sets up to the newest one that the server named, unless it is in
// use. Failures are retried with backoff; the set in use stays.
func (r *SetStore) Follow(ctx context.Context, named trust.VerifierSetRef, sets Source) {
	cur := r.Current()
	if named.Version == 0 || named.Version == cur.Doc.Version && named.Hash == cur.Hash && cur.Document != nil {
		return
	}
	r.walking.Lock()
	defer r.walking.Unlock()
	now, rootless := r.Clock.local(), len(r.rootKeys()) == 0
	if r.missed == named && (r.retryAt.Left(now) > 0 || rootless) {
		return
	}
	r.missed = named
	if rootless {
		r.log.Warn("cannot load a newer verifier set: the bundle of this node names no root key", "held", cur.Doc.Version,
			"shown", named.Version, "next", "issue a new bundle for this node")
		return
	}
	err := r.catchUp(ctx, named, sets)
	if err == nil || ctx.Err() != nil {
		r.missed = trust.VerifierSetRef{}
		r.retry.Reset()
		return
	}
	wait := r.retry.Next()
	r.retryAt.Set(now, wait)
	r.log.Error("cannot load a verifier set, the one in use is kept", "reason", schema.AsError(err).Reason, "err", err.Error(),
		"held", r.Current().Doc.Version, "shown", named.Version, "retry_in", wait.String())
}

// Newest loads all newer sets.
func (r *SetStore) Newest(ctx context.Context, sets Source) (Set, error) {
	r.walking.Lock()
	defer r.walking.Unlock()
	if len(r.rootKeys()) == 0 {
		return r.Current(), nil
	}
	rejected, err := r.walk(ctx, r.above(), math.MaxInt64, sets)
	return r.Current(), cmp.Or(err, rejected)
}

// catchUp loads the sets up to the one that the server named. If one of them is rejected, it
// starts over with the first set on record: after the database was restored, the set that
// replaces the one in use may have a lower version, and may be the only one that names the root
// key of the later ones.
func (r *SetStore) catchUp(ctx context.Context, named trust.VerifierSetRef, sets Source) error {
	after := min(named.Version-1, r.above())
	rejected, err := r.walk(ctx, after, named.Version, sets)
	if rejected != nil && err == nil && after > 0 {
		var again error
		if again, err = r.walk(ctx, 0, named.Version, sets); again == nil {
			rejected = nil
		}
	}
	return cmp.Or(err, rejected, r.reached(named))
}

// above returns the version above which sets are requested: that of the set in use, or
// the one before if only a bundle's keys are known of it.
func (r *SetStore) above() int64 {
	cur := r.Current()
	if cur.Document == nil && cur.Doc.Version > 0 {
		return cur.Doc.Version - 1
	}
	return cur.Doc.Version
}

// maxPages limits the responses that a walk reads: 64 of 64 sets are 500 years of renewals.
const maxPages = 64

// walk requests the sets above a version up to another one, and adopts one after the other. The
// versions only say where to continue: nothing verified those of rejected sets. It skips sets that
// may not replace the one in use, because a later one may have a higher epoch. rejected is the
// reason for the first one since the last that was adopted.
func (r *SetStore) walk(ctx context.Context, after, to int64, sets Source) (rejected, err error) {
	for range maxPages {
		answer, err := sets(ctx, after)
		if err != nil {
			return rejected, err
		}
		begin := after
		for _, document := range answer.Sets {
			n, reason := r.Current().Next(r.env, r.rootKeys(), document)
			after = max(after, versionOf(document))
			switch {
			case reason == nil:
				if err := r.adopt(n); err != nil {
					return nil, err
				}
				rejected = nil
			case schema.AsError(reason).Reason != trust.ReasonSetOld:
				rejected = cmp.Or(rejected, refuseSet(reason))
			}
		}
		if after <= begin || after >= to {
			break
		}
	}
	return rejected, nil
}

// versionOf returns the version that a document names, which nothing verified.
func versionOf(document []byte) int64 {
	s, _ := trust.ParseVerifierSet(document)
	return s.Doc.Version
}

// reached returns an error if the set in use is not the one that the server named.
func (r *SetStore) reached(named trust.VerifierSetRef) error {
	switch cur := r.Current(); {
	case cur.Doc.Version == named.Version && cur.Hash != named.Hash:
		return refusal.New(trust.ReasonSetFork, "there are two verifier sets %d: %s is held, %s is named", cur.Doc.Version, cur.Hash, named.Hash)
	case cur.Doc.Version > named.Version:
		return refusal.New(trust.ReasonSetOld, "the server names verifier set %d, and %d is held", named.Version, cur.Doc.Version)
	case cur.Doc.Version < named.Version:
		return refusal.New(refusal.SetWithheld, "the server names verifier set %d and does not return it", named.Version)
	}
	return nil
}

// WarnExpired logs once an hour that the set in use has expired.
func (r *SetStore) WarnExpired(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.set.Expired(at) || !r.lastWarned.IsZero() && at.Sub(r.lastWarned) < time.Hour {
		return
	}
	r.lastWarned = at
	r.log.Error("verifier set has expired and the server has no newer one: destructive tasks are refused",
		"version", r.set.Doc.Version, "expires_at", r.set.Doc.ExpiresAt, "now", text.FormatTime(at))
}
