package server

import (
	"context"
	"crypto/ecdsa"
	"net/http"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

func TestRenewal(t *testing.T) {
	r := newCluster(t).replica()
	h := r.holder()
	assert.Equal(t, int64(1), h.answer.Sequence)
	assert.WithinDuration(t, time.Now(), h.answer.ServerTime, harness.Timeout)
	assert.WithinDuration(t, time.Now().Add(trust.RecoveryTokenTTL), h.answer.RecoveryExpiresAt, time.Minute)

	key := newKey(t)
	req := h.renewal(t, key)
	lost := certificate(t, r.post(h, "/certificates/renew", req), key)
	r.works(h) // the response was lost: the old certificate is still valid
	a := r.post(h, "/certificates/renew", req)
	before := *h
	old := h.answer
	h.take(t, a, key)
	assert.Greater(t, h.answer.Sequence, old.Sequence)
	assert.NotEqual(t, old.RecoveryToken, h.answer.RecoveryToken)
	r.refusal(r.call(r.client(lost), http.MethodGet, r.url(h.machine, "/tasks/wait"), nil),
		schema.KindInvalidNodeIdentity, schema.ReasonSerialSuperseded)
	r.works(h)
	r.refusal(r.wait(before.machine, 0), schema.KindInvalidNodeIdentity, schema.ReasonSerialSuperseded)
	r.works(h) // a request that was in flight does not lock the node
	r.refusal(r.post(h, "/certificates/renew", h.renewal(t, key)), schema.KindInvalidRequest, "csr_key_in_use")
	other := r.holder()
	stolen := newKey(t)
	require.Equal(t, http.StatusOK, r.post(other, "/certificates/renew", other.renewal(t, stolen)).status)
	r.refusal(r.post(h, "/certificates/renew", h.renewal(t, stolen)), schema.KindInvalidRequest, "key_in_use")
	for _, secret := range []string{old.RecoveryToken, h.answer.RecoveryToken} {
		assert.NotContains(t, r.log.String(), secret)
	}
}

func TestRecovery(t *testing.T) {
	c := newCluster(t)
	a, b := c.replica(), c.replica()
	h := a.holder()
	key, thief := newKey(t), newKey(t)
	req := h.rescue(t, key)

	// A refused request consumes nothing.
	forged := req
	forged.Signature = sign(newRecoveryKey(t), trust.RecoverStatement(h.id, req.Incarnation, req.Sequence, req.Token, req.CSR))
	a.refusal(a.bare(h, "/recover", forged), schema.KindUnauthenticated, "recovery_signature")
	swapped := req
	swapped.CSR = newCSR(t, thief, nil)
	a.refusal(a.bare(h, "/recover", swapped), schema.KindUnauthenticated, "recovery_signature")
	wrong := *h
	wrong.answer.RecoveryToken, _, _ = trust.NewToken()
	unknownToken := a.bare(h, "/recover", wrong.rescue(t, key))
	a.refusal(unknownToken, schema.KindUnauthenticated, "token_unknown")
	unknown := *h
	unknown.id = schema.NewID()
	unknownNode := a.bare(&unknown, "/recover", unknown.rescue(t, key))
	assert.Equal(t, unknownToken.refusal(t).Message, unknownNode.refusal(t).Message, "an unknown node looks like an unknown token")
	older := *h
	older.answer.Incarnation++
	a.refusal(a.bare(h, "/recover", older.rescue(t, key)), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
	a.refusal(a.bare(h, "/enroll", wire.EnrollRequest{Token: h.answer.RecoveryToken, CSR: newCSR(t, key, nil)}),
		schema.KindUnauthenticated, "token_unknown")
	a.works(h)

	// The answer is lost at one replica and the request repeated at another.
	require.Equal(t, http.StatusOK, a.bare(h, "/recover", req).status)
	a.refusal(b.bare(h, "/recover", h.rescue(t, thief)), schema.KindTokenConsumed, "token_claimed")
	again := b.bare(h, "/recover", req)
	spent := *h
	h.take(t, again, key)
	b.works(h)
	a.works(h)
	a.refusal(a.bare(&spent, "/recover", spent.rescue(t, key)), schema.KindTokenConsumed, "token_used")

	// The new token is for the next recovery.
	key = newKey(t)
	h.take(t, b.bare(h, "/recover", h.rescue(t, key)), key)
	a.works(h)
	assert.Contains(t, a.audit(h.id), "nodes.recovery_claimed succeeded")
	assert.InDelta(t, 7, a.series("gpuaas_recoveries_total"), 0)
	for _, secret := range []string{req.Token, h.answer.RecoveryToken, req.Signature} {
		assert.NotContains(t, a.log.String(), secret)
		assert.NotContains(t, b.log.String(), secret)
	}

	keyless := a.enrolled()
	k := &holder{machine: keyless, recovery: newRecoveryKey(t), answer: wire.EnrollResponse{Incarnation: 1, RecoveryToken: req.Token}}
	a.refusal(a.bare(k, "/recover", k.rescue(t, key)), schema.KindUnauthenticated, "no_recovery_key")
}

// series sums a counter over its labels.
func (r *replica) series(name string) float64 {
	families, err := r.registry.Gather()
	require.NoError(r.tb, err)
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// A copy of a node's disk is outdated once the node has renewed. Both identities
// are locked, and their open polls at every replica end, until an operator decides.
func TestCloneLocksBoth(t *testing.T) {
	c := newCluster(t)
	a, b := c.replica(), c.replica()
	h := a.holder()
	twin := *h
	key := newKey(t)
	h.take(t, a.post(h, "/certificates/renew", h.renewal(t, key)), key)
	a.works(h)
	polls := []<-chan reply{a.poll(h.machine), b.poll(h.machine)}
	a.parked(1)
	b.parked(1)

	a.refusal(b.bare(&twin, "/recover", twin.rescue(t, newKey(t))), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	for _, p := range polls {
		a.refusal(receive(t, p), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	}
	for _, r := range []*replica{a, b} {
		for _, e := range agentCalls() {
			got := r.call(r.client(h.cert), e.method, r.url(h.machine, e.path), e.body)
			r.refusal(got, schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
		}
		r.refusal(r.bare(h, "/recover", h.rescue(t, newKey(t))), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	}
	shown := a.show(h.id)
	require.NotNil(t, shown.IdentityLock)
	assert.Equal(t, "sequence_behind", shown.IdentityLock.Reason)
	assert.Contains(t, a.audit(h.id), "nodes.identity_locked succeeded")

	got := a.ask(http.MethodPost, "/nodes/"+h.id+"/reissue-enrollment", `{"reason":"two machines"}`)
	require.Equal(t, http.StatusAccepted, got.status, string(got.body))
	var answer wire.LifecycleResponse
	got.into(t, &answer)
	assert.Equal(t, lifecycle.NodeActive, answer.Node.State)
	h.bundle = answer.RecoveryBundle.BootstrapBundle
	key = newKey(t)
	h.take(t, b.bare(h, "/enroll", h.enrollment(t, key)), key)
	assert.Equal(t, int64(2), h.answer.Incarnation)
	b.works(h)
	a.refusal(a.wait(twin.machine, 0), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
	shown = a.show(h.id)
	assert.Nil(t, shown.IdentityLock)
	assert.Equal(t, lifecycle.NodeActive, shown.State)
	assert.NotContains(t, a.audit(h.id), "nodes.reissue_enrollment succeeded", "its operation has not ended")
	require.Len(t, shown.TrustedCAs, 1)
	assert.Equal(t, shown.Identity.Issuer, shown.TrustedCAs[0].Subject)
}

// The old certificate, used after the new one, locks the identity too.
func TestOldCertificateOfCloneLocks(t *testing.T) {
	c := newCluster(t)
	r := c.replica()
	h := r.holder()
	twin := *h
	key := newKey(t)
	h.take(t, r.post(h, "/certificates/renew", h.renewal(t, key)), key)
	r.works(h)
	c.exec("UPDATE node_certificates SET retired_at = retired_at - interval '1 hour' WHERE slot = 'retired'")
	r.refusal(r.wait(twin.machine, 0), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	r.refusal(r.wait(h.machine, 0), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	shown := r.show(h.id)
	require.NotNil(t, shown.IdentityLock)
	assert.Equal(t, "superseded_serial", shown.IdentityLock.Reason)
	assert.Contains(t, r.log.String(), schema.ReasonNodeLocked)
}

// The gauges show a fleet that stopped renewing before its certificates expire,
// and a certificate that is never used.
func TestIdentityGauges(t *testing.T) {
	c := newCluster(t)
	r := c.replica()
	h := r.holder()
	assert.InDelta(t, 1, r.metric("gpuaas_certificate_life_left_ratio"), 0.1)
	require.Equal(t, http.StatusOK, r.post(h, "/certificates/renew", h.renewal(t, newKey(t))).status)
	c.exec("UPDATE node_certificates SET issued_at = issued_at - interval '11 minutes', not_before = now() - interval '70 minutes', not_after = now() + interval '30 minutes'")
	late := c.replica() // a scrape serves the last reading for five seconds
	assert.InDelta(t, 0.3, late.metric("gpuaas_certificate_life_left_ratio"), 0.01)
	assert.InDelta(t, 1, late.metric("gpuaas_certificates_overdue"), 0)
	assert.InDelta(t, 1, late.metric("gpuaas_certificates_unpromoted"), 0)
}

func TestRemovedNodeGetsNoIdentity(t *testing.T) {
	r := newCluster(t).replica()
	h := r.holder()
	r.remove(h.id)
	for path, body := range map[string]any{"/recover": h.rescue(t, newKey(t)), "/certificates/renew": h.renewal(t, newKey(t)),
		"/enroll": h.enrollment(t, newKey(t))} {
		r.refusal(r.post(h, path, body), schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	}
	a := r.ask(http.MethodPost, "/nodes/"+h.id+"/reissue-enrollment", nil)
	r.refusal(a, schema.KindInvalidRequest, "invalid_state")
}

// cut is a store whose answers get lost: it commits the transaction and returns an
// error.
type cut struct {
	nodeapi.Identities
	claim, pending atomic.Bool
}

func errCut() error {
	return schema.NewError(schema.KindServiceUnavailable, "the database does not answer")
}

func (c *cut) ClaimToken(ctx context.Context, t nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
	claimed, err := c.Identities.ClaimToken(ctx, t)
	if c.claim.Load() && err == nil {
		err = errCut()
	}
	return claimed, err
}

func (c *cut) ClaimRenewal(ctx context.Context, t nodeapi.RenewClaim) (nodeapi.ClaimResult, error) {
	claimed, err := c.Identities.ClaimRenewal(ctx, t)
	if c.claim.Load() && err == nil {
		err = errCut()
	}
	return claimed, err
}

func (c *cut) ClaimRecovery(ctx context.Context, t nodeapi.RecoveryClaim) (nodeapi.ClaimResult, error) {
	claimed, err := c.Identities.ClaimRecovery(ctx, t)
	if c.claim.Load() && err == nil {
		err = errCut()
	}
	return claimed, err
}

func (c *cut) StorePending(ctx context.Context, n nodeapi.NewIdentity) (int64, error) {
	sequence, err := c.Identities.StorePending(ctx, n)
	if c.pending.Load() && err == nil {
		err = errCut()
	}
	return sequence, err
}

// After an answer is lost behind any commit, a repeated request with the same key
// gets a certificate that works.
func TestAnswerLostAfterEachCommit(t *testing.T) {
	c := newCluster(t)
	var store *cut
	c.between = func(s nodeapi.Identities) nodeapi.Identities { store = &cut{Identities: s}; return store }
	r := c.replica()
	points := map[string]*atomic.Bool{"vault away": &c.ca.down, "signed, not answered": &c.ca.lost, "claimed": &store.claim, "pending": &store.pending}
	for point, lost := range points {
		for _, via := range []trust.IssueMethod{trust.IssuedByEnroll, trust.IssuedByRenew, trust.IssuedByRecover} {
			t.Run(string(via)+"/"+point, func(t *testing.T) {
				h := &holder{recovery: newRecoveryKey(t)}
				if via == trust.IssuedByEnroll {
					h.machine = r.bundle()
				} else {
					h = r.holder()
				}
				ask, key := h.request(t, via), newKey(t)
				path, body := ask(key)
				lost.Store(true)
				for range 2 {
					a := r.post(h, path, body)
					r.refusal(a, schema.KindServiceUnavailable, "")
				}
				if via != trust.IssuedByRenew { // where the certificate says who asks, a new key may
					path, body := ask(newKey(t))
					lost.Store(false)
					r.refusal(r.bare(h, path, body), schema.KindTokenConsumed, "token_claimed")
				} else {
					r.works(h)
				}
				lost.Store(false)
				h.take(t, r.post(h, path, body), key)
				r.works(h)
				assert.Nil(t, r.show(h.id).IdentityLock)
			})
		}
	}
}

// request returns a function that makes requests of one kind for an identity.
func (h *holder) request(t *testing.T, via trust.IssueMethod) func(key *ecdsa.PrivateKey) (path string, body any) {
	t.Helper()
	return func(k *ecdsa.PrivateKey) (string, any) {
		switch via {
		case trust.IssuedByEnroll:
			return "/enroll", h.enrollment(t, k)
		case trust.IssuedByRenew:
			return "/certificates/renew", h.renewal(t, k)
		default:
			return "/recover", h.rescue(t, k)
		}
	}
}

// When many requests claim one token at once through two replicas, one key wins.
func TestConcurrentClaims(t *testing.T) {
	c := newCluster(t)
	replicas := []*replica{c.replica(), c.replica()}
	const racers = 100
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	keys, clients := make([]string, racers), make([]*http.Client, racers)
	for i := range racers {
		clients[i] = replicas[i%2].client(nil)
	}
	start := time.Now()
	for range rounds {
		m := replicas[0].bundle()
		for i := range racers {
			keys[i] = newCSR(t, newKey(t), nil)
		}
		var won, lost atomic.Int64
		var group sync.WaitGroup
		for i := range racers {
			group.Go(func() {
				a, err := send(t.Context(), clients[i], http.MethodPost, replicas[i%2].url(m, "/enroll"),
					wire.EnrollRequest{Token: m.bundle.EnrollmentToken, CSR: keys[i]})
				switch {
				case err == nil && a.status == http.StatusOK:
					won.Add(1)
				case err == nil && a.status == http.StatusConflict:
					lost.Add(1)
				}
			})
		}
		group.Wait()
		require.Equal(t, int64(1), won.Load())
		require.Equal(t, int64(racers-1), lost.Load())
	}
	t.Logf("%d rounds of %d claims in %s", rounds, racers, time.Since(start).Round(time.Millisecond))
}

var referenceForm = regexp.MustCompile(`"reference\\":\\"(gpuet_[^\\]+)\\"`)

// A reference returns its bundle once, and the bundle enrolls the node.
func TestFetchReference(t *testing.T) {
	c := newCluster(t)
	c.archive = write(t, "the agent's package")
	r := c.replica()
	node := r.register()
	a := r.ask(http.MethodPost, "/nodes/"+node.ID+"/bootstrap-script", `{"fetch_ref":true}`)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	var answer wire.BootstrapScriptResponse
	a.into(t, &answer)
	reference := referenceForm.FindStringSubmatch(answer.Script)
	require.NotNil(t, reference)
	assert.Equal(t, lifecycle.NodeRegistered, r.show(node.ID).State, "no token yet")

	exchange := func(reference string) reply {
		return r.call(r.client(nil), http.MethodPost, r.node+"/internal/v1/bootstrap", trust.BootstrapRequest{Reference: reference})
	}
	script := func(reference string) reply {
		return r.call(r.client(nil), http.MethodPost, r.node+"/internal/v1/bootstrap/script", trust.BootstrapRequest{Reference: reference})
	}
	for range 2 {
		a = script(reference[1])
		require.Equal(t, http.StatusOK, a.status, string(a.body))
		assert.Equal(t, answer.Script, string(a.body), "the reference is not used")
	}
	a = exchange(reference[1])
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	assert.Equal(t, "no-store", a.header.Get("Cache-Control"))
	h := &holder{machine: machine{id: node.ID}, recovery: newRecoveryKey(t)}
	a.into(t, &h.bundle)
	other, _, _ := trust.NewToken()
	for _, ask := range []func(string) reply{exchange, script} {
		r.refusal(ask(reference[1]), schema.KindTokenConsumed, "token_used")
		r.refusal(ask(other), schema.KindUnauthenticated, "token_unknown")
		r.refusal(ask("x"), schema.KindUnauthenticated, "reference_malformed")
	}

	got := r.call(r.client(nil), http.MethodGet, h.bundle.Package.OCIRef, nil)
	assert.Equal(t, "the agent's package", string(got.body))
	got = r.call(r.client(nil), http.MethodGet, r.node+"/internal/v1/packages/sha256:00", nil)
	assert.Equal(t, http.StatusNotFound, got.status)

	r.refusal(r.bare(h, "/enroll", wire.EnrollRequest{Token: reference[1], CSR: newCSR(t, newKey(t), nil)}), schema.KindUnauthenticated, "token_unknown")
	key := newKey(t)
	h.take(t, r.bare(h, "/enroll", h.enrollment(t, key)), key)
	r.works(h)
	assert.Contains(t, r.audit(node.ID), "nodes.fetch_reference_used succeeded")
	assert.NotContains(t, r.log.String(), trust.TokenPrefix)
}
