package identity

import (
	"cmp"
	"context"
	"slices"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// reacquire obtains an identity where none can be used: by recovery, else by
// enrollment with an unused token. Where neither is possible, its error names the
// operator's next command.
func (m *Manager) reacquire(ctx context.Context) Outcome {
	cause := m.reason
	if cause == "" && len(m.versions) > 0 {
		newest := m.versions[0]
		cause = cmp.Or(m.rejected[newest.Facts.Serial], expiry(newest))
	}
	cause = cmp.Or(cause, ErrNone.Error())
	if m.replacedUnused && m.newestUnused() {
		return m.enroll(ctx, cause)
	}
	if m.Recoverable() {
		m.log.Warn("recovery started", "cause", cause, "server", m.conf.Server)
		v, err := m.recover(ctx)
		switch {
		case err == nil:
			return m.start(ActRecover, v)
		case !isTokenError(err) || !m.unspent() && !m.newestUnused():
			return m.enrollFailed(ActRecover, err)
		}
		m.log.Error("recovery is refused", "err", err.Error())
	}
	if m.unspent() || m.newestUnused() || len(m.versions) == 0 {
		return m.enroll(ctx, cause)
	}
	return m.enrollFailed(ActNothing, schema.NewError(schema.KindUnauthenticated,
		"%s, and this node has no token for a new one", cause).WithNext(m.reissueCommand()))
}

// recover makes one attempt to recover, with each recovery token that may be
// the live one and each key that the server may have bound it to; a new key
// comes last, unless a key was requested before for which no certificate is stored.
func (r *requester) recover(ctx context.Context) (v *Version, err error) {
	list, err := r.keys.load()
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(k stagedKey) bool { return !k.serves("", r.versions[0].ID.Incarnation) })
	if !slices.ContainsFunc(list, r.unstored) {
		list = append(list, stagedKey{})
	}
	for _, key := range list {
		if v, err = r.recoverWith(ctx, key.SPKI); !isTokenError(err) {
			break
		}
	}
	return v, err
}

// recoverWith makes the attempt with one stored key, or with a new one for "". The
// sequence is the highest known one, because the server treats a lower one as that of
// a copied identity.
func (r *requester) recoverWith(ctx context.Context, spki string) (*Version, error) {
	recovery, err := r.keys.recovery()
	if err != nil {
		return nil, err
	}
	incarnation, sequence := r.versions[0].ID.Incarnation, r.Sequence()
	key, err := r.keys.ask("", incarnation, r.newestNumber(), func(k stagedKey) bool { return k.SPKI == spki })
	if err != nil {
		return nil, err
	}
	var answer wire.EnrollResponse
	var paidBy string
	for _, token := range r.recoveryTokens() {
		paidBy = tokenDigest(token)
		answer, err = r.api.Request(ctx, "/recover", wire.RecoverRequest{
			Token: token, CSR: key.CSR, Incarnation: incarnation, Sequence: sequence, AgentVersion: r.conf.AgentVersion,
			Signature: signed(recovery, trust.RecoverStatement(r.conf.NodeID, incarnation, sequence, token, key.CSR)),
		})
		if !isTokenError(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return r.adopt(answer, key, trust.IssuedByRecover, paidBy)
}
