package identity

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Config is what an identity depends on.
type Config struct {
	NodeID string
	Env    string
	// Server names the node API in logs.
	Server string
	// Token is the enrollment token, or the recovery token that replaced it; it
	// may be empty once the node is enrolled.
	Token schema.Secret
	// EnvFile is rewritten when its token is used; "" when there is none.
	EnvFile string
	// CertPath and KeyPath get a copy of the identity in use.
	CertPath, KeyPath string
	// NodeCABundlePath holds the issuers that node certificates are compared
	// with.
	NodeCABundlePath string
	AgentVersion     string
}

// Timing is every interval of the manager.
type Timing struct {
	// PollTimeout is the longest poll.
	PollTimeout time.Duration
	// Retry is for failures that end without an operator.
	Retry wait.Range
	// Refused is for refusals that only a new bundle resolves.
	Refused wait.Range
	// Renewal is for a certificate that could not be renewed.
	Renewal wait.Range
	// Locked is for a locked node.
	Locked wait.Range
}

// API is the node API as far as an identity needs it.
type API interface {
	// Request asks for a certificate without presenting one.
	Request(ctx context.Context, path string, body any) (wire.EnrollResponse, error)
	// Renew asks for the next certificate with the identity in use.
	Renew(ctx context.Context, r wire.RenewRequest) (wire.EnrollResponse, error)
	// Confirm makes one authenticated call that presents another certificate and
	// has no effect on the node's work.
	Confirm(ctx context.Context, present Presenter) error
	// Reconnect makes the next request begin with a handshake.
	Reconnect() error
}

// Clock is the time by which certificates are judged.
type Clock interface {
	// Now is the server's time as far as it is known.
	Now() time.Time
	// Local is the clock of the node.
	Local() time.Time
	// Restore takes a lower bound that a former process stored.
	Restore(floor time.Time)
	// Floor is the latest time that a server sent.
	Floor() time.Time
}

// Presenter chooses the certificate of a handshake.
type Presenter func(*tls.CertificateRequestInfo) (*tls.Certificate, error)

// State is what is known about the node's identity.
type State string

// The states. A manager that has read nothing yet is in none of them.
const (
	// StateNone: there is no identity to present.
	StateNone State = "none"
	// StateActive: the identity in use is good.
	StateActive State = "active"
	// StateRenewing: the identity in use is good and due for renewal.
	StateRenewing State = "renewing"
	// StateUnconfirmed: a newer identity is stored, and the server has not
	// accepted it yet.
	StateUnconfirmed State = "unconfirmed"
	// StateExpired: the identity in use must be replaced: its time is over, its
	// issuer is retired, or its files were moved aside.
	StateExpired State = "expired"
	// StateRejected: the server rejects the identity in use and there is no
	// other. It is tried again after a wait.
	StateRejected State = "rejected"
	// StateSuperseded: another identity of this node took the place of the one
	// in use. It is tried again after a wait.
	StateSuperseded State = "superseded"
	// StateLocked: the node is locked until an operator decides. The identity is
	// tried again after a long wait.
	StateLocked State = "locked"
	// StateRemoved: the node is removed, and its keys and tokens are wiped.
	StateRemoved State = "removed"
)

// Manager maintains the node's identity: it chooses the version in use, renews
// it in time, recovers or enrolls when there is none, and wipes everything when
// the node is removed. It is level-triggered: each pass looks at what is stored
// and does at most one thing. It belongs to one goroutine, except what is
// atomic.
type Manager struct {
	conf   Config
	log    *slog.Logger
	timing Timing
	jitter wait.Jitter
	clock  Clock
	api    API
	dir    disk.StateDir
	store  versionStore
	keys   keyRing

	inUse atomic.Pointer[Version]
	// mutedUntil is when heartbeats resume, unix ns of the local clock.
	mutedUntil atomic.Int64

	state  State  // "" before the stored identities are read
	reason string // why the identity in use must be replaced, "" when it need not
	saved  persistedState

	versions    []*Version // newest first
	unconfirmed *Version   // stored, and not accepted by the server yet
	// rejected says why versions, by serial, are not used for now.
	rejected map[string]string
	// replacedUnused is true when the newest version was superseded before its
	// first use.
	replacedUnused bool

	retryAt     wait.Timer // nothing is done about the identity before
	pollBackoff wait.Timer // nothing is asked with the identity before

	retries, refusals, renewals, locks wait.Backoff
	published                          string    // serial whose token is in the env file
	lastWarned                         time.Time // that the certificate expires
}

// New makes the manager of the identities in a state folder. It reads
// nothing before the first pass.
func New(conf Config, t Timing, dir disk.StateDir, api API, clock Clock, log *slog.Logger) *Manager {
	m := &Manager{
		conf: conf, log: log, clock: clock, api: api, dir: dir,
		store: newVersionStore(conf, dir, log), keys: keyRing{dir}, rejected: map[string]string{},
	}
	m.SetTiming(t, nil)
	return m
}

// SetTiming replaces the intervals and starts the backoffs over. A nil jitter
// draws at random.
func (m *Manager) SetTiming(t Timing, j wait.Jitter) {
	m.timing, m.jitter = t, j
	m.retries = wait.Backoff{Range: t.Retry, Jitter: j}
	m.refusals = wait.Backoff{Range: t.Refused, Jitter: j}
	m.renewals = wait.Backoff{Range: t.Renewal, Jitter: j}
	m.locks = wait.Backoff{Range: t.Locked, Jitter: j}
}

// Current is the identity in use, nil when there is none. It may be called from
// any goroutine.
func (m *Manager) Current() *Version { return m.inUse.Load() }

// Versions are the stored identities, newest first.
func (m *Manager) Versions() []*Version { return m.versions }

// Removed reports whether the node is removed and its keys are wiped.
func (m *Manager) Removed() bool { return m.state == StateRemoved }

// RetryIn is how long nothing is to be done about the identity.
func (m *Manager) RetryIn() time.Duration { return m.retryAt.Left(m.clock.Local()) }

// Reconfigure replaces the token and the server's name. An operator's new token
// is used at once.
func (m *Manager) Reconfigure(server string, token schema.Secret) {
	same := token.Reveal() == m.conf.Token.Reveal()
	m.conf.Server, m.conf.Token = server, token
	if !same && m.operatorToken() {
		m.retryAt = wait.Timer{} // an operator is waiting
	}
}

// Reconcile makes one pass: it decides what the identity needs and does it,
// once.
func (m *Manager) Reconcile(ctx context.Context) Outcome {
	if m.state == StateRemoved || wasRemoved(m.dir, m.conf) {
		return m.Wipe()
	}
	if err := m.open(); err != nil {
		return m.failed(ActNothing, err, &m.retries)
	}
	m.warnBeforeExpiry()
	if left := m.RetryIn(); left > 0 {
		return Outcome{Action: ActNothing, Ready: m.ready(), Wait: left}
	}
	if m.operatorToken() {
		return m.enroll(ctx, "a new token is in the configuration")
	}
	v := m.inUse.Load()
	m.state = m.next(v)
	switch m.state {
	case StateNone, StateExpired:
		if other := m.usable(); other != nil {
			return m.fallBack(other)
		}
		return m.reacquire(ctx)
	case StateUnconfirmed:
		return m.confirm(ctx, ActPromote)
	case StateRenewing:
		return m.renew(ctx, v)
	default:
		return Outcome{Action: ActNothing, Ready: m.ready(), Wait: m.RenewAt(v).Sub(m.clock.Now())}
	}
}

// next is the state that follows when nothing is left to wait for.
func (m *Manager) next(v *Version) State {
	switch {
	case v == nil:
		return StateNone
	case m.expired(v):
		m.reason = expiry(v)
		return StateExpired
	case m.state == StateExpired:
		return StateExpired
	case m.unconfirmed != nil:
		return StateUnconfirmed
	case !m.clock.Now().Before(m.RenewAt(v)):
		return StateRenewing
	}
	return StateActive
}

// open reads the stored identities, at the first pass.
func (m *Manager) open() error {
	if m.state != "" {
		return nil
	}
	list, err := m.store.list()
	if err != nil {
		return err
	}
	saved, known, err := loadState(m.dir)
	if err != nil {
		m.log.Error("cannot parse the identity state, continuing without it", "err", err.Error())
	}
	m.saved, m.versions, m.rejected = saved, m.own(list), map[string]string{}
	m.clock.Restore(saved.ServerTime)
	if !known && len(m.versions) > 0 && m.versions[0].Number == 0 {
		// An older agent stored the pair: the configured token paid for it.
		m.saved.Seen = tokenDigest(m.conf.Token.Reveal())
	}
	m.prune()
	m.state = StateNone
	if m.movedAside() {
		return nil
	}
	if v := m.usable(); v != nil {
		if err := m.use(v); err != nil {
			m.state = ""
			return err
		}
		m.install(v)
	}
	return nil
}

// own drops the versions of another node or environment.
func (m *Manager) own(list []*Version) []*Version {
	return slices.DeleteFunc(list, func(v *Version) bool {
		err := v.matches(m.conf)
		if err != nil {
			m.log.Error("stored identity belongs to another node", "version", v.Number, "err", err.Error())
		}
		return err != nil
	})
}

// prune drops the versions that are no longer needed, in memory and on disk.
func (m *Manager) prune() {
	var kept, dropped []*Version
	for i, v := range m.versions {
		if i < keepVersions || v == m.inUse.Load() || v.Number == m.saved.Proven {
			kept = append(kept, v)
		} else {
			dropped = append(dropped, v)
		}
	}
	m.versions = kept
	if err := m.store.prune(kept, dropped); err != nil {
		m.log.Warn("cannot prune old identities", "err", err.Error())
	}
}

// movedAside reports whether an operator took the copies at the configured paths
// away, which means that their key must not be used again. It keeps the identity
// where there is no other way to one.
func (m *Manager) movedAside() bool {
	if !m.saved.Installed || len(m.versions) == 0 || !m.store.missing() {
		return false
	}
	if !m.Recoverable() && !m.unspent() {
		m.log.Warn("certificate and key were moved aside, but there is no other way to an identity: they stay in use")
		return false
	}
	for _, v := range m.versions {
		m.rejected[v.Facts.Serial] = "moved aside"
	}
	m.reason = "certificate and key were moved aside"
	return true
}

// usable returns the newest stored version that can be used.
func (m *Manager) usable() *Version {
	for _, v := range m.versions {
		if _, rejected := m.rejected[v.Facts.Serial]; !rejected && !m.expired(v) {
			return v
		}
	}
	return nil
}

// use makes a version the identity in use.
func (m *Manager) use(v *Version) error {
	former := m.inUse.Swap(v)
	if err := m.api.Reconnect(); err != nil {
		m.inUse.Store(former)
		return err
	}
	m.state, m.reason = StateActive, ""
	if m.unconfirmed == v {
		m.unconfirmed = nil
	}
	m.log.Info("identity in use", "serial", v.Facts.Serial, "issuer", v.Facts.Issuer, "not_after", v.Facts.NotAfter,
		"incarnation", v.ID.Incarnation, "sequence", v.Meta.Sequence, "version", v.Number)
	if err := v.checkIssuer(m.conf.NodeCABundlePath); err != nil {
		m.log.Warn("certificate may be from a replaced node CA", "err", err.Error())
	}
	if begin := v.Leaf.NotBefore; m.clock.Now().Before(begin) {
		m.log.Error("certificate is not valid yet: check the clock of this node", "not_before", text.FormatTime(begin),
			"local", text.FormatTime(m.clock.Local()))
	}
	return nil
}

// fallBack replaces a rejected version by another stored one.
func (m *Manager) fallBack(v *Version) Outcome {
	if err := m.use(v); err != nil {
		return m.failed(ActFallBack, err, &m.retries)
	}
	return Outcome{Action: ActFallBack, Ready: m.ready()}
}

func (m *Manager) expired(v *Version) bool { return m.clock.Now().After(v.Leaf.NotAfter) }

func expiry(v *Version) string {
	return fmt.Sprintf("the certificate expired at %s", text.FormatTime(v.Leaf.NotAfter))
}

// ready reports whether there is an identity to poll with.
func (m *Manager) ready() bool {
	v := m.inUse.Load()
	return v != nil && !m.expired(v) && m.state != StateExpired && m.pollBackoff.Left(m.clock.Local()) == 0
}

// RenewAt is when a version is due for renewal: around half of its life, at a
// point that node and serial decide, so that certificates issued at the same
// time are not renewed at the same time.
func (m *Manager) RenewAt(v *Version) time.Time {
	life := v.Leaf.NotAfter.Sub(v.Leaf.NotBefore)
	sum := sha256.Sum256([]byte(v.ID.NodeID + v.Facts.Serial))
	spread := float64(binary.BigEndian.Uint64(sum[:8]))/math.MaxUint64*2 - 1
	return v.Leaf.NotBefore.Add(time.Duration(float64(life) * (trust.RenewAt + trust.RenewJitter*spread)))
}

// PollTimeout is how long a poll with the version may wait: at most until the
// identity needs attention, which a short-lived certificate would not outlast.
func (m *Manager) PollTimeout(v *Version) time.Duration {
	due := max(m.RenewAt(v).Sub(m.clock.Now()), m.RetryIn())
	return min(m.timing.PollTimeout, max(due, time.Second).Round(time.Second))
}

// warnBeforeExpiry logs once an hour that the certificate expires, in the last
// quarter of its life.
func (m *Manager) warnBeforeExpiry() {
	v, now := m.inUse.Load(), m.clock.Now()
	if v == nil {
		return
	}
	left := v.Leaf.NotAfter.Sub(now)
	if left > v.Leaf.NotAfter.Sub(v.Leaf.NotBefore)/4 || !m.lastWarned.IsZero() && now.Sub(m.lastWarned).Abs() < time.Hour {
		return
	}
	m.lastWarned = now
	m.log.Error("certificate expires soon and could not be renewed", "serial", v.Facts.Serial, "not_after", v.Facts.NotAfter,
		"left", left.Round(time.Second).String(), "recovery_possible", m.Recoverable(),
		"next", "see the failed renewals above; gpuaas node show "+m.conf.NodeID)
}

// Presenter answers a handshake's request for a certificate with the version's,
// for as long as the node has an identity at all. Its error ends the handshake
// before anything is sent.
func (m *Manager) Presenter(v *Version) Presenter {
	return func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if v == nil || m.inUse.Load() == nil {
			return nil, ErrNone
		}
		return v.presentTo(r)
	}
}

// presentTo refuses where the server could only refuse.
func (v *Version) presentTo(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if !v.acceptedBy(r.AcceptableCAs) {
		return nil, ErrIssuer
	}
	return &v.Certificate, nil
}

// failed records a failure and when to retry: when the answer says so, else by
// the backoff, always with jitter.
func (m *Manager) failed(did Action, err error, b *wait.Backoff) Outcome {
	return m.failedFor(did, err, b.Next())
}

func (m *Manager) failedFor(did Action, err error, wait time.Duration) Outcome {
	if after, ok := apierror.RetryAfter(err); ok {
		wait = m.jitter.Spread(after)
	}
	m.retryAt.Set(m.clock.Local(), wait)
	m.note(err, wait)
	return Outcome{Action: did, Err: err, Ready: m.ready(), Wait: wait}
}

// note stores the state for the status command.
func (m *Manager) note(err error, wait time.Duration) {
	s := ManagerStatus{At: m.clock.Local().UTC(), State: m.state, Trouble: m.reason}
	if err != nil {
		s.Trouble, s.RetryAt = text.Truncate(err.Error()), m.clock.Local().Add(wait).UTC()
	}
	if err := m.dir.Hint(managerFile, s); err != nil {
		m.log.Warn("cannot write the identity status", "err", err.Error())
	}
}
