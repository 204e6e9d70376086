package agent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// keeper looks after the node's identity: it chooses the version in use, renews
// it in time, recovers or enrols when there is none, and wipes everything when
// the node is removed. It is level-triggered: each pass looks at what is there
// and does at most one thing. It belongs to one goroutine, but for what is
// atomic.
type keeper struct {
	conf   *Config
	deps   Deps
	log    *slog.Logger
	timing *timing
	clock  *serverClock
	state  stateDir
	store  versionStore
	keys   keyRing
	// api is the client of the identity in use; use changes it.
	api func() *client
	use func(*version) error
	// prove makes one authenticated call.
	prove func(context.Context, *client) error

	inUse atomic.Pointer[version]
	// hush is when heartbeats go on, unix ns of the local clock.
	hush atomic.Int64

	opened   bool
	gone     bool
	mem      recollection
	versions []*version // newest first
	unproven *version   // stored, but a handshake with it was refused
	// barred says why versions, by serial, are not used for now.
	barred map[string]string
	cause  string // why the identity in use must be replaced; "" when it need not
	again  bool   // the newest version was superseded before its first use
	hold   delay  // nothing is done about the identity
	quiet  delay  // nothing is asked with the identity

	soon, late, renewals, locks backoff
	envDone                     string    // serial whose token the env file got
	loud                        time.Time // of the last reminder
}

// setTiming starts the backoffs over from the agent's intervals.
func (k *keeper) setTiming() {
	t := k.timing
	k.soon = backoff{min: t.pollMin, max: t.pollMax, draw: k.deps.Draw}
	k.late = backoff{min: t.refusedMin, max: t.refusedMax, draw: k.deps.Draw}
	k.renewals = backoff{min: t.renewMin, max: t.renewMax, draw: k.deps.Draw}
	k.locks = backoff{min: t.lockedMin, max: t.lockedMax, draw: k.deps.Draw}
}

// delay is a wait that a clock set back does not make endless.
type delay struct {
	until  time.Time
	length time.Duration
}

func (d *delay) set(now time.Time, length time.Duration) { d.until, d.length = now.Add(length), length }

func (d *delay) left(now time.Time) time.Duration {
	left := d.until.Sub(now)
	if left <= 0 || left > d.length {
		return 0
	}
	return left
}

// Keep makes one pass of the identity keeper: it decides what the identity
// needs and does it, once. It must not run beside Run, Step or itself.
func (a *Agent) Keep(ctx context.Context) Outcome {
	k := a.keeper
	out := k.pass(ctx)
	if out.Err != nil && out.Wait > 0 && ctx.Err() == nil {
		a.rereadBundle()
	}
	return out
}

func (k *keeper) pass(ctx context.Context) Outcome {
	if k.gone || k.state.gone(*k.conf) {
		return k.wipe()
	}
	if err := k.open(); err != nil {
		return k.failed(ActNothing, err, &k.soon)
	}
	k.remind()
	if left := k.hold.left(k.clock.local()); left > 0 {
		return Outcome{Action: ActNothing, Ready: k.ready(), Wait: left}
	}
	if k.operatorToken() {
		return k.enroll(ctx, "a new token is in the configuration")
	}
	v := k.inUse.Load()
	if v != nil && k.expired(v) {
		k.cause = k.expiry(v)
	}
	if v == nil || k.cause != "" {
		if next := k.another(); next != nil {
			return k.fallBack(next)
		}
		return k.regain(ctx)
	}
	if k.unproven != nil {
		return k.promote(ctx, ActPromote)
	}
	if left := k.renewAt(v).Sub(k.clock.now()); left > 0 {
		return Outcome{Action: ActNothing, Ready: k.ready(), Wait: left}
	}
	return k.renew(ctx, v)
}

// open reads what is stored, at the first pass.
func (k *keeper) open() error {
	if k.opened {
		return nil
	}
	list, err := k.store.list()
	if err != nil {
		return err
	}
	mem, known, err := loadMemory(k.state)
	if err != nil {
		k.log.Error("identity memory does not read, going on without it", "err", err.Error())
	}
	k.mem, k.versions, k.barred = mem, k.ours(list), map[string]string{}
	k.clock.heardBefore(mem.ServerTime)
	if !known && len(k.versions) > 0 && k.versions[0].number == 0 {
		// A pair of an older agent: the token is the one that paid for it.
		k.mem.Seen = tokenDigest(string(k.conf.EnrollmentToken))
	}
	k.tidy()
	k.opened = true
	if k.movedAside() {
		return nil
	}
	if v := k.another(); v != nil {
		if err := k.take(v); err != nil {
			k.opened = false
			return err
		}
		k.install(v)
	}
	return nil
}

// ours leaves out what names another node or environment.
func (k *keeper) ours(list []*version) []*version {
	return slices.DeleteFunc(list, func(v *version) bool {
		err := v.matches(*k.conf)
		if err != nil {
			k.log.Error("stored identity is not this node's", "version", v.number, "err", err.Error())
		}
		return err != nil
	})
}

// tidy forgets the identities that are of no use any more, here and on the disk.
func (k *keeper) tidy() {
	var kept, gone []*version
	for i, v := range k.versions {
		if i < keepVersions || v == k.inUse.Load() || v.number == k.mem.Proven {
			kept = append(kept, v)
		} else {
			gone = append(gone, v)
		}
	}
	k.versions = kept
	if err := k.store.prune(kept, gone); err != nil {
		k.log.Warn("old identities are not pruned", "err", err.Error())
	}
}

// movedAside finds that somebody took the copies at the configured paths away,
// which means that their material is not to be used again. It is not, where
// there is another way to an identity.
func (k *keeper) movedAside() bool {
	if !k.mem.Installed || len(k.versions) == 0 || !k.store.missing() {
		return false
	}
	if !k.recoverable() && !k.unspent() {
		k.log.Warn("certificate and key were moved aside, but there is no other way to an identity: going on with them")
		return false
	}
	for _, v := range k.versions {
		k.barred[v.facts.Serial] = "moved aside"
	}
	k.cause = "certificate and key were moved aside"
	return true
}

// another returns the newest stored version that can be used.
func (k *keeper) another() *version {
	for _, v := range k.versions {
		if _, barred := k.barred[v.facts.Serial]; !barred && !k.expired(v) {
			return v
		}
	}
	return nil
}

// take puts a version in use.
func (k *keeper) take(v *version) error {
	was := k.inUse.Swap(v)
	if err := k.use(v); err != nil {
		k.inUse.Store(was)
		return err
	}
	k.cause = ""
	if k.unproven == v {
		k.unproven = nil
	}
	k.log.Info("identity in use", "serial", v.facts.Serial, "issuer", v.facts.Issuer, "not_after", v.facts.NotAfter,
		"incarnation", v.id.Incarnation, "sequence", v.meta.Sequence, "version", v.number)
	if err := v.checkIssuer(k.conf.NodeCABundlePath); err != nil {
		k.log.Warn("certificate may be of a replaced node ca", "err", err.Error())
	}
	if begin := v.leaf.NotBefore; k.clock.now().Before(begin) {
		k.log.Error("certificate is not valid yet: is this node's clock right?", "not_before", stamp(begin),
			"local", stamp(k.clock.local()))
	}
	return nil
}

// fallBack puts another stored version in the place of a refused one.
func (k *keeper) fallBack(v *version) Outcome {
	if err := k.take(v); err != nil {
		return k.failed(ActFallBack, err, &k.soon)
	}
	return Outcome{Action: ActFallBack, Ready: k.ready()}
}

func (k *keeper) expired(v *version) bool { return k.clock.now().After(v.leaf.NotAfter) }

func (k *keeper) expiry(v *version) string {
	return fmt.Sprintf("the certificate expired at %s", stamp(v.leaf.NotAfter))
}

// ready reports whether there is an identity to poll with.
func (k *keeper) ready() bool {
	v := k.inUse.Load()
	return v != nil && !k.expired(v) && k.cause == "" && k.quiet.left(k.clock.local()) == 0
}

// renewAt is when a version is due: around half of its life, at a point that
// node and serial decide, so that a fleet issued at once does not renew at once.
func (k *keeper) renewAt(v *version) time.Time {
	life := v.leaf.NotAfter.Sub(v.leaf.NotBefore)
	sum := sha256.Sum256([]byte(v.id.NodeID + v.facts.Serial))
	spread := float64(binary.BigEndian.Uint64(sum[:8]))/math.MaxUint64*2 - 1
	return v.leaf.NotBefore.Add(time.Duration(float64(life) * (trust.RenewAt + trust.RenewJitter*spread)))
}

// pollFor is how long a poll with the version may wait: not past the time when
// the keeper has something to do about it, which a short-lived certificate would
// not outlast.
func (k *keeper) pollFor(v *version) time.Duration {
	due := max(k.renewAt(v).Sub(k.clock.now()), k.hold.left(k.clock.local()))
	return min(k.timing.pollTimeout, max(due, time.Second).Round(time.Second))
}

// remind says each hour that the certificate runs out, below a quarter of its
// life.
func (k *keeper) remind() {
	v, now := k.inUse.Load(), k.clock.now()
	if v == nil {
		return
	}
	left := v.leaf.NotAfter.Sub(now)
	if left > v.leaf.NotAfter.Sub(v.leaf.NotBefore)/4 || !k.loud.IsZero() && now.Sub(k.loud).Abs() < time.Hour {
		return
	}
	k.loud = now
	k.log.Error("certificate runs out and could not be renewed", "serial", v.facts.Serial, "not_after", v.facts.NotAfter,
		"left", left.Round(time.Second).String(), "recovery_possible", k.recoverable(),
		"next", "look at the failed renewals above; gpuaas node show "+k.conf.NodeID)
}

// presenterOf answers a handshake's wish for a certificate with the version's,
// for as long as the node has an identity at all.
func (k *keeper) presenterOf(v *version) presenter {
	return func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if v == nil || k.inUse.Load() == nil {
			return nil, errNoIdentity
		}
		return v.presentTo(r)
	}
}

// presentTo refuses where the server could only refuse: then nothing is sent.
func (v *version) presentTo(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if !v.acceptedBy(r.AcceptableCAs) {
		return nil, errIssuer
	}
	return &v.cert, nil
}

// failed notes a failure and when to try again: when the answer said so, else
// by the backoff, always with jitter.
func (k *keeper) failed(did Action, err error, b *backoff) Outcome {
	wait := b.next()
	if r, ok := errors.AsType[retryError](err); ok {
		wait = k.deps.Draw.jitter(r.after)
	}
	k.hold.set(k.clock.local(), wait)
	k.note(err, wait)
	return Outcome{Action: did, Err: err, Ready: k.ready(), Wait: wait}
}

// note leaves the state of affairs for the status command.
func (k *keeper) note(err error, wait time.Duration) {
	s := KeeperStatus{At: k.clock.local().UTC(), Trouble: k.cause}
	if err != nil {
		s.Trouble, s.RetryAt = clip(err.Error()), k.clock.local().Add(wait).UTC()
	}
	if err := k.state.hint(keeperFile, s); err != nil {
		k.log.Warn("status file does not write", "err", err.Error())
	}
}
