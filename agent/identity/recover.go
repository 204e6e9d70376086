package identity

import (
	"context"
	"crypto/ed25519"
	"slices"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Recoverable reports whether the node can ask for a new certificate without a
// usable one: it holds its recovery key and a recovery token.
func (m *Manager) Recoverable() bool {
	key, err := m.keys.recovery()
	return err == nil && key != nil && len(m.recoveryTokens()) > 0
}

// recoveryTokens are those of the stored versions, newest first: the newest is
// live once its certificate was used, the one before until then.
func (m *Manager) recoveryTokens() []string {
	var out []string
	for _, v := range m.versions {
		if t := v.Meta.RecoveryToken; t != "" && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// reacquire obtains an identity where none can be used: by recovery, else by
// enrollment with an unused token. Where neither is possible, its error names the
// operator's next command.
func (m *Manager) reacquire(ctx context.Context) Outcome {
	cause := m.reason
	switch {
	case cause != "":
	case len(m.versions) > 0:
		cause = expiry(m.versions[0])
	default:
		cause = ErrNone.Error()
	}
	if m.replacedUnused && m.newestUnused() {
		return m.enroll(ctx, cause)
	}
	if m.Recoverable() {
		m.log.Warn("recovery started", "cause", cause, "server", m.conf.Server)
		v, err := m.recover(ctx)
		switch {
		case err == nil:
			return m.start(ActRecover, v)
		case !apierror.IsTokenError(err) || !m.unspent() && !m.newestUnused():
			return m.enrollFailed(ActRecover, err)
		}
		m.log.Error("recovery is refused", "err", err.Error())
	}
	if m.unspent() || m.newestUnused() || len(m.versions) == 0 {
		return m.enroll(ctx, cause)
	}
	return m.enrollFailed(ActNothing, schema.NewError(schema.KindUnauthenticated,
		"%s, and this node holds no way to a new one", cause).WithNext(m.reissueCommand()))
}

// newestUnused reports whether the newest version came from an enrollment and was never
// used. A copy of the request that arrived late may have replaced it, and then
// its recovery token is not live: its enrollment is made again, with its key.
func (m *Manager) newestUnused() bool {
	if len(m.versions) == 0 {
		return false
	}
	_, enrollment := m.keys.unanswered(m.versions[0])
	return enrollment
}

// recover makes one attempt to recover, with each recovery token that may be
// the live one and each key that the server may have bound it to; a new key
// comes last. The sequence is the highest known: one behind the server's would
// look like a copy's.
func (m *Manager) recover(ctx context.Context) (*Version, error) {
	recovery, err := m.keys.recovery()
	if err != nil {
		return nil, err
	}
	incarnation := m.versions[0].ID.Incarnation
	list, err := m.keys.list("", incarnation)
	if err != nil {
		return nil, err
	}
	asked := false
	for _, known := range list {
		var v *Version
		v, err = m.recoverWith(ctx, recovery, func(key stagedKey) bool { return key.SPKI == known.SPKI })
		if !apierror.IsTokenError(err) {
			return v, err
		}
		asked = asked || m.unstored(known)
	}
	if asked {
		return nil, err
	}
	return m.recoverWith(ctx, recovery, m.unstored)
}

// recoverWith makes the attempt with one key.
func (m *Manager) recoverWith(ctx context.Context, recovery ed25519.PrivateKey, fits func(stagedKey) bool) (*Version, error) {
	newest := m.versions[0]
	sequence := newest.Meta.Sequence
	for _, v := range m.versions {
		if v.ID.Incarnation == newest.ID.Incarnation {
			sequence = max(sequence, v.Meta.Sequence)
		}
	}
	key, err := m.keys.ask("", newest.ID.Incarnation, m.newestNumber(), fits)
	if err != nil {
		return nil, err
	}
	var answer wire.EnrollResponse
	var paidBy string
	for _, token := range m.recoveryTokens() {
		paidBy = tokenDigest(token)
		answer, err = m.api.Request(ctx, "/recover", wire.RecoverRequest{
			Token: token, CSR: key.CSR, Incarnation: newest.ID.Incarnation, Sequence: sequence, AgentVersion: m.conf.AgentVersion,
			Signature: signed(recovery, trust.RecoverStatement(m.conf.NodeID, newest.ID.Incarnation, sequence, token, key.CSR)),
		})
		if !apierror.IsTokenError(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return m.adopt(answer, key, trust.IssuedByRecover, paidBy)
}
