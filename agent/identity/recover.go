package identity

import (
	"context"
	"crypto/ed25519"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

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

// recover makes one attempt to recover, with each recovery token that may be
// the live one and each key that the server may have bound it to; a new key
// comes last. The sequence is the highest known one, because the server treats a lower
// one as that of a copied identity.
func (r *requester) recover(ctx context.Context) (*Version, error) {
	recovery, err := r.keys.recovery()
	if err != nil {
		return nil, err
	}
	incarnation := r.versions[0].ID.Incarnation
	list, err := r.keys.list("", incarnation)
	if err != nil {
		return nil, err
	}
	asked := false
	for _, known := range list {
		var v *Version
		v, err = r.recoverWith(ctx, recovery, func(key stagedKey) bool { return key.SPKI == known.SPKI })
		if !apierror.IsTokenError(err) {
			return v, err
		}
		asked = asked || r.unstored(known)
	}
	if asked {
		return nil, err
	}
	return r.recoverWith(ctx, recovery, r.unstored)
}

// recoverWith makes the attempt with one key.
func (r *requester) recoverWith(ctx context.Context, recovery ed25519.PrivateKey, fits func(stagedKey) bool) (*Version, error) {
	newest := r.versions[0]
	sequence := newest.Meta.Sequence
	for _, v := range r.versions {
		if v.ID.Incarnation == newest.ID.Incarnation {
			sequence = max(sequence, v.Meta.Sequence)
		}
	}
	key, err := r.keys.ask("", newest.ID.Incarnation, r.newestNumber(), fits)
	if err != nil {
		return nil, err
	}
	var answer wire.EnrollResponse
	var paidBy string
	for _, token := range r.recoveryTokens() {
		paidBy = tokenDigest(token)
		answer, err = r.api.Request(ctx, "/recover", wire.RecoverRequest{
			Token: token, CSR: key.CSR, Incarnation: newest.ID.Incarnation, Sequence: sequence, AgentVersion: r.conf.AgentVersion,
			Signature: signed(recovery, trust.RecoverStatement(r.conf.NodeID, newest.ID.Incarnation, sequence, token, key.CSR)),
		})
		if !apierror.IsTokenError(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return r.adopt(answer, key, trust.IssuedByRecover, paidBy)
}
