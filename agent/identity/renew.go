package identity

import (
	"context"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"

	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// renew asks for the next certificate with the identity in use. The key and the
// request are stored before they are sent, so a lost answer is requested again
// with the same ones. After any failure, the identity in use stays in use.
func (m *Manager) renew(ctx context.Context, v *Version) Outcome {
	key, err := m.keys.ask("", v.ID.Incarnation, m.newestNumber(), m.unstored)
	if err != nil {
		return m.renewFailed(ctx, err)
	}
	answer, err := m.api.Renew(ctx, wire.RenewRequest{CSR: key.CSR, Sequence: v.Meta.Sequence, AgentVersion: m.conf.AgentVersion})
	if err != nil {
		return m.renewFailed(ctx, err)
	}
	next, err := m.adopt(answer, key, trust.IssuedByRenew, "")
	if err != nil {
		return m.renewFailed(ctx, err)
	}
	m.log.Info("certificate renewed", next.logFields()...)
	m.renewFrom.Store(nil) // even if another CA issued it: a later task repeats the request
	m.unconfirmed = next
	return m.confirm(ctx, ActRenew)
}

// renewFailed records a failed renewal and when to retry. The maximum delay shrinks with
// the certificate's remaining lifetime.
func (m *Manager) renewFailed(ctx context.Context, err error) Outcome {
	if ctx.Err() != nil {
		return Outcome{Action: ActRenew, Err: err, Ready: m.ready()}
	}
	if m.Observe(err) {
		return Outcome{Action: ActRenew, Err: err, Ready: m.ready(), Wait: m.RetryIn(), Removed: m.Removed()}
	}
	most := m.renewals.Max
	if v := m.inUse.Load(); v != nil {
		most = v.Leaf.NotAfter.Sub(m.clock.Now()) / 20
	}
	out := m.failed(ActRenew, err, m.renewals.NextWithin(most))
	m.log.Error("certificate not renewed, the current one stays in use", "err", err.Error(),
		"code", string(schema.KindOf(err)), "retry_in", out.Wait.String())
	return out
}

// confirm makes one authenticated call with the unconfirmed identity and then
// puts it in use. A call whose outcome is unknown puts it in use too: the server
// may have promoted it, and would then treat the older one as copied. Only if the call
// was certainly refused, the older one stays in use; it is renewed again if the
// refusal concerns this certificate.
func (m *Manager) confirm(ctx context.Context, did Action) Outcome {
	v := m.unconfirmed
	err := m.api.Confirm(ctx, v.presentTo)
	r := classify(err)
	switch {
	case r == resultRemoved:
		return m.removed(did, err)
	case r == resultLocked:
		return Outcome{Action: did, Err: err, Wait: m.lockedOut(err)}
	case r == resultOK && apierror.Alert(err) == "":
		m.unconfirmed = nil
		if useErr := m.use(v); useErr != nil {
			return m.failed(did, useErr, m.renewals.Next())
		}
		if err != nil {
			m.log.Warn("new certificate is in use, but its first call had no answer", "err", err.Error())
			return Outcome{Action: did, Ready: m.ready()}
		}
		m.renewals.Reset()
		m.confirmed(v)
		m.prune()
		return Outcome{Action: did, Ready: m.ready()}
	case schema.KindOf(err) == schema.KindInvalidNodeIdentity && r != resultUnknownIssuer:
		m.unconfirmed = nil
		m.rejected[v.Facts.Serial] = err.Error()
	}
	out := m.failed(did, err, m.renewals.Next())
	m.log.Error("new certificate is refused, the previous one stays in use", "serial", v.Facts.Serial, "err", err.Error(),
		"retry_in", out.Wait.String())
	return out
}

// adopt checks an answer and stores it as the newest version. Until it returns
// without an error, only files that nothing reads have changed; the staged key
// stays until the version's first use.
func (r *requester) adopt(a wire.EnrollResponse, key stagedKey, via trust.IssueMethod, paidBy string) (*Version, error) {
	meta := Meta{
		Certificate: a.Certificate, Chain: a.CAChain, Key: key.Key, Sequence: a.Sequence, Via: via, StoredAt: r.clock.Now().UTC(),
		RecoveryToken: a.RecoveryToken, RecoveryExpiresAt: a.RecoveryExpiresAt,
	}
	if err := r.checkAnswer(a, meta, key.Incarnation); err != nil {
		return nil, err
	}
	spentNow := []string{paidBy}
	for _, v := range r.versions {
		spentNow = append(spentNow, v.Meta.Spent...)
		if v.Meta.RecoveryToken != "" {
			spentNow = append(spentNow, tokenDigest(v.Meta.RecoveryToken))
		}
	}
	meta.Spent = spend(r.saved.Spent, tokenDigest(r.conf.Token.Reveal()), spentNow...)
	v, err := r.store.add(meta)
	if err != nil {
		return nil, err
	}
	r.versions = append([]*Version{v}, r.versions...)
	r.saved.Spent = meta.Spent
	r.save()
	r.prune()
	return v, nil
}

// checkAnswer refuses an answer that is not for this node and this key.
func (r *requester) checkAnswer(a wire.EnrollResponse, m Meta, incarnation int64) error {
	id, err := parseIdentity(m.certificates(), []byte(m.Key))
	if err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the server's certificate does not fit the key")
	}
	if err := id.matches(r.conf); err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the server's certificate is not usable here")
	}
	if now := r.clock.Now(); now.After(id.Leaf.NotAfter) {
		return schema.NewError(schema.KindServiceUnavailable, "the server's certificate expired at %s, it is %s here", text.FormatTime(id.Leaf.NotAfter), text.FormatTime(now))
	}
	if id.ID.Incarnation != a.Incarnation || incarnation != 0 && incarnation != a.Incarnation {
		return schema.NewError(schema.KindServiceUnavailable, "the server's certificate is of incarnation %d, the answer of %d, and the node of %d",
			id.ID.Incarnation, a.Incarnation, incarnation)
	}
	return nil
}
