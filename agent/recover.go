package agent

import (
	"context"
	"crypto/ed25519"
	"slices"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// recoverable reports whether the node can ask for a new certificate without a
// usable one: it holds its recovery key and a recovery token.
func (k *keeper) recoverable() bool {
	key, err := k.keys.recovery()
	return err == nil && key != nil && len(k.recoveryTokens()) > 0
}

// recoveryTokens are those of the stored versions, newest first: the newest is
// live once its certificate was used, the one before until then.
func (k *keeper) recoveryTokens() []string {
	var out []string
	for _, v := range k.versions {
		if t := v.meta.RecoveryToken; t != "" && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// regain gets an identity where there is none that works: by recovery, else by
// enrolment with an unspent token. Where neither is possible it says what an
// operator must do.
func (k *keeper) regain(ctx context.Context) Outcome {
	cause := k.cause
	switch {
	case cause != "":
	case len(k.versions) > 0:
		cause = k.expiry(k.versions[0])
	default:
		cause = errNoIdentity.Error()
	}
	if k.again && k.unused() {
		return k.enroll(ctx, cause)
	}
	if k.recoverable() {
		k.log.Warn("recovery starts", "cause", cause, "server", k.conf.APIURL)
		v, err := k.recovered(ctx)
		switch {
		case err == nil:
			return k.begin(ActRecover, v)
		case !spent(err) || !k.unspent() && !k.unused():
			return k.unsettled(ActRecover, err)
		}
		k.log.Error("recovery is refused", "err", err.Error())
	}
	if k.unspent() || k.unused() || len(k.versions) == 0 {
		return k.enroll(ctx, cause)
	}
	return k.unsettled(ActNothing, schema.NewError(schema.KindUnauthenticated,
		"%s, and this node holds no way to a new one", cause).WithNext(k.reissue()))
}

// unused reports whether the newest version came from an enrolment and was never
// used. A copy of the request that arrived late may have replaced it, and then
// its recovery token is not live: its enrolment is made again, with its key.
func (k *keeper) unused() bool {
	if len(k.versions) == 0 {
		return false
	}
	_, enrolment := k.keys.unanswered(k.versions[0])
	return enrolment
}

// recovered makes one attempt to recover, with each recovery token that may be
// the live one and each key that the server may have bound it to; a new key
// comes last. The sequence is the highest known: one behind the server's would
// look like a copy's.
func (k *keeper) recovered(ctx context.Context) (*version, error) {
	recovery, err := k.keys.recovery()
	if err != nil {
		return nil, err
	}
	incarnation := k.versions[0].id.Incarnation
	list, err := k.keys.list("", incarnation)
	if err != nil {
		return nil, err
	}
	asked := false
	for _, known := range list {
		var v *version
		v, err = k.recoveredWith(ctx, recovery, func(key stagedKey) bool { return key.SPKI == known.SPKI })
		if !spent(err) {
			return v, err
		}
		asked = asked || k.fresh(known)
	}
	if asked {
		return nil, err
	}
	return k.recoveredWith(ctx, recovery, k.fresh)
}

// recoveredWith makes the attempt with one key.
func (k *keeper) recoveredWith(ctx context.Context, recovery ed25519.PrivateKey, fits func(stagedKey) bool) (*version, error) {
	newest := k.versions[0]
	sequence := newest.meta.Sequence
	for _, v := range k.versions {
		if v.id.Incarnation == newest.id.Incarnation {
			sequence = max(sequence, v.meta.Sequence)
		}
	}
	key, err := k.keys.ask("", newest.id.Incarnation, k.newest(), fits)
	if err != nil {
		return nil, err
	}
	var answer wire.EnrollResponse
	var paidBy string
	for _, token := range k.recoveryTokens() {
		paidBy = tokenDigest(token)
		answer, err = k.ask(ctx, "/recover", wire.RecoverRequest{
			Token: token, CSR: key.CSR, Incarnation: newest.id.Incarnation, Sequence: sequence, AgentVersion: Version(),
			Signature: signed(recovery, trust.RecoverStatement(k.conf.NodeID, newest.id.Incarnation, sequence, token, key.CSR)),
		})
		if !spent(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return k.adopt(answer, key, trust.IssuedByRecover, paidBy)
}
