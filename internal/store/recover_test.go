package store_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestRecovery(t *testing.T) {
	e := setup(t)
	m := e.machine()
	facts, err := e.RecoveryFacts(t.Context(), m.caller.NodeID)
	require.NoError(t, err)
	require.Equal(t, int64(1), facts.Incarnation)
	require.Equal(t, recoveryKey, []byte(facts.Key))
	old := m.held()
	rows := e.changes(m.caller.NodeID, func() {
		won, err := e.ClaimRecovery(t.Context(), m.recoveryClaim(m.k(2)))
		require.NoError(t, err)
		require.Equal(t, nodeapi.ClaimResult{TokenID: m.recovery.TokenID, NodeID: m.caller.NodeID, Incarnation: 1, Recoverable: true, Now: won.Now}, won)
		require.NoError(t, m.recover(m.k(2)), "the same key may retry")
		m.adopt(m.issue(trust.IssuedByRecover, m.recovery.TokenID, m.k(2)))
		m.use()
	})
	require.Equal(t, []string{"nodes.recovery_claimed succeeded", "nodes.certificate_issued succeeded",
		"nodes.certificate_promoted succeeded"}, rows)
	require.Equal(t, "consumed", e.tokenStateOf(old.recovery.TokenID))
	require.Equal(t, int64(2), m.sequence)
	m.adopt(m.recovered(m.k(3)))
	m.use()
}

// At every point of a recovery the answer may be lost; what the node holds then
// opens the next try.
func TestLostAnswersOfRecoveries(t *testing.T) {
	t.Parallel()
	cases := map[string]func(e *env, m *machine){
		"of the claim": func(_ *env, m *machine) {
			require.NoError(m.e.t, m.recover(m.k(2)))
			m.adopt(m.recovered(m.k(2)))
		},
		"of the certificate, three times": func(_ *env, m *machine) {
			for range 3 {
				m.recovered(m.k(2))
			}
			m.adopt(m.recovered(m.k(2)))
		},
		"with the pending identity's token": func(_ *env, m *machine) {
			m.adopt(m.renewed(m.k(2))) // it arrived, was never used, and ran out
			m.recovered(m.k(3))        // lost, and the token's own certificate is replaced by it
			m.recovered(m.k(3))        // lost again
			m.adopt(m.recovered(m.k(3)))
		},
		"with the current one's while another is pending": func(_ *env, m *machine) {
			m.renewed(m.k(2)) // lost
			m.recovered(m.k(3))
			m.adopt(m.recovered(m.k(3)))
		},
		"with the pending one's, and then with the current one's": func(_ *env, m *machine) {
			old := *m
			m.adopt(m.renewed(m.k(2)))
			m.recovered(m.k(3)) // lost, and the newer identity's directory too
			m.adopt(old.recovered(m.k(4)))
		},
		"and then the old certificate renews after all": func(_ *env, m *machine) {
			m.recovered(m.k(2))
			m.use()
			m.adopt(m.renewed(m.k(3)))
		},
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			m := e.machine()
			run(e, m)
			e.pass()
			m.use()
			require.False(t, e.locked(m.caller.NodeID))
			require.Equal(t, int64(1), e.number(`SELECT count(*) FROM enrollment_tokens
				WHERE purpose = 'recover' AND state IN ('issued', 'claimed')`), "one is left: the identity's own")
			m.adopt(m.recovered(m.k(9)))
			m.use()
		})
	}
}

func TestAnEnrollmentThatWasNeverUsedRecovers(t *testing.T) {
	e := setup(t)
	n := e.register()
	claim := e.claim(n.ID, lifecycle.ActionEnroll)
	tokenID, hash := e.token(n.ID)
	m := &machine{e: e, caller: nodeapi.Caller{NodeID: n.ID, Incarnation: 1}}
	c := tokenClaim(n.ID, tokenID, hash, m.k(1))
	c.RecoveryKey = recoveryKey
	_, err := e.ClaimToken(t.Context(), c)
	require.NoError(t, err)
	m.adopt(m.issue(trust.IssuedByEnroll, tokenID, m.k(1)))
	m.adopt(m.recovered(m.k(2)))
	m.use()
	require.Equal(t, "consumed", e.tokenStateOf(tokenID), "the identity's first use ends the enrollment, however it came")
	progress, err := e.Enrollment(t.Context(), n.ID)
	require.NoError(t, err)
	require.Equal(t, activities.Enrollment{Incarnation: 1, BundleIssued: true, TokenClaimed: true}, progress)
	done := activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}
	requireKind(t, e.Finish(t.Context(), claim.Fence, done), schema.KindInvalidRequest, "not_enrolled")
	require.NotEqual(t, lifecycle.NodeActive, e.node(n.ID).State, "nothing but a poll makes a node active")
	e.exec("UPDATE nodes SET polled_incarnation = 1, incarnation = 2")
	requireKind(t, e.Finish(t.Context(), claim.Fence, done), schema.KindInvalidRequest, "not_enrolled")
	e.exec("UPDATE nodes SET polled_incarnation = incarnation")
	require.NoError(t, e.Finish(t.Context(), claim.Fence, done))
	require.Equal(t, lifecycle.NodeActive, e.node(n.ID).State)
}

func TestRefusedRecoveries(t *testing.T) {
	e := setup(t)
	m, other := e.machine(), e.machine()
	refused := func(name, stream string, kind schema.Kind, reason string, change func(*nodeapi.RecoveryClaim)) {
		t.Helper()
		c := m.recoveryClaim(m.k(2))
		change(&c)
		events, want := e.number("SELECT count(*) FROM audit_events"), int64(0)
		for range 2 { // the second refusal of a minute is not audited again
			_, err := e.ClaimRecovery(t.Context(), c)
			require.Error(t, err, name)
			requireKind(t, err, kind, reason)
		}
		if stream != unaudited {
			rows := e.audit(stream)
			require.Equal(t, "nodes.recovery_refused refused "+reason, rows[len(rows)-1], name)
			want = 1
		}
		require.Equal(t, want, e.number("SELECT count(*) FROM audit_events")-events, name)
	}
	id := m.caller.NodeID
	refused("unknown", unaudited, schema.KindUnauthenticated, "token_unknown",
		func(c *nodeapi.RecoveryClaim) { c.TokenID = schema.NewID() })
	refused("malformed", unaudited, schema.KindUnauthenticated, "token_unknown",
		func(c *nodeapi.RecoveryClaim) { c.TokenID = "nonsense" })
	refused("wrong secret", unaudited, schema.KindUnauthenticated, "token_unknown",
		func(c *nodeapi.RecoveryClaim) { c.Hash = make([]byte, 32) })
	refused("no key", unaudited, schema.KindUnauthenticated, "token_unknown",
		func(c *nodeapi.RecoveryClaim) { c.SPKI = "" })
	refused("foreign", id, schema.KindUnauthenticated, "token_foreign",
		func(c *nodeapi.RecoveryClaim) { c.NodeID = other.caller.NodeID })
	refused("another incarnation", id, schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch,
		func(c *nodeapi.RecoveryClaim) { c.Incarnation = 2 })
	refused("another node's key", id, schema.KindInvalidRequest, "key_in_use",
		func(c *nodeapi.RecoveryClaim) { c.SPKI = other.k(1) })
	require.Equal(t, "issued", e.tokenStateOf(m.recovery.TokenID), "a refusal undoes the claim")

	require.NoError(t, m.recover(m.k(2)))
	refused("claimed by another key", id, schema.KindTokenConsumed, "token_claimed",
		func(c *nodeapi.RecoveryClaim) { c.SPKI = m.k(3) })
	e.exec("UPDATE enrollment_tokens SET expires_at = now() WHERE token_id = $1", m.recovery.TokenID)
	require.NoError(t, m.recover(m.k(2)), "the key that claimed it in time may retry later")
	e.exec("UPDATE enrollment_tokens SET state = 'issued', claimed_spki = NULL, claimed_at = NULL WHERE token_id = $1", m.recovery.TokenID)
	refused("expired", id, schema.KindTokenExpired, "token_expired", func(*nodeapi.RecoveryClaim) {})
	e.exec("UPDATE enrollment_tokens SET expires_at = now() + interval '1 hour' WHERE token_id = $1", m.recovery.TokenID)

	enrollID, enrollHash := e.token(e.register().ID)
	refused("a token to enroll", unaudited, schema.KindUnauthenticated, "token_unknown",
		func(c *nodeapi.RecoveryClaim) { c.TokenID, c.Hash, c.SPKI = enrollID, enrollHash, "" })
	_, err := e.ClaimToken(t.Context(), tokenClaim(id, m.recovery.TokenID, m.recovery.Hash, m.k(2)))
	requireKind(t, err, schema.KindUnauthenticated, "token_unknown")

	e.exec("UPDATE nodes SET recovery_key = NULL WHERE node_id = $1", id)
	refused("a node that gave no key", id, schema.KindUnauthenticated, "token_unknown", func(*nodeapi.RecoveryClaim) {})
	facts, err := e.RecoveryFacts(t.Context(), id)
	require.NoError(t, err)
	require.Nil(t, facts.Key)
	for _, unknown := range []string{schema.NewID(), "nonsense"} {
		_, err = e.RecoveryFacts(t.Context(), unknown)
		requireKind(t, err, schema.KindUnauthenticated, "token_unknown")
	}
}

func TestReplacedRecoveryTokenIsVoid(t *testing.T) {
	e := setup(t)
	m := e.machine()
	lost := m.renewed(m.k(2))
	kept := m.renewed(m.k(2))
	stale := *m
	stale.adopt(lost)
	requireKind(t, stale.recover(m.k(3)), schema.KindTokenConsumed, "token_voided")
	m.adopt(kept)
	m.adopt(m.recovered(m.k(3)))
	m.use()
}

func TestRecoveriesInEveryState(t *testing.T) {
	e := setup(t)
	m := e.machine()
	for i, s := range lifecycle.NodeStates() {
		e.exec("UPDATE nodes SET state = $2 WHERE node_id = $1", m.caller.NodeID, s)
		if s == lifecycle.NodeRemoved {
			requireKind(t, m.recover(m.k(i+2)), schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
			continue
		}
		m.adopt(m.recovered(m.k(i + 2)))
		m.use()
		require.Equal(t, s, e.node(m.caller.NodeID).State)
	}
}

func TestRecoverWithoutKey(t *testing.T) {
	e := setup(t)
	n := e.register()
	tokenID, hash := e.token(n.ID)
	c := tokenClaim(n.ID, tokenID, hash, key(n.ID, 1))
	won, err := e.ClaimToken(t.Context(), c)
	require.NoError(t, err)
	require.False(t, won.Recoverable)
	c.RecoveryKey = recoveryKey
	won, err = e.ClaimToken(t.Context(), c)
	require.NoError(t, err)
	require.True(t, won.Recoverable, "the last try counts")
	c.RecoveryKey = []byte("short")
	_, err = e.ClaimToken(t.Context(), c)
	requireKind(t, err, schema.KindInvalidRequest, "nodes_recovery_key_check")
}

// Two replicas, one token, a hundred keys: one of them wins, every time.
func TestOneKeyWinsATokenOnTwoReplicas(t *testing.T) {
	e := setup(t)
	second, err := store.Open(t.Context(), store.Config{URL: e.url, MaxConns: 20})
	require.NoError(t, err)
	t.Cleanup(second.Close)
	replicas := []*store.Store{e.Store, second}
	rounds, keys := 50, 100
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		n := e.register()
		tokenID, hash := e.token(n.ID)
		winner := ""
		for i, err := range race(keys, func(i int) error {
			_, err := replicas[i%2].Identities.ClaimToken(t.Context(), tokenClaim(n.ID, tokenID, hash, key(n.ID, i)))
			return err
		}) {
			if err == nil {
				require.Empty(t, winner, "round %d", round)
				winner = key(n.ID, i)
				continue
			}
			requireKind(t, err, schema.KindTokenConsumed, "token_claimed")
		}
		require.NotEmpty(t, winner, "round %d", round)
		require.Equal(t, int64(1), e.number(`SELECT count(*) FROM enrollment_tokens WHERE token_id = $1 AND claimed_spki = $2`, tokenID, winner))
	}
	m := e.machine()
	won := 0
	for _, err := range race(keys, func(i int) error {
		_, err := replicas[i%2].Identities.ClaimRecovery(t.Context(), m.recoveryClaim(fmt.Sprintf("%s-%d", m.k(2), i)))
		return err
	}) {
		if err == nil {
			won++
			continue
		}
		requireKind(t, err, schema.KindTokenConsumed, "token_claimed")
	}
	require.Equal(t, 1, won)
}

func TestKeyBelongsToOneNode(t *testing.T) {
	e := setup(t)
	m := e.machine()
	n := e.register()
	tokenID, hash := e.token(n.ID)
	rows := e.changes(n.ID, func() {
		_, err := e.ClaimToken(t.Context(), tokenClaim(n.ID, tokenID, hash, m.k(1)))
		requireKind(t, err, schema.KindInvalidRequest, "key_in_use")
	})
	require.Equal(t, []string{"nodes.token_refused refused key_in_use"}, rows)
	require.Equal(t, "issued", e.tokenStateOf(tokenID))
	_, err := e.ClaimToken(t.Context(), tokenClaim(n.ID, tokenID, hash, key(n.ID, 1)))
	require.NoError(t, err)
	won, nodes := 0, []string{e.register().ID, e.register().ID}
	for _, err := range race(2, func(i int) error {
		tokenID, hash := e.token(nodes[i])
		_, err := e.ClaimToken(t.Context(), tokenClaim(nodes[i], tokenID, hash, "one-key"))
		return err
	}) {
		if err == nil {
			won++
		}
	}
	require.Equal(t, 1, won, "raced too")
}
