package server

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestEnrollment goes from the operator's request to a polling agent.
func TestEnrollment(t *testing.T) {
	r := newCluster(t).replica()
	a := r.ask(http.MethodPost, "/nodes", `{
"host":"10.1.2.3",
"port":22,
"ssh_username":"hpcadmin",
"ssh_public_key":"ssh-ed25519 AAAA...",
"sku":"h100",
"gpus_total":8,
"region_code":"region-1",
"onboarding_mode":"manual",
"probe":true
}`)
	require.Equal(t, http.StatusCreated, a.status, string(a.body))
	var node wire.NodeView
	a.into(t, &node)
	assert.True(t, schema.IsID(node.ID))
	assert.Equal(t, "/api/v1/admin/nodes/"+node.ID, a.header.Get("Location"))

	a = r.ask(http.MethodPost, "/nodes/10.1.2.3/enroll", wire.LifecycleRequest{Reason: "new node"})
	require.Equal(t, http.StatusAccepted, a.status, string(a.body))
	assert.Equal(t, "no-store", a.header.Get("Cache-Control"))
	var started wire.LifecycleResponse
	a.into(t, &started)
	assert.Equal(t, lifecycle.NodeBootstrapIssued, started.Node.State)
	assert.Equal(t, lifecycle.OperationAccepted, started.Operation.Status)
	b := started.BootstrapBundle
	require.NotNil(t, b)
	_, err := trust.ParseTaskTrust(b.TaskSigningPubkeys)
	require.NoError(t, err)
	assert.Equal(t, trust.BootstrapBundle{NodeID: node.ID, EnrollmentToken: b.EnrollmentToken, APIURL: r.node, Env: testEnv, WorkloadDriver: "systemd",
		TaskSigningPubkeys: b.TaskSigningPubkeys, CABundlePath: trust.DefaultCABundlePath,
		NodeCertCABundlePath: trust.DefaultNodeCABundlePath, CertPath: trust.DefaultCertPath, KeyPath: trust.DefaultKeyPath,
		CABundlePEM: r.ca.pem(), CABundleFingerprint: trust.Fingerprint(r.ca.pem()), NodeCertCABundlePEM: r.ca.pem(), ExpiresAt: b.ExpiresAt}, *b)

	key := newKey(t)
	m := machine{id: node.ID, bundle: *b}
	m.cert = certificate(t, r.enroll(node.ID, wire.EnrollRequest{Token: b.EnrollmentToken, CSR: newCSR(t, key, nil), AgentVersion: "v1"}), key)
	assert.Equal(t, lifecycle.NodeEnrolling, r.show(node.ID).State)
	assert.Equal(t, http.StatusNoContent, r.wait(m, 0).status)
	assert.Nil(t, r.show(node.ID).LastHeartbeatAt)
	a = r.report(m, wire.Heartbeat{AgentVersion: "v1", BootID: "b", Phase: wire.PhaseReady, At: time.Now()})
	assert.Equal(t, http.StatusNoContent, a.status, string(a.body))
	shown := r.show("10.1.2.3")
	require.NotNil(t, shown.Identity)
	assert.Equal(t, schema.SHA256Hex(spki(t, m)), shown.Identity.SPKI)
	assert.NotNil(t, shown.LastHeartbeatAt)

	var events []lifecycle.AgentEventName
	messages, err := r.store.Tasks.Outbox(r.listener).Take(t.Context(), 10, nil)
	require.NoError(t, err)
	for _, m := range messages {
		events = append(events, m.Event.Event)
	}
	assert.Equal(t, []lifecycle.AgentEventName{lifecycle.EventBundleIssued, lifecycle.EventTokenClaimed, lifecycle.EventFirstPoll}, events)
	assert.Equal(t, []string{"nodes.register succeeded", "nodes.enroll accepted", "nodes.token_issued succeeded",
		"nodes.token_claimed succeeded", "nodes.certificate_issued succeeded", "nodes.certificate_promoted succeeded"}, r.audit(node.ID))
	assert.NotContains(t, r.log.String(), b.EnrollmentToken)
	assert.NotContains(t, r.log.String(), adminToken)
}

func spki(t *testing.T, m machine) []byte {
	t.Helper()
	cert, err := x509.ParseCertificate(m.cert.Certificate[0])
	require.NoError(t, err)
	return cert.RawSubjectPublicKeyInfo
}

func (r *replica) show(node string) wire.NodeView {
	r.tb.Helper()
	a := r.ask(http.MethodGet, "/nodes/"+node, nil)
	require.Equal(r.tb, http.StatusOK, a.status, string(a.body))
	var v wire.NodeView
	a.into(r.tb, &v)
	return v
}

// audit returns a stream's actions and results, read through the admin API, after
// checking the hash chain.
func (r *replica) audit(stream string) []string {
	r.tb.Helper()
	a := r.ask(http.MethodGet, "/audit/streams/"+stream+"?limit=1000", nil)
	require.Equal(r.tb, http.StatusOK, a.status, string(a.body))
	var page wire.AuditStreamPage
	a.into(r.tb, &page)
	require.NoError(r.tb, audit.VerifyChain(nil, page.Events))
	var out []string
	for _, e := range page.Events {
		out = append(out, e.Action+" "+e.Result)
	}
	return out
}

// A request whose answer was lost can be repeated with the same key until the
// certificate is first used. Then the token is consumed.
func TestLostAnswerIsRepeatable(t *testing.T) {
	r := newCluster(t).replica()
	m := r.bundle()
	key := newKey(t)
	req := wire.EnrollRequest{Token: m.bundle.EnrollmentToken, CSR: newCSR(t, key, nil)}
	lost := certificate(t, r.enroll(m.id, req), key)
	req.CSR = newCSR(t, key, nil) // a new request of the same key
	m.cert = certificate(t, r.enroll(m.id, req), key)

	a := r.call(r.client(lost), http.MethodGet, r.url(m, "/tasks/wait"), nil)
	assert.Equal(t, schema.ReasonSerialSuperseded, a.refusal(t).Reason, "the certificate of the lost answer was replaced")
	a = r.enroll(m.id, wire.EnrollRequest{Token: m.bundle.EnrollmentToken, CSR: newCSR(t, newKey(t), nil)})
	assert.Equal(t, schema.KindTokenConsumed, a.refusal(t).Code, "another key")
	require.Equal(t, http.StatusNoContent, r.wait(m, 0).status)
	a = r.enroll(m.id, req)
	assert.Equal(t, http.StatusConflict, a.status)
	assert.Equal(t, schema.KindTokenConsumed, a.refusal(t).Code, "after the first use")
}

// A refused enrollment leaves the node unchanged.
func TestRefusedEnrollments(t *testing.T) {
	r := newCluster(t).replica()
	other := r.bundle()
	extension := func(id asn1.ObjectIdentifier, value []byte) func(*x509.CertificateRequest) {
		return func(c *x509.CertificateRequest) { c.ExtraExtensions = []pkix.Extension{{Id: id, Value: value}} }
	}
	for name, c := range map[string]struct {
		req    func(m machine) any
		kind   schema.Kind
		reason string
	}{
		"foreign token": {func(machine) any {
			return wire.EnrollRequest{Token: other.bundle.EnrollmentToken, CSR: newCSR(t, newKey(t), nil)}
		}, schema.KindUnauthenticated, "token_foreign"},
		"wrong secret": {func(m machine) any {
			text, _, _ := trust.NewToken()
			forged := m.bundle.EnrollmentToken[:43] + text[43:]
			return wire.EnrollRequest{Token: forged, CSR: newCSR(t, newKey(t), nil)}
		}, schema.KindUnauthenticated, "token_unknown"},
		"unknown token": {func(machine) any {
			text, _, _ := trust.NewToken()
			return wire.EnrollRequest{Token: text, CSR: newCSR(t, newKey(t), nil)}
		}, schema.KindUnauthenticated, "token_unknown"},
		"malformed token": {func(m machine) any {
			return wire.EnrollRequest{Token: m.bundle.EnrollmentToken + "A", CSR: newCSR(t, newKey(t), nil)}
		}, schema.KindUnauthenticated, "token_malformed"},
		"CSR with a name": {func(m machine) any {
			return wire.EnrollRequest{Token: m.bundle.EnrollmentToken, CSR: newCSR(t, newKey(t), func(c *x509.CertificateRequest) { c.DNSNames = []string{"api.internal"} })}
		}, schema.KindInvalidRequest, "csr_san"},
		"CSR with a CA flag": {func(m machine) any {
			return wire.EnrollRequest{Token: m.bundle.EnrollmentToken, CSR: newCSR(t, newKey(t), extension(asn1.ObjectIdentifier{2, 5, 29, 19}, []byte{0x30, 3, 1, 1, 0xff}))}
		}, schema.KindInvalidRequest, "csr_ca"},
		"oversized body": {func(m machine) any {
			return `{"token":"` + m.bundle.EnrollmentToken + `","csr":"` + strings.Repeat("x", wire.MaxBodyBytes) + `"}`
		}, schema.KindInvalidRequest, "too_large"},
		"unknown field": {func(m machine) any {
			return `{"token":"` + m.bundle.EnrollmentToken + `","role":"admin"}`
		}, schema.KindInvalidRequest, "malformed_body"},
	} {
		t.Run(name, func(t *testing.T) {
			m := r.bundle()
			before, trail := r.show(m.id), r.audit(m.id)
			a := r.enroll(m.id, c.req(m))
			e := a.refusal(t)
			assert.Equal(t, c.kind, e.Code)
			assert.Equal(t, c.reason, e.Reason)
			assert.Equal(t, c.kind.Info().HTTP, a.status)
			assert.Equal(t, before, r.show(m.id), "nothing changed")
			assert.Equal(t, trail, r.audit(m.id))
			key := newKey(t)
			certificate(t, r.enroll(m.id, wire.EnrollRequest{Token: m.bundle.EnrollmentToken, CSR: newCSR(t, key, nil)}), key)
		})
	}
	assert.Contains(t, r.audit(other.id), "nodes.token_refused refused", "the refusal of a foreign token is audited with the token's own node")
	key := newKey(t)
	certificate(t, r.enroll(other.id, wire.EnrollRequest{Token: other.bundle.EnrollmentToken, CSR: newCSR(t, key, nil)}), key)
	assert.NotContains(t, r.log.String(), trust.TokenPrefix)
}

func TestExpiredToken(t *testing.T) {
	r := newCluster(t).replica()
	m := r.bundle()
	text, id, hash := trust.NewToken()
	require.NoError(t, r.store.Identities.IssueToken(t.Context(), trust.MintedToken{NodeID: m.id, TokenID: id, Hash: hash,
		Purpose: trust.PurposeEnroll, ExpiresAt: time.Now().Add(-time.Second)}, audit.Subject{Actor: "test"}))
	a := r.enroll(m.id, wire.EnrollRequest{Token: text, CSR: newCSR(t, newKey(t), nil)})
	assert.Equal(t, http.StatusGone, a.status)
	assert.Equal(t, schema.KindTokenExpired, a.refusal(t).Code)
	a = r.enroll(m.id, wire.EnrollRequest{Token: m.bundle.EnrollmentToken, CSR: newCSR(t, newKey(t), nil)})
	assert.Equal(t, schema.KindTokenConsumed, a.refusal(t).Code, "the earlier token was voided")
	trail := r.audit(m.id)
	assert.Equal(t, []string{"nodes.token_refused refused", "nodes.token_refused refused"}, trail[len(trail)-2:])
}

// The same idempotency key returns a new bundle while the operation runs, and none
// after it has ended.
func TestRepeatedBundle(t *testing.T) {
	r := newCluster(t).replica()
	node := r.register()
	var first, second wire.LifecycleResponse
	r.ask(http.MethodPost, "/nodes/"+node.ID+"/enroll", "", wire.HeaderIdempotencyKey, "k").into(t, &first)
	a := r.ask(http.MethodPost, "/nodes/"+node.ID+"/enroll", wire.LifecycleRequest{})
	assert.Equal(t, schema.KindOperationInProgress, a.refusal(t).Code, "another operation")
	r.ask(http.MethodPost, "/nodes/"+node.ID+"/enroll", "", wire.HeaderIdempotencyKey, "k").into(t, &second)
	assert.Equal(t, first.Operation.OperationID, second.Operation.OperationID)
	assert.NotEqual(t, first.BootstrapBundle.EnrollmentToken, second.BootstrapBundle.EnrollmentToken)
	a = r.enroll(node.ID, wire.EnrollRequest{Token: first.BootstrapBundle.EnrollmentToken, CSR: newCSR(t, newKey(t), nil)})
	assert.Equal(t, "token_voided", a.refusal(t).Reason)

	r.finish(node.ID, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeRegistered})
	var over wire.LifecycleResponse
	r.ask(http.MethodPost, "/nodes/"+node.ID+"/enroll", "", wire.HeaderIdempotencyKey, "k").into(t, &over)
	assert.Equal(t, first.Operation.OperationID, over.Operation.OperationID)
	assert.Equal(t, lifecycle.OperationCanceled, over.Operation.Status)
	assert.Nil(t, over.BootstrapBundle)
	block, _ := pem.Decode([]byte(second.BootstrapBundle.CABundlePEM))
	require.NotNil(t, block)
}
