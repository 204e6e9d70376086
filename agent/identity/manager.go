package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
)

// Manager maintains the node's identity: it chooses the version in use, renews
// it in time, recovers or enrolls when there is none, and wipes everything when
// a signed removal of the node arrives. It is level-triggered: each pass looks at what is stored
// and takes at most one action. Except for atomic fields, one goroutine uses it.
type Manager struct {
	requester
	schedule
	issuerWatch
	renewalRequest

	state  State  // "" before the stored identities are read
	reason string // why the identity in use must be replaced, "" when it need not

	unconfirmed *Version // stored, and not accepted by the server yet
	// replacedUnused is true when the newest version was superseded before its
	// first use.
	replacedUnused bool
	published      string // serial whose token is in the env file
	removedAnswers int    // answers that the node is removed, without a valid removal, since the last accepted request
	unproven       string // the reason that was logged for the last of them, "" before
}

// New makes the manager of the identities in a state folder. It reads
// nothing before the first pass, and needs SetTiming before it.
func New(conf Config, dir disk.StateDir, api API, clock Clock, log *slog.Logger) *Manager {
	m := &Manager{
		requester: requester{api: api, holdings: holdings{
			conf: conf, log: log, clock: clock, dir: dir,
			store: newVersionStore(conf, dir, log), keys: keyRing{dir}, nextToken: nextToken{state: dir, log: log}, rejected: map[string]string{},
		}},
		schedule: schedule{local: clock.Local},
	}
	m.changed.Store(true) // by an earlier process
	return m
}

// Removed reports whether the node is removed and its keys are wiped.
func (m *Manager) Removed() bool { return m.state == StateRemoved }

// Reconfigure replaces the token and the server's name. An operator's new token
// is used at once.
func (m *Manager) Reconfigure(server string, token schema.Secret) {
	same := token.Reveal() == m.conf.Token.Reveal()
	m.conf.Server, m.conf.Token = server, token
	if !same && m.newToken() {
		m.retryAt = wait.Timer{} // an operator expects it now
	}
}

// Reconcile makes one pass: it decides what the identity needs and takes that action
// once.
func (m *Manager) Reconcile(ctx context.Context) Outcome {
	if m.state == StateRemoved || wasRemoved(m.dir, m.conf) {
		return m.Wipe()
	}
	if err := m.open(); err != nil {
		return m.failed(ActNothing, err, m.retries.Next())
	}
	m.warnBeforeExpiry()
	if m.loadToken() {
		m.retryAt = wait.Timer{} // an operation waits for it
	}
	if left := m.RetryIn(); left > 0 {
		return Outcome{Action: ActNothing, Ready: m.ready(), Wait: left}
	}
	if m.newToken() {
		return m.enroll(ctx, "a new token is in the configuration")
	}
	v := m.inUse.Load()
	m.state = m.next(v)
	switch m.state {
	case StateNone, StateExpired:
		if other := m.usable(); other != nil {
			if err := m.use(other); err != nil {
				return m.failed(ActFallBack, err, m.retries.Next())
			}
			return Outcome{Action: ActFallBack, Ready: m.ready()}
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

// next returns the state that follows when no wait is left.
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
	case !m.clock.Now().Before(m.RenewAt(v)) || m.renewalAsked(v):
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
	if _, err := m.dir.ReadJSON(m.dir.File(memoryFile), &m.saved); err != nil {
		m.log.Error("cannot parse the identity state, continuing without it", "err", err.Error())
	}
	m.versions, m.rejected = m.own(list), map[string]string{}
	m.clock.Restore(m.saved.ServerTime)
	m.prune()
	m.state = StateNone
	m.rejectMovedAside()
	v := m.usable()
	if v == nil {
		return nil
	}
	if err := m.use(v); err != nil {
		m.state = ""
		return err
	}
	m.install(v)
	return nil
}

// use makes a version the identity in use.
func (m *Manager) use(v *Version) error {
	previous := m.inUse.Swap(v)
	if err := m.api.Reconnect(); err != nil {
		m.inUse.Store(previous)
		return err
	}
	m.state, m.reason = StateActive, ""
	if m.unconfirmed == v {
		m.unconfirmed = nil
	}
	m.log.Info("identity in use", v.logFields()...)
	if err := v.checkIssuer(m.conf.NodeCABundlePath); err != nil {
		m.log.Warn("certificate may be from a replaced node CA", "err", err.Error())
	}
	if begin := v.Leaf.NotBefore; m.clock.Now().Before(begin) {
		m.log.Error("certificate is not valid yet: check the clock of this node", "not_before", text.FormatTime(begin),
			"local", text.FormatTime(m.clock.Local()))
	}
	return nil
}

func expiry(v *Version) string {
	return fmt.Sprintf("the certificate expired at %s", text.FormatTime(v.Leaf.NotAfter))
}

// ready reports whether there is an identity to poll with.
func (m *Manager) ready() bool {
	v := m.inUse.Load()
	return v != nil && !m.expired(v) && m.state != StateExpired && m.pollBackoff.Left(m.clock.Local()) == 0
}

// PollTimeout is how long a poll with the version may wait: at most until the
// identity needs attention, which a short-lived certificate would not outlast.
func (m *Manager) PollTimeout(v *Version) time.Duration {
	due := max(m.RenewAt(v).Sub(m.clock.Now()), m.RetryIn())
	return min(m.timing.PollTimeout, max(due, time.Second).Round(time.Second))
}

// failed records a failure and the time to retry: from the answer's Retry-After, else
// from the backoff, always with jitter.
func (m *Manager) failed(did Action, err error, wait time.Duration) Outcome {
	if later, ok := errors.AsType[apierror.RetryError](err); ok {
		wait = later.After + m.jitter.UpTo(later.After/2)
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
