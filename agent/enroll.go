package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// enroll makes one attempt to enrol with the configuration's token. It may be
// made again after any failure: the key is kept until a certificate for it is
// stored, because the server's claim of the token is bound to that key, so that
// an answer lost on the way costs nothing. The token is sent inside TLS to a
// server that the CA bundle proves; a handshake with any other ends before a
// byte of the request leaves.
func (k *keeper) enroll(ctx context.Context, cause string) Outcome {
	k.log.Info("enrolment starts", "cause", cause, "server", k.conf.APIURL)
	v, err := k.enrolled(ctx)
	if err == nil {
		// Whatever stood before is void: the claim began an incarnation.
		k.versions = []*version{v}
		return k.begin(ActEnroll, v)
	}
	if spent(err) && len(k.versions) > 0 && k.operatorToken() {
		k.mem.Seen = tokenDigest(string(k.conf.EnrollmentToken))
		k.remember()
		k.log.Error("new token is refused, going on with the present identity", "err", err.Error(), "next", k.reissue())
		return Outcome{Action: ActEnroll, Err: err, Ready: k.ready()}
	}
	return k.unsettled(ActEnroll, err)
}

func (k *keeper) enrolled(ctx context.Context) (*version, error) {
	token := string(k.conf.EnrollmentToken)
	if token == "" {
		return nil, schema.NewError(schema.KindUnauthenticated, tokenVar+" is not set").WithNext(k.reissue())
	}
	recovery, err := k.keys.ensureRecovery()
	if err != nil {
		return nil, err
	}
	key, err := k.keys.ask(tokenDigest(token), 0, k.newest(), func(stagedKey) bool { return true })
	if err != nil {
		return nil, err
	}
	public, _ := recovery.Public().(ed25519.PublicKey)
	answer, err := k.ask(ctx, "/enroll", wire.EnrollRequest{
		Token: token, CSR: key.CSR, AgentVersion: Version(),
		RecoveryKey: base64.StdEncoding.EncodeToString(public),
		Signature:   signed(recovery, trust.EnrollStatement(k.conf.NodeID, token, key.CSR, public)),
	})
	if err != nil {
		return nil, err
	}
	// Until the answer is stored the token is still to be acted on: its claim
	// voided what stood before, and only this key can ask again.
	return k.adopt(answer, key, trust.IssuedByEnroll, tokenDigest(token))
}

// ask makes a request without a client certificate.
func (k *keeper) ask(ctx context.Context, path string, body any) (wire.EnrollResponse, error) {
	api, err := k.deps.newClient(*k.conf, k.clock, nil)
	if err != nil {
		return wire.EnrollResponse{}, err
	}
	defer api.close()
	return api.identity(ctx, path, body)
}

// begin puts a new identity in use at once: there was none, or none that still
// works. The first poll promotes it.
func (k *keeper) begin(did Action, v *version) Outcome {
	k.barred, k.again = map[string]string{}, false
	if err := k.take(v); err != nil {
		return k.failed(did, err, &k.soon)
	}
	k.install(v)
	k.soon.reset()
	k.late.reset()
	k.quiet = delay{}
	k.hush.Store(0)
	facts := []any{"serial", v.facts.Serial, "issuer", v.facts.Issuer,
		"not_after", v.facts.NotAfter, "incarnation", v.id.Incarnation, "sequence", v.meta.Sequence}
	if did == ActEnroll {
		k.log.Info("enrolment succeeded", facts...)
	} else {
		k.log.Info("recovery succeeded", facts...)
	}
	return Outcome{Action: did, Ready: k.ready()}
}

// unsettled notes that an enrolment or a recovery failed. What repeating cannot
// mend is asked again slowly, because a person may replace the bundle. An
// identity that only the server called dead is tried again after the wait:
// what refused it may have been mended.
func (k *keeper) unsettled(did Action, err error) Outcome {
	e := schema.AsError(err)
	var out Outcome
	switch v := judge(err); {
	case v == removed:
		return k.wipe()
	case v == locked:
		wait := k.lockedOut(err)
		out = Outcome{Action: did, Err: err, Wait: wait}
	case e.Kind.Info().Retry:
		out = k.failed(did, err, &k.soon)
	default:
		out = k.failed(did, err, &k.late)
	}
	if v := k.inUse.Load(); v != nil && k.cause != "" {
		k.quiet.set(k.clock.local(), out.Wait)
		k.cause, k.barred = "", map[string]string{}
		out.Ready = false
	}
	facts := []any{"code", string(e.Kind), "reason", e.Reason, "err", err.Error(), "next", e.Next, "retry_in", out.Wait.String()}
	if did == ActEnroll {
		k.log.Error("enrolment failed", facts...)
	} else {
		k.log.Error("recovery failed", facts...)
	}
	return out
}
