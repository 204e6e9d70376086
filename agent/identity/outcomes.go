package identity

import (
	"cmp"
	"errors"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
)

// Observe records the outcome of a request made with the identity in use. It returns
// true when the state changed, so that the caller should make the next pass at once.
func (m *Manager) Observe(err error) bool {
	v := m.inUse.Load()
	if v == nil {
		return false
	}
	switch classify(err) {
	case resultOK:
		if err == nil {
			m.confirmed(v)
		}
		return false
	case resultUnusable:
		m.reject(v, err)
	case resultUnknownIssuer:
		if !m.unknownTooLong(v.Facts.Serial, m.clock.Local()) {
			// The open connection was made before the server's current list of
			// issuers: the next request begins with a handshake.
			if err := m.api.Reconnect(); err != nil {
				m.log.Warn("cannot reconnect", "err", err.Error())
			}
			return false
		}
		m.reject(v, err)
	case resultSuperseded:
		m.superseded(v, err)
	case resultLocked:
		m.lockedOut(err)
	case resultRemoved:
		m.removed(ActNothing, err)
	default:
		return false
	}
	return true
}

// reject stops using an unusable version and those of the same issuer. If the server has
// accepted the version, it stops using the older ones, too: the server would take their use for
// that of a copy.
func (m *Manager) reject(v *Version, err error) {
	for _, o := range m.versions {
		if o == v || o.sameIssuer(v.Pair) || o.Number < v.Number && v.Number <= m.saved.Proven {
			m.rejected[o.Facts.Serial] = err.Error()
		}
	}
	m.state, m.reason = StateExpired, text.Truncate(err.Error())
}

// superseded tries another stored version: after a crash, the newest one may be unknown
// to the node or to the server. Without another version, the manager can only wait.
func (m *Manager) superseded(v *Version, err error) {
	m.rejected[v.Facts.Serial] = err.Error()
	// A request that arrived twice was answered twice, and one without an answer
	// may have been granted: either replaces a version that was not used yet.
	unanswered, _ := m.keys.unanswered(v)
	unanswered = unanswered && v.Number > m.saved.Proven
	m.replacedUnused = m.replacedUnused || unanswered
	if next := m.usable(); next != nil && m.use(next) == nil {
		return
	}
	if unanswered {
		m.state, m.reason = StateExpired, text.Truncate(err.Error())
		return
	}
	m.rejected = map[string]string{}
	wait := m.refusals.Next()
	m.mute(StateSuperseded, wait)
	m.note(err, wait)
	m.log.Error("identity is superseded: another identity of this node is in use, possibly by a copy of its disk",
		"serial", v.Facts.Serial, "retry_in", wait.String(), "next", m.reissueCommand())
}

// lockedOut waits up to 15 minutes, because only an operator can resolve a lock. It keeps
// the identity: the operator may unlock it.
func (m *Manager) lockedOut(err error) time.Duration {
	wait := m.locks.Next()
	m.mute(StateLocked, wait)
	m.note(err, wait)
	m.log.Error("node is locked: its identity is in use on two machines, or an operator locked it",
		"retry_in", wait.String(), "next", "make sure that no copy of this node runs, then "+cmp.Or(schema.AsError(err).Next, m.reissueCommand()))
	return wait
}

const (
	// reasonNoRemoval: the answer has no document.
	reasonNoRemoval = "no_removal"
	// awaited is the number of answers without a document that are normal: a worker signs the removal some
	// seconds after its operation ended.
	awaited = 2
)

// removed handles the answer that the node is removed. A signed removal of this identity
// makes the manager delete it. Without one, the answer may be a mistake or a lie: the
// manager keeps everything and retries slowly, so that the node works again as soon as
// the server accepts it. It logs each fault once.
func (m *Manager) removed(did Action, err error) Outcome {
	fault := m.checkRemoval(err)
	if fault == nil {
		return m.Wipe()
	}
	wait := m.removals.Next()
	m.mute(StateUnproven, wait)
	m.note(fault, wait)
	m.removedAnswers++
	switch e := schema.AsError(fault); {
	case e.Reason == reasonNoRemoval && m.removedAnswers <= awaited:
		m.log.Info("the server reports that the node is removed; waiting for the signed removal", "retry_in", wait.String())
	case m.unproven != e.Reason:
		m.unproven = e.Reason
		m.log.Error("the server reports that the node is removed, but the identity is kept: there is no valid removal",
			"reason", e.Reason, "detail", e.Message, "retry_in", wait.String(),
			"next", "gpuaas node show "+m.conf.NodeID)
	}
	return Outcome{Action: did, Err: err, Wait: wait}
}

// checkRemoval returns nil if the answer carries a removal of the newest identity.
func (h *holdings) checkRemoval(err error) error {
	proof, ok := errors.AsType[apierror.RemovedError](err)
	switch {
	case !ok:
		return schema.NewError(schema.KindServiceUnavailable, "the answer contains no signed removal").WithReason(reasonNoRemoval)
	case len(h.versions) == 0:
		return schema.NewError(schema.KindServiceUnavailable, "this node has no identity that could be removed").WithReason("no_identity")
	}
	return h.conf.CheckRemoval(h.versions[0].ID, proof.Document)
}

// mute stops all requests for a while.
func (m *Manager) mute(s State, wait time.Duration) {
	now := m.clock.Local()
	if m.state != StateExpired {
		m.state = s
	}
	m.pollBackoff.Set(now, wait)
	m.retryAt.Set(now, wait)
}

// confirmed records that the server accepted the identity in use: it is
// promoted, and its recovery token is the live one.
func (m *Manager) confirmed(v *Version) {
	for _, b := range []*wait.Backoff{&m.retries, &m.refusals, &m.locks, &m.removals} {
		b.Reset()
	}
	if m.removedAnswers > 0 {
		m.removedAnswers, m.unproven = 0, ""
		m.note(nil, 0)
		m.log.Info("the server accepts the node again")
	}
	m.replacedUnused, m.issuerWatch = false, issuerWatch{}
	clear(m.rejected)
	if m.published == v.Facts.Serial {
		if m.clock.Floor().Sub(m.saved.ServerTime).Abs() > time.Hour {
			m.save()
		}
		return
	}
	m.published, m.saved.Proven = v.Facts.Serial, max(m.saved.Proven, v.Number)
	if err := m.keys.dropUsed(v); err != nil {
		m.log.Warn("cannot remove a staged key", "err", err.Error())
	}
	m.note(nil, 0)
	m.install(v)
	m.publish(v)
	m.save()
}

// Wipe removes everything that identifies the node. It may be called again: the
// next start finishes a wipe that a crash interrupted.
func (m *Manager) Wipe() Outcome {
	out := Outcome{Action: ActWipe, Removed: true}
	if m.state == StateRemoved {
		return out
	}
	token := m.conf.Token.Reveal()
	if path := m.dir.File(removedFile); !wasRemoved(m.dir, m.conf) {
		r := removal{NodeID: m.conf.NodeID, At: m.clock.Now().UTC(), Token: tokenDigest(token)}
		for _, v := range m.versions {
			r.Own = append(r.Own, tokenDigest(v.Meta.RecoveryToken))
		}
		out.Err = m.dir.WriteJSON(path, r)
	}
	out.Err = errors.Join(out.Err, m.keys.wipe(), m.dropToken(), m.store.wipe(), m.dir.Wipe(m.dir.File(memoryFile)), wipeStale(m.dir, m.conf))
	if m.conf.EnvFile != "" {
		_, err := replaceEnvToken(m.dir, m.conf.EnvFile, "", func(old string) bool { return old == token || m.hasToken(old) })
		out.Err = errors.Join(out.Err, err)
	}
	m.state = StateRemoved
	m.inUse.Store(nil)
	if out.Err != nil {
		m.log.Error("node removed, but some of its keys and tokens could not be wiped", "err", out.Err.Error())
		return out
	}
	m.log.Warn("node removed: its keys, certificates and tokens are wiped")
	return out
}
