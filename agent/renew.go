package agent

import (
	"context"
	"errors"
	"net"
	"slices"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// renew asks for the next certificate with the identity in use. The key and the
// request are stored before they are sent, so a lost answer is asked for again
// with the same ones. Whatever fails, the identity in use stays in use.
func (k *keeper) renew(ctx context.Context, v *version) Outcome {
	next, err := k.renewed(ctx, v)
	if err != nil {
		return k.unrenewed(ctx, ActRenew, err)
	}
	k.log.Info("certificate renewed", "serial", next.facts.Serial, "issuer", next.facts.Issuer,
		"not_after", next.facts.NotAfter, "sequence", next.meta.Sequence)
	k.unproven = next
	return k.promote(ctx, ActRenew)
}

func (k *keeper) renewed(ctx context.Context, v *version) (*version, error) {
	key, err := k.keys.ask("", v.id.Incarnation, k.newest(), k.fresh)
	if err != nil {
		return nil, err
	}
	answer, err := k.api().identity(ctx, "/certificates/renew", wire.RenewRequest{
		CSR: key.CSR, Sequence: v.meta.Sequence, AgentVersion: Version(),
	})
	if err != nil {
		return nil, err
	}
	return k.adopt(answer, key, trust.IssuedByRenew, "")
}

// unrenewed learns from a refusal and waits. The shorter the life that is left,
// the shorter the longest wait.
func (k *keeper) unrenewed(ctx context.Context, did Action, err error) Outcome {
	if ctx.Err() != nil {
		return Outcome{Action: did, Err: err, Ready: k.ready()}
	}
	if k.observe(err) {
		return Outcome{Action: did, Err: err, Ready: k.ready(), Wait: k.hold.left(k.clock.local()), Removed: k.gone}
	}
	b := k.renewals
	if v := k.inUse.Load(); v != nil {
		b.max = max(b.min, min(b.max, v.leaf.NotAfter.Sub(k.clock.now())/20))
	}
	out := k.failed(did, err, &b)
	k.renewals.failures = b.failures
	k.log.Error("certificate not renewed, the present one stays in use", "err", err.Error(),
		"code", string(schema.KindOf(err)), "retry_in", out.Wait.String())
	return out
}

// promote makes one authenticated call with a stored identity and then puts it
// in use. A call whose outcome is unknown puts it in use too: the server may
// have promoted it, and would take the older one for a copy's before long.
// Only where the call was certainly refused the older one goes on, and renews
// again where the refusal is of this very certificate.
func (k *keeper) promote(ctx context.Context, did Action) Outcome {
	v := k.unproven
	api, err := k.deps.newClient(*k.conf, k.clock, v.presentTo)
	if err == nil {
		err = k.prove(ctx, api)
		api.close()
	}
	verdict := judge(err)
	switch {
	case verdict == removed:
		return k.wipe()
	case verdict == locked:
		wait := k.lockedOut(err)
		return Outcome{Action: did, Err: err, Wait: wait}
	case verdict == fine && !alert(err):
		k.unproven = nil
		if takeErr := k.take(v); takeErr != nil {
			return k.failed(did, takeErr, &k.renewals)
		}
		if err != nil {
			k.log.Warn("new certificate is in use, but its first call had no answer", "err", err.Error())
			return Outcome{Action: did, Ready: k.ready()}
		}
		k.renewals.reset()
		k.confirmed(v)
		k.tidy()
		return Outcome{Action: did, Ready: k.ready()}
	case answered(err) && verdict != unknown:
		k.unproven = nil
		k.barred[v.facts.Serial] = err.Error()
	}
	out := k.failed(did, err, &k.renewals)
	k.log.Error("new certificate is refused, the former one stays in use", "serial", v.facts.Serial, "err", err.Error(),
		"retry_in", out.Wait.String())
	return out
}

// answered reports whether the API's answer refuses the identity.
func answered(err error) bool { return schema.KindOf(err) == schema.KindInvalidNodeIdentity }

// alert reports whether the server ended a handshake with an alert, any alert.
func alert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// held reports whether a stored version has the key already.
func (k *keeper) held(spki string) bool {
	return slices.ContainsFunc(k.versions, func(v *version) bool { return v.facts.SPKI == spki })
}

// fresh reports whether no stored version has the key.
func (k *keeper) fresh(key stagedKey) bool { return !k.held(key.SPKI) }

// newest is the number of the newest version, 0 without one.
func (k *keeper) newest() int {
	if len(k.versions) == 0 {
		return 0
	}
	return k.versions[0].number
}

// adopt checks an answer and stores it as the newest version. Until it returns
// without an error nothing has changed but files that no one reads; the staged
// key stays until the version's first use.
func (k *keeper) adopt(a wire.EnrollResponse, key stagedKey, via trust.IssueMethod, paidBy string) (*version, error) {
	certPEM, chainPEM := []byte(a.Certificate), []byte(a.CAChain)
	if err := k.check(a, join(certPEM, chainPEM), []byte(key.Key), key.Incarnation); err != nil {
		return nil, err
	}
	env := tokenDigest(string(k.conf.EnrollmentToken))
	spentNow := []string{paidBy}
	for _, v := range k.versions {
		spentNow = append(spentNow, v.meta.Spent...)
		if v.meta.RecoveryToken != "" {
			spentNow = append(spentNow, tokenDigest(v.meta.RecoveryToken))
		}
	}
	m := recollection{Spent: slices.Clone(k.mem.Spent)}
	m.spend(env, spentNow...)
	v, err := k.store.add(certPEM, chainPEM, []byte(key.Key), versionMeta{
		Sequence: a.Sequence, Via: via, StoredAt: k.clock.now().UTC(),
		RecoveryToken: a.RecoveryToken, RecoveryExpiresAt: a.RecoveryExpiresAt, Spent: m.Spent,
	})
	if err != nil {
		return nil, err
	}
	k.versions = append([]*version{v}, k.versions...)
	k.mem.Spent = m.Spent
	k.remember()
	k.tidy()
	return v, nil
}

// check refuses an answer that is not for this node and this key.
func (k *keeper) check(a wire.EnrollResponse, certPEM, keyPEM []byte, incarnation int64) error {
	id, err := parseIdentity(certPEM, keyPEM)
	if err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the server's certificate does not fit the key")
	}
	if err := id.matches(*k.conf); err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the server's certificate is not usable here")
	}
	if now := k.clock.now(); now.After(id.leaf.NotAfter) {
		return schema.Errorf(schema.KindServiceUnavailable, "the server's certificate expired at %s, it is %s here", stamp(id.leaf.NotAfter), stamp(now))
	}
	if id.id.Incarnation != a.Incarnation || incarnation != 0 && incarnation != a.Incarnation {
		return schema.Errorf(schema.KindServiceUnavailable, "the server's certificate is of incarnation %d, its answer says %d, the node is %d",
			id.id.Incarnation, a.Incarnation, incarnation)
	}
	return nil
}
