package nodeapi_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newRecoveryKey(tb testing.TB) (public ed25519.PublicKey, private ed25519.PrivateKey) {
	tb.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(tb, err)
	return public, private
}

func signed(key ed25519.PrivateKey, statement []byte) string {
	return base64.StdEncoding.EncodeToString(ed25519.Sign(key, statement))
}

// An enrollment stores the recovery key only with a signature over this node, token
// and CSR.
func TestRecoveryKeyAtEnrollment(t *testing.T) {
	var claimed []nodeapi.TokenClaim
	s := newSite(t, &fakeStore{claim: func(c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
		claimed = append(claimed, c)
		return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: 1, Recoverable: c.RecoveryKey != nil}, nil
	}})
	public, private := newRecoveryKey(t)
	_, other := newRecoveryKey(t)
	text, _, _ := trust.NewToken()
	another, _, _ := trust.NewToken()
	request := csr(t, newKey(t), nil)
	key := base64.StdEncoding.EncodeToString(public)
	statement := trust.EnrollStatement(s.node.NodeID, text, request, public)
	for name, c := range map[string]struct{ key, signature, reason string }{
		"good":           {key, signed(private, statement), ""},
		"none":           {"", "", ""},
		"no key":         {"", signed(private, statement), "recovery_key"},
		"no signature":   {key, "", "recovery_signature"},
		"short key":      {key[:40], signed(private, statement), "recovery_key"},
		"another's":      {key, signed(other, statement), "recovery_signature"},
		"another node":   {key, signed(private, trust.EnrollStatement(schema.NewID(), text, request, public)), "recovery_signature"},
		"another token":  {key, signed(private, trust.EnrollStatement(s.node.NodeID, another, request, public)), "recovery_signature"},
		"another CSR":    {key, signed(private, trust.EnrollStatement(s.node.NodeID, text, request+"\n", public)), "recovery_signature"},
		"of a recovery":  {key, signed(private, trust.RecoverStatement(s.node.NodeID, 1, 1, text, request)), "recovery_signature"},
		"not base64":     {key, "%", "recovery_signature"},
		"base64 of less": {key, "AAAA", "recovery_signature"},
	} {
		t.Run(name, func(t *testing.T) {
			claimed = nil
			a := call(t, s.client(nil), http.MethodPost, s.path("/enroll"),
				wire.EnrollRequest{Token: text, CSR: request, RecoveryKey: c.key, Signature: c.signature})
			if c.reason != "" {
				assert.Equal(t, http.StatusBadRequest, a.status)
				assert.Equal(t, c.reason, a.refusal(t).Reason)
				assert.Empty(t, claimed)
				return
			}
			require.Equal(t, http.StatusOK, a.status, string(a.body))
			var answer wire.EnrollResponse
			require.NoError(t, json.Unmarshal(a.body, &answer))
			assert.Equal(t, c.key != "", answer.RecoveryToken != "")
			assert.Equal(t, c.key != "", strings.Contains(string(a.body), "recovery_expires_at"))
			assert.Equal(t, c.key, base64.StdEncoding.EncodeToString(claimed[0].RecoveryKey))
		})
	}
}

// rescue is a recovery of the site's node.
func (s *site) rescue(key ed25519.PrivateKey, change func(*wire.RecoverRequest)) wire.RecoverRequest {
	token, _, _ := trust.NewToken()
	req := wire.RecoverRequest{Token: token, CSR: csr(s.tb, newKey(s.tb), nil), Incarnation: 3, Sequence: 5, AgentVersion: "v1"}
	req.Signature = signed(key, trust.RecoverStatement(s.node.NodeID, req.Incarnation, req.Sequence, req.Token, req.CSR))
	if change != nil {
		change(&req)
	}
	return req
}

func TestRecover(t *testing.T) {
	public, private := newRecoveryKey(t)
	_, other := newRecoveryKey(t)
	var claims []nodeapi.RecoveryClaim
	var stored nodeapi.NewIdentity
	facts := nodeapi.RecoveryFacts{Incarnation: 3, Key: public}
	claimed := time.Now().Add(5 * time.Hour).UTC().Truncate(time.Second) // by the database's clock
	s := newSite(t, &fakeStore{
		facts: func(string) (nodeapi.RecoveryFacts, error) { return facts, nil },
		recover: func(c nodeapi.RecoveryClaim) (nodeapi.ClaimResult, error) {
			claims = append(claims, c)
			return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: c.Incarnation, Recoverable: true, Now: claimed}, nil
		},
		pending: func(n nodeapi.NewIdentity) (int64, error) { stored = n; return 6, nil },
	})
	expired := s.nodeCA.leaf(t, s.node, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	for name, client := range map[string]*http.Client{"without a certificate": s.client(nil), "with an expired one": s.client(expired)} {
		req := s.rescue(private, nil)
		a := call(t, client, http.MethodPost, s.path("/recover"), req, wire.HeaderCorrelationID, "rescue-1")
		require.Equal(t, http.StatusOK, a.status, name+string(a.body))
		var answer wire.EnrollResponse
		require.NoError(t, json.Unmarshal(a.body, &answer))
		id, hash, err := trust.ParseToken(answer.RecoveryToken)
		require.NoError(t, err)
		assert.Equal(t, trust.MintedToken{NodeID: s.node.NodeID, TokenID: id, Hash: hash, Purpose: trust.PurposeRecover,
			ExpiresAt: claimed.Add(trust.RecoveryTokenTTL)}, stored.Recovery)
		assert.Equal(t, stored.Recovery.ExpiresAt, answer.RecoveryExpiresAt)
		assert.Equal(t, int64(6), answer.Sequence)
		assert.Equal(t, trust.IssuedByRecover, stored.Via)
		tokenID, tokenHash, err := trust.ParseToken(req.Token)
		require.NoError(t, err)
		last := claims[len(claims)-1]
		assert.Equal(t, stored.TokenID, tokenID)
		assert.Equal(t, nodeapi.RecoveryClaim{TokenClaim: nodeapi.TokenClaim{NodeID: s.node.NodeID, TokenID: tokenID, Hash: tokenHash,
			SPKI: last.SPKI, CorrelationID: "rescue-1", AgentVersion: "v1", RemoteAddr: "127.0.0.1"}, Incarnation: 3, Sequence: 5}, last)
		assert.Equal(t, stored.Cert.SPKI, last.SPKI)
		assert.NotContains(t, s.log.String(), req.Token)
	}
	assert.NotContains(t, s.log.String(), trust.TokenPrefix)

	claims = nil
	for name, c := range map[string]struct {
		req    wire.RecoverRequest
		kind   schema.Kind
		reason string
	}{
		"another's signature": {s.rescue(other, nil), schema.KindUnauthenticated, "recovery_signature"},
		"no signature":        {s.rescue(private, func(r *wire.RecoverRequest) { r.Signature = "" }), schema.KindUnauthenticated, "recovery_signature"},
		"another sequence":    {s.rescue(private, func(r *wire.RecoverRequest) { r.Sequence++ }), schema.KindUnauthenticated, "recovery_signature"},
		"another incarnation": {s.rescue(private, func(r *wire.RecoverRequest) { r.Incarnation++ }), schema.KindUnauthenticated, "recovery_signature"},
		"a negative sequence": {s.rescue(private, func(r *wire.RecoverRequest) { r.Sequence = -1 }), schema.KindInvalidRequest, "bad_sequence"},
		"a bad token":         {s.rescue(private, func(r *wire.RecoverRequest) { r.Token += "A" }), schema.KindUnauthenticated, "token_malformed"},
		"a bad CSR":           {s.rescue(private, func(r *wire.RecoverRequest) { r.CSR = "" }), schema.KindInvalidRequest, "csr_pem"},
		"a bad version":       {s.rescue(private, func(r *wire.RecoverRequest) { r.AgentVersion = "\n" }), schema.KindInvalidRequest, "bad_agent_version"},
	} {
		t.Run(name, func(t *testing.T) {
			a := call(t, s.client(nil), http.MethodPost, s.path("/recover"), c.req)
			assert.Equal(t, c.kind.Info().HTTP, a.status)
			assert.Equal(t, c.reason, a.refusal(t).Reason)
			assert.Contains(t, s.log.String(), `"reason":"`+c.reason+`"`)
		})
	}
	facts.Incarnation = 4
	assert.Equal(t, schema.ReasonIdentityMismatch, call(t, s.client(nil), http.MethodPost, s.path("/recover"), s.rescue(private, nil)).refusal(t).Reason)
	facts.Key = nil
	assert.Equal(t, "no_recovery_key", call(t, s.client(nil), http.MethodPost, s.path("/recover"), s.rescue(private, nil)).refusal(t).Reason)
	assert.Empty(t, claims, "nothing is claimed before the signature is good")
	assert.InDelta(t, 2, s.metric("gpuaas_recoveries_total", "issued"), 0)
	assert.InDelta(t, 6, s.metric("gpuaas_recoveries_total", "unauthenticated"), 0)
}

// Beyond the budget the response contains Retry-After, urgent requests are served
// before others, and claims persist.
func TestIssueBudget(t *testing.T) {
	public, private := newRecoveryKey(t)
	claims := 0
	s := newSiteWith(t, &fakeStore{
		facts: func(string) (nodeapi.RecoveryFacts, error) {
			return nodeapi.RecoveryFacts{Incarnation: 3, Key: public}, nil
		},
		claim: func(c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
			claims++
			return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: 1}, nil
		},
	}, func(c *nodeapi.Config) { c.IssueRate, c.RemoteRate = 0.01, 1e4 }) // a burst of 4, and no more in this test
	urgent := s.client(s.nodeCA.leaf(t, s.node, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(-10 * time.Hour) }))
	ask := map[string]func() answer{
		"recovery": func() answer {
			return call(t, s.client(nil), http.MethodPost, s.path("/recover"), s.rescue(private, nil))
		},
		"urgent": func() answer { return call(t, urgent, http.MethodPost, s.path("/certificates/renew"), renewal()) },
		"other": func() answer {
			text, _, _ := trust.NewToken()
			return call(t, s.client(nil), http.MethodPost, s.path("/enroll"), wire.EnrollRequest{Token: text, CSR: csr(t, newKey(t), nil)})
		},
	}
	refused := func(priority string) {
		t.Helper()
		a := ask[priority]()
		require.Equal(t, http.StatusTooManyRequests, a.status, string(a.body))
		assert.Equal(t, "over_budget", a.refusal(t).Reason)
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		require.NoError(t, err)
		assert.Positive(t, seconds)
		assert.LessOrEqual(t, seconds, 300)
	}
	for _, step := range []struct {
		priority string
		served   int
		refused  []string
	}{{"other", 2, []string{"other"}}, {"urgent", 1, []string{"urgent", "other"}}, {"recovery", 1, []string{"recovery", "urgent", "other"}}} {
		for range step.served {
			require.Equal(t, http.StatusOK, ask[step.priority]().status, step.priority)
		}
		for _, p := range step.refused {
			refused(p)
		}
	}
	assert.Equal(t, 5, claims, "the claim is made before the budget is asked, so it stays")
	assert.InDelta(t, 3, s.metric("gpuaas_issue_budget_total", "refused", "other"), 0)
	assert.InDelta(t, 1, s.metric("gpuaas_issue_budget_total", "granted", "recovery"), 0)
	assert.InDelta(t, 0, s.metric("gpuaas_issue_budget_left"), 0.1)
	assert.InDelta(t, 3, s.metric("gpuaas_enrollments_total", "rate_limited"), 0)
}

// A node and a remote address are rate-limited. A client at another
// address cannot exhaust a node's limit.
func TestRequestLimits(t *testing.T) {
	s := newSiteWith(t, &fakeStore{}, func(c *nodeapi.Config) {
		c.RenewalRate, c.RemoteRate, c.IssueRate = 0.01, 2.5, 1e4
		now := time.Now()
		c.Now = func() time.Time { return now } // nothing refills
	})
	c := s.client(s.cert())
	renew := func() answer { return call(t, c, http.MethodPost, s.path("/certificates/renew"), renewal()) }
	for range 3 { // five minutes of its rate
		require.Equal(t, http.StatusOK, renew().status)
	}
	a := renew()
	assert.Equal(t, http.StatusTooManyRequests, a.status)
	assert.Equal(t, "over_renewal", a.refusal(t).Reason)
	assert.NotEmpty(t, a.header.Get("Retry-After"))

	ask := func(node string) answer {
		return call(t, s.client(nil), http.MethodPost, s.base+"/internal/v1/nodes/"+node+"/enroll", wire.EnrollRequest{})
	}
	reasons := map[string]int{}
	for range 20 {
		reasons[ask(schema.NewID()).refusal(t).Reason]++
	}
	assert.Equal(t, map[string]int{"token_malformed": 10, "over_remote": 10}, reasons, "a burst of ten")
	assert.InDelta(t, 10, s.metric("gpuaas_node_api_limited_total", "remote"), 0)
	assert.InDelta(t, 1, s.metric("gpuaas_node_api_limited_total", "renewal"), 0)
	for path, method := range map[string]string{bundlePath: http.MethodPost, scriptPath: http.MethodPost, "/internal/v1/packages/x": http.MethodGet} {
		a = call(t, s.client(nil), method, s.base+path, nil)
		assert.Equal(t, "over_remote", a.refusal(t).Reason)
	}
}

// A node whose recoveries succeed and do not help recovers once a minute, not all the time.
func TestRecoveryLimit(t *testing.T) {
	public, private := newRecoveryKey(t)
	s := newSiteWith(t, &fakeStore{
		facts: func(string) (nodeapi.RecoveryFacts, error) {
			return nodeapi.RecoveryFacts{Incarnation: 3, Key: public}, nil
		},
		claim: func(c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
			return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: 1}, nil
		},
	}, func(c *nodeapi.Config) {
		c.RenewalRate = nodeapi.DefaultRenewalRate
		now := time.Now()
		c.Now = func() time.Time { return now } // nothing refills
	})
	statuses := map[int]int{}
	for range 20 {
		statuses[call(t, s.client(nil), http.MethodPost, s.path("/recover"), s.rescue(private, nil)).status]++
	}
	assert.Equal(t, map[int]int{http.StatusOK: 5, http.StatusTooManyRequests: 15}, statuses)
}

// A client with a /48 network of IPv6 has 65,536 networks of 64 bits. All of them together
// have twice the limit of one, so that one of them cannot take what the others need.
func TestSiteLimit(t *testing.T) {
	now := time.Now() // nothing refills
	_, api := newAPI(t, &fakeStore{}, func(c *nodeapi.Config) {
		c.RemoteRate, c.Now = 2.5, func() time.Time { return now }
	})
	handler := api.Handler()
	served := func(requests int, remote func(i int) string) (n int) {
		for i := range requests {
			r := httptest.NewRequest(http.MethodGet, "/internal/v1/packages/x", nil)
			r.RemoteAddr = remote(i)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != http.StatusTooManyRequests {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 10, served(100, func(int) string { return "[2001:db8:1:ffff::1]:1" }), "one network")
	assert.Equal(t, 10, served(100, func(i int) string { return fmt.Sprintf("[2001:db8:1:%x::1]:1", i) }), "its /48")
	assert.Equal(t, 1, served(1, func(int) string { return "[2001:db8:2::1]:1" }), "another /48")
	assert.Equal(t, 100, served(100, func(i int) string { return fmt.Sprintf("[::ffff:10.0.0.%d]:1", i) }), "addresses of IPv4")
}
