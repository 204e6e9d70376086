package identity

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"

	"github.com/gpuaas/gpuaas/agent/internal/envfile"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// enroll makes one attempt to enroll with the configured token. It may be retried
// after any failure: the key is kept until a certificate for it is stored, because
// the server binds its claim of the token to that key, so that a lost answer costs
// nothing. The token is sent inside TLS to a server that the CA bundle verifies; a
// handshake with any other server ends before a byte of the request is sent.
func (m *Manager) enroll(ctx context.Context, cause string) Outcome {
	m.log.Info("enrollment started", "cause", cause, "server", m.conf.Server)
	token := m.enrollToken()
	v, err := m.requestEnrollment(ctx, token)
	if err == nil {
		// The previous identities are void: the claim began an incarnation.
		m.versions = []*Version{v}
		m.forgetToken()
		return m.start(ActEnroll, v)
	}
	if isTokenError(err) && len(m.versions) > 0 && m.newToken() {
		m.forgetToken()
		m.saved.Seen = tokenDigest(token)
		m.save()
		m.log.Error("new token is refused, the current identity stays in use", "err", err.Error(), "next", m.reissueCommand())
		return Outcome{Action: ActEnroll, Err: err, Ready: m.ready()}
	}
	return m.enrollFailed(ActEnroll, err)
}

// requester obtains certificates from the node API and stores them.
type requester struct {
	holdings
	api API
}

func (r *requester) requestEnrollment(ctx context.Context, token string) (*Version, error) {
	if token == "" {
		return nil, schema.NewError(schema.KindUnauthenticated, envfile.TokenVar+" is not set").WithNext(r.reissueCommand())
	}
	recovery, err := r.keys.nextRecovery(tokenDigest(token))
	if err != nil {
		return nil, err
	}
	key, err := r.keys.ask(tokenDigest(token), 0, r.newestNumber(), func(stagedKey) bool { return true })
	if err != nil {
		return nil, err
	}
	answer, err := r.api.Request(ctx, "/enroll", r.enrollRequest(token, key, recovery))
	if err != nil {
		return nil, err
	}
	if err := r.keys.takeRecovery(recovery); err != nil {
		return nil, err
	}
	// Until the answer is stored, the token counts as unused: its claim voided the
	// previous identities, and only this key can repeat the request.
	v, err := r.adopt(answer, key, trust.IssuedByEnroll, tokenDigest(token))
	if err != nil {
		return nil, err
	}
	if err := r.keys.dropNextRecovery(); err != nil {
		r.log.Warn("cannot remove the copy of the recovery key", "err", err.Error())
	}
	return v, nil
}

// enrollRequest signs the request with the new recovery key, and with the previous one if
// there is one, which proves that the node was enrolled before.
func (r *requester) enrollRequest(token string, key stagedKey, recovery ed25519.PrivateKey) wire.EnrollRequest {
	public, _ := recovery.Public().(ed25519.PublicKey)
	statement := trust.EnrollStatement(r.conf.NodeID, token, key.CSR, public)
	req := wire.EnrollRequest{Token: token, CSR: key.CSR, AgentVersion: r.conf.AgentVersion,
		RecoveryKey: base64.StdEncoding.EncodeToString(public), Signature: signed(recovery, statement)}
	// One that cannot be read proves nothing, and is replaced.
	if previous, err := r.keys.recovery(); err == nil && previous != nil && !previous.Equal(recovery) {
		public, _ := previous.Public().(ed25519.PublicKey)
		req.PreviousKey, req.PreviousSignature = base64.StdEncoding.EncodeToString(public), signed(previous, statement)
	}
	return req
}

// start puts a new identity in use immediately, because no other one works. The first
// poll promotes it.
func (m *Manager) start(did Action, v *Version) Outcome {
	m.rejected, m.replacedUnused = map[string]string{}, false
	if err := m.use(v); err != nil {
		return m.failed(did, err, m.retries.Next())
	}
	m.install(v)
	m.retries.Reset()
	m.refusals.Reset()
	m.pollBackoff = wait.Timer{}
	if did == ActEnroll {
		m.log.Info("enrollment succeeded", v.logFields()...)
	} else {
		m.log.Info("recovery succeeded", v.logFields()...)
	}
	return Outcome{Action: did, Ready: m.ready()}
}

// enrollFailed records that an enrollment or a recovery failed. A refusal that a
// retry cannot change is retried slowly, because an operator may replace the
// bundle. An identity that only the server refuses is tried again after the wait:
// the refusal may have been resolved.
func (m *Manager) enrollFailed(did Action, err error) Outcome {
	e := schema.AsError(err)
	var out Outcome
	r := classify(err)
	switch {
	case r == resultRemoved:
		return m.removed(did, err)
	case r == resultLocked:
		out = Outcome{Action: did, Err: err, Wait: m.lockedOut(err)}
	case e.Kind.Info().Retry:
		out = m.failed(did, err, m.retries.Next())
	default:
		out = m.failed(did, err, m.refusals.Next())
	}
	if v := m.inUse.Load(); v != nil && m.state == StateExpired {
		m.pollBackoff.Set(m.clock.Local(), out.Wait)
		m.state, m.reason, m.rejected = StateRejected, "", map[string]string{}
		if r == resultLocked {
			m.state = StateLocked
		}
		out.Ready = false
	}
	facts := []any{"code", string(e.Kind), "reason", e.Reason, "err", err.Error(), "next", e.Next, "retry_in", out.Wait.String()}
	if did == ActEnroll {
		m.log.Error("enrollment failed", facts...)
	} else {
		m.log.Error("recovery failed", facts...)
	}
	return out
}
