package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// setFile is the name of the set in use in the state folder.
const setFile = "verifier-set.json"

// trust is what the node judges tasks with: the verifier set in use, which never
// goes back, and the server's time. It is safe for concurrent use.
type setStore struct {
	env   string
	state stateDir
	log   *slog.Logger
	clock *trustedClock

	walking sync.Mutex // one walk at a time
	hold    delay      // after a walk that failed
	wait    backoff
	missed  trust.VerifierSetRef // the newest set that a walk did not reach

	mu    sync.Mutex
	roots []trust.VerifierKey
	set   heldSet
	loud  time.Time // of the last word on an expired set
}

// openTrust reads the set that a former process stored. One that does not read
// is put aside, loudly: the bundle's keys are used then, and the sets after
// theirs are walked again.
func openTrust(s stateDir, env string, bundle trust.TaskTrust, clock *trustedClock, t timing, log *slog.Logger) (*setStore, error) {
	r := &setStore{env: env, state: s, log: log, clock: clock, wait: backoff{min: t.pollMin, max: t.refusedMax}}
	var f storedSet
	there, err := s.readJSON(s.file(setFile), &f)
	if unreadable, known := errors.AsType[*fs.PathError](err); known {
		return nil, unreadable
	}
	if there && err == nil {
		r.set, err = f.held(env)
	}
	if err != nil {
		log.Error("stored verifier set put aside, the bundle's keys are used", "err", err.Error())
		if err := s.disk.system().Rename(s.file(setFile), s.file(setFile+".bad")); err != nil {
			return nil, err
		}
		r.set = heldSet{}
	}
	r.configure(bundle)
	return r, nil
}

// configure takes the bundle's word: its roots always, its keys where they are
// of a newer set than the one in use or none is stored.
func (r *setStore) configure(bundle trust.TaskTrust) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.roots = bundle.Roots
	switch {
	case bundle.Floor.Version > r.set.version:
		s := bundled(bundle.Keys, bundle.Floor)
		if err := r.state.writeJSON(r.state.file(setFile), s.stored()); err != nil {
			// The env file keeps it as well as the state folder would.
			r.log.Warn("the bundle's verifier set is not stored", "version", s.version, "err", err.Error())
		}
		r.set = s
	case r.set.version == 0:
		r.set = bundled(bundle.Keys, bundle.Floor)
	case bundle.Floor.Version == r.set.version && bundle.Floor.Hash != r.set.hash:
		r.log.Error("the bundle names another verifier set of the version in use, the one in use is kept",
			"version", r.set.version, "held", r.set.hash, "bundle", bundle.Floor.Hash)
	}
}

// current is the set in use.
func (r *setStore) current() heldSet {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set
}

func (r *setStore) rootKeys() []trust.VerifierKey {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.roots
}

// adopt stores a set, then uses it.
func (r *setStore) adopt(s heldSet) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.state.writeJSON(r.state.file(setFile), s.stored()); err != nil {
		return fmt.Errorf("storing verifier set %d: %w", s.version, err)
	}
	r.set, r.loud = s, time.Time{}
	r.log.Info("verifier set in use", "version", s.version, "hash", s.hash, "epoch", s.epoch, "expires_at", s.expires)
	return nil
}

// setSource hands out set documents above a version, oldest first.
type setSource func(ctx context.Context, after int64) (trust.VerifierSets, error)

// follow looks at the name of the newest set that a server told, and takes the
// sets up to it when it is not the one in use. What fails is tried again, less
// and less often; the set in use stays.
func (r *setStore) follow(ctx context.Context, told trust.VerifierSetRef, sets setSource) {
	cur := r.current()
	if told.Version == 0 || told.Version == cur.version && told.Hash == cur.hash && cur.document != nil {
		return
	}
	r.walking.Lock()
	defer r.walking.Unlock()
	now := r.clock.local()
	if r.missed == told && (r.hold.left(now) > 0 || len(r.rootKeys()) == 0) {
		return
	}
	if len(r.rootKeys()) == 0 {
		r.missed = told
		r.log.Warn("a newer verifier set is not taken: the bundle of this node names no root key", "held", cur.version,
			"shown", told.Version, "next", "issue a new bundle for this node")
		return
	}
	err := r.walk(ctx, min(told.Version-1, r.above()), sets)
	if err == nil {
		err = r.reached(told)
	}
	if err == nil || ctx.Err() != nil {
		r.missed, r.hold = trust.VerifierSetRef{}, delay{}
		r.wait.reset()
		return
	}
	wait := r.wait.next()
	r.missed = told
	r.hold.set(now, wait)
	r.log.Error("verifier set is not taken, the one in use is kept", "reason", schema.AsError(err).Reason, "err", err.Error(),
		"held", r.current().version, "shown", told.Version, "retry_in", wait.String())
}

// newest takes every set there is.
func (r *setStore) newest(ctx context.Context, sets setSource) (heldSet, error) {
	r.walking.Lock()
	defer r.walking.Unlock()
	if len(r.rootKeys()) == 0 {
		return r.current(), nil
	}
	err := r.walk(ctx, r.above(), sets)
	return r.current(), err
}

// above is the version above which sets are asked for: that of the one in use,
// and where only a bundle's keys are known of it, the one before.
func (r *setStore) above() int64 {
	cur := r.current()
	if cur.document == nil && cur.version > 0 {
		return cur.version - 1
	}
	return cur.version
}

// walk takes one set after the other. Older ones than the one in use are passed
// over: among them may be one of a higher epoch.
func (r *setStore) walk(ctx context.Context, after int64, sets setSource) error {
	for {
		answer, err := sets(ctx, after)
		if err != nil {
			return err
		}
		begin := r.current()
		for _, document := range answer.Sets {
			cur := r.current()
			n, err := cur.next(r.env, r.rootKeys(), document)
			if err != nil && schema.AsError(err).Reason == refusedSetOld {
				continue
			}
			if err == nil && (n.hash != cur.hash || cur.document == nil) {
				err = r.adopt(n)
			}
			if err != nil {
				return err
			}
		}
		if after = r.current().version; after <= begin.version {
			return nil
		}
	}
}

// reached says why the set in use is not the one that the server named.
func (r *setStore) reached(told trust.VerifierSetRef) error {
	switch cur := r.current(); {
	case cur.version == told.Version && cur.hash != told.Hash:
		return refuse(refusedSetFork, "there are two verifier sets %d: %s is held, %s is named", cur.version, cur.hash, told.Hash)
	case cur.version > told.Version:
		return refuse(refusedSetOld, "the server names verifier set %d, and %d is held", told.Version, cur.version)
	case cur.version < told.Version:
		return refuse(refusedSetHeld, "the server names verifier set %d and does not hand it out", told.Version)
	}
	return nil
}

// remind says each hour that the set in use has expired.
func (r *setStore) remind(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.set.expired(at) || !r.loud.IsZero() && at.Sub(r.loud) < time.Hour {
		return
	}
	r.loud = at
	r.log.Error("verifier set has expired and no newer one is handed out: destructive tasks are refused",
		"version", r.set.version, "expires_at", r.set.expires, "now", stamp(at))
}

// trustedClock is the time that tasks are judged by: the latest that a verified
// grant told, here or in a former process, carried on by the progress of the
// local clock, whose reading counts for nothing.
type trustedClock struct {
	local func() time.Time

	mu   sync.Mutex
	told time.Time
	at   time.Time // local, when told was
}

// now is zero before anything was told.
func (c *trustedClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reading()
}

func (c *trustedClock) reading() time.Time {
	if c.told.IsZero() {
		return time.Time{}
	}
	return c.told.Add(max(c.local().Sub(c.at), 0))
}

// later is the time now if a server's word is true: it never goes back.
func (c *trustedClock) later(told time.Time) time.Time {
	if now := c.now(); now.After(told) {
		return now
	}
	return told
}

// heard takes the time of a verified grant.
func (c *trustedClock) heard(told time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.reading(); now.Before(told) {
		c.told, c.at = told, c.local()
	}
}
