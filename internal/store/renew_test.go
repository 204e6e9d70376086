package store_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func (e *env) tokenStateOf(id string) (s string) {
	e.t.Helper()
	require.NoError(e.t, e.raw.QueryRow(e.t.Context(), "SELECT state FROM enrollment_tokens WHERE token_id = $1", id).Scan(&s))
	return s
}

func TestRenewalChain(t *testing.T) {
	e := setup(t)
	m := e.machine()
	require.Equal(t, int64(1), m.sequence)
	for n := 2; n < 6; n++ {
		before := m.held()
		rows := e.changes(m.caller.NodeID, func() {
			next := m.renewed(m.k(n))
			require.Equal(t, int64(n), next.sequence)
			require.Equal(t, "issued", e.tokenStateOf(before.recovery.TokenID), "the older recovery token is kept until the promotion")
			require.NoError(t, m.renew(m.k(n)), "the same key may retry")
			m.adopt(next)
			m.use()
		})
		require.Equal(t, []string{"nodes.renewal_claimed succeeded", "nodes.certificate_issued succeeded",
			"nodes.certificate_promoted succeeded"}, rows)
		require.Equal(t, "voided", e.tokenStateOf(before.recovery.TokenID))
		require.Equal(t, "issued", e.tokenStateOf(m.recovery.TokenID))
		m.refused(before, schema.ReasonSerialSuperseded)
	}
	require.False(t, e.locked(m.caller.NodeID))
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM enrollment_tokens WHERE purpose = 'recover' AND state = 'issued'"))
}

func TestRenewalsInEveryState(t *testing.T) {
	e := setup(t)
	m := e.machine()
	for i, s := range lifecycle.NodeStates() {
		e.exec("UPDATE nodes SET state = $2 WHERE node_id = $1", m.caller.NodeID, s)
		if s == lifecycle.NodeRemoved {
			requireKind(t, m.renew(m.k(i+2)), schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
			continue
		}
		m.adopt(m.renewed(m.k(i + 2)))
		m.use()
		require.Equal(t, s, e.node(m.caller.NodeID).State)
	}
}

// Whatever of a renewal is lost, the node continues with what it holds and no one
// is locked.
func TestLostAnswersOfRenewals(t *testing.T) {
	t.Parallel()
	cases := map[string]func(e *env, m *machine){
		"of the claim": func(_ *env, m *machine) {
			require.NoError(m.e.t, m.renew(m.k(2)))
			m.adopt(m.renewed(m.k(2)))
		},
		"of the certificate, retried with the same key": func(_ *env, m *machine) {
			lost := m.renewed(m.k(2))
			m.use() // the old one works on
			m.adopt(m.renewed(m.k(2)))
			m.refused(lost, schema.ReasonSerialSuperseded)
		},
		"of the certificate, twice, and the key too": func(_ *env, m *machine) {
			lost := []answer{m.renewed(m.k(2)), m.renewed(m.k(3))}
			m.adopt(m.renewed(m.k(4)))
			for _, a := range lost {
				m.refused(a, schema.ReasonSerialSuperseded)
			}
		},
		"and an earlier one is used instead": func(_ *env, m *machine) {
			first := m.renewed(m.k(2))
			m.renewed(m.k(2)) // a duplicate whose answer never comes
			m.refused(first, schema.ReasonSerialSuperseded)
			m.use() // back to what it holds
			m.adopt(m.renewed(m.k(3)))
		},
		"and a crash comes after the promotion": func(_ *env, m *machine) {
			m.adopt(m.renewed(m.k(2)))
			m.use()
			m.adopt(m.renewed(m.k(3))) // it starts with the newest on its disk
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			m := e.machine()
			run(e, m)
			e.pass()
			m.use()
			replaced := e.number("SELECT count(*) FROM node_certificates WHERE slot = 'replaced' AND promoted_at IS NOT NULL")
			require.Zero(t, replaced)
			require.False(t, e.locked(m.caller.NodeID))
			require.Equal(t, int64(1), e.number("SELECT count(*) FROM enrollment_tokens WHERE purpose = 'recover' AND state = 'issued'"))
		})
	}
}

func TestLateRenewalDuplicateIsHarmless(t *testing.T) {
	e := setup(t)
	m := e.machine()
	slow := *m // a request that was let in before the promotion
	require.NoError(t, slow.renew(m.k(2)))
	m.adopt(m.renewed(m.k(2)))
	m.use()

	_, err := slow.tryIssue(trust.IssuedByRenew, "", m.k(2))
	requireKind(t, err, schema.KindTokenConsumed, "claim_replaced")
	for _, k := range []string{m.k(2), m.k(3)} {
		requireKind(t, slow.renew(k), schema.KindInvalidNodeIdentity, schema.ReasonSerialSuperseded)
	}
	e.pass()
	requireKind(t, slow.renew(m.k(3)), schema.KindInvalidNodeIdentity, schema.ReasonSerialSuperseded)
	require.False(t, e.locked(m.caller.NodeID))
	m.use()

	require.NoError(t, m.renew(m.k(4)))
	require.NoError(t, m.renew(m.k(5)))
	_, err = m.tryIssue(trust.IssuedByRenew, "", m.k(4))
	requireKind(t, err, schema.KindTokenConsumed, "claim_replaced")
	m.adopt(m.issue(trust.IssuedByRenew, "", m.k(5)))
	m.use()
}

func TestRefusedRenewals(t *testing.T) {
	e := setup(t)
	m, other := e.machine(), e.machine()
	requireKind(t, m.renew(""), schema.KindInvalidRequest, "key_missing")
	requireKind(t, m.renew(other.k(1)), schema.KindInvalidRequest, "key_in_use")
	stale := *m
	stale.caller.Incarnation = 7
	requireKind(t, stale.renew(m.k(2)), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
	stale.caller.NodeID = schema.NewID()
	requireKind(t, stale.renew(m.k(2)), schema.KindNotFound, "")
	_, err := m.tryIssue(trust.IssuedByRenew, "", m.k(2))
	requireKind(t, err, schema.KindTokenConsumed, "claim_replaced")
	_, err = m.tryIssue("by magic", "", m.k(2))
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")
	m.adopt(m.renewed(m.k(2)))
	m.use()
}

func TestStorePendingIsIdempotent(t *testing.T) {
	e := setup(t)
	m := e.machine()
	require.NoError(t, m.renew(m.k(2)))
	_, cert := certificate(m.caller.NodeID, 1, m.k(2))
	n := nodeapi.NewIdentity{NodeID: m.caller.NodeID, Incarnation: 1, Via: trust.IssuedByRenew, Cert: cert,
		Recovery: trust.MintedToken{TokenID: schema.NewID(), Hash: make([]byte, 32)}}
	rows := e.changes(m.caller.NodeID, func() {
		for _, err := range race(10, func(int) error {
			sequence, err := e.StorePending(t.Context(), n)
			if err == nil {
				require.Equal(t, int64(2), sequence)
			}
			return err
		}) {
			require.NoError(t, err)
		}
	})
	require.Equal(t, []string{"nodes.certificate_issued succeeded"}, rows)
	require.Equal(t, int64(1), e.number(`SELECT count(*) FROM enrollment_tokens WHERE token_id = $1 AND expires_at > now() + interval '89 days'`,
		n.Recovery.TokenID), "a recovery token has a default lifetime")
}

func TestCertificateCounts(t *testing.T) {
	e := setup(t)
	counts := func() metrics.CertificateCounts {
		t.Helper()
		c, err := e.CertificateCounts(t.Context())
		require.NoError(t, err)
		c.ShareLeft = math.Round(c.ShareLeft*72) / 72
		c.ExpirySeconds = math.Round(c.ExpirySeconds / 60)
		return c
	}
	require.Equal(t, metrics.CertificateCounts{ShareLeft: 1}, counts(), "no certificates")
	m, other := e.machine(), e.machine()
	require.Equal(t, metrics.CertificateCounts{Held: 2, ExpirySeconds: trust.CertTTL.Minutes(), ShareLeft: 1}, counts(), "new certificates, with minutes for seconds")
	e.exec("UPDATE node_certificates SET not_after = now() + interval '1 hour', not_before = now() - interval '71 hours' WHERE node_id = $1",
		m.caller.NodeID)
	require.Equal(t, metrics.CertificateCounts{Held: 2, ExpirySeconds: 60, ShareLeft: 1.0 / 72, Overdue: 1}, counts())
	e.exec("UPDATE node_certificates SET not_after = now() - interval '1 hour' WHERE node_id = $1", m.caller.NodeID)
	require.Equal(t, metrics.CertificateCounts{Held: 2, Overdue: 1}, counts(), "an expired one has no life left")

	waiting := other.renewed(other.k(2))
	require.Zero(t, counts().Unpromoted)
	e.exec("UPDATE node_certificates SET issued_at = now() - interval '11 minutes' WHERE serial = $1", waiting.cert.Serial)
	require.Equal(t, int64(1), counts().Unpromoted)
	other.adopt(waiting)
	other.use()
	require.Zero(t, counts().Unpromoted)
}
