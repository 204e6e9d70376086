package nodeapi_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func csr(tb testing.TB, key crypto.Signer, change func(*x509.CertificateRequest)) string {
	tb.Helper()
	template := &x509.CertificateRequest{}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	require.NoError(tb, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func TestEnroll(t *testing.T) {
	var claim nodeapi.TokenClaim
	var stored trust.CertFacts
	s := newSite(t, &fakeStore{
		claim: func(c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
			claim = c
			return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: 7}, nil
		},
		pending: func(n nodeapi.NewIdentity) (int64, error) { stored = n.Cert; return 1, nil },
	})
	text, id, hash := trust.NewToken()
	key := newKey(t)
	a := call(t, s.client(nil), http.MethodPost, s.path("/enroll"),
		wire.EnrollRequest{Token: text, CSR: csr(t, key, nil), AgentVersion: "v1.2.3"}, wire.HeaderCorrelationID, "enroll-1")
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	assert.Equal(t, "no-store", a.header.Get("Cache-Control"))

	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	assert.Equal(t, nodeapi.TokenClaim{NodeID: s.node.NodeID, TokenID: id, Hash: hash, SPKI: schema.SHA256Hex(spki),
		CorrelationID: "enroll-1", AgentVersion: "v1.2.3", RemoteAddr: "127.0.0.1"}, claim)
	var answer wire.EnrollResponse
	require.NoError(t, json.Unmarshal(a.body, &answer))
	block, _ := pem.Decode([]byte(answer.Certificate))
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	assert.Equal(t, trust.CertFactsOf(leaf), stored)
	assert.Equal(t, trust.Identity{Env: env, NodeID: s.node.NodeID, Incarnation: 7}.URI(), leaf.URIs[0].String())
	assert.Equal(t, certPEM(s.nodeCA.cert), answer.CAChain)
	assert.InDelta(t, 1, s.metric("gpuaas_enrollments_total", "issued"), 0)
	assert.NotContains(t, s.log.String(), "gpuet_")
}

// A request that is rejected before the claim changes nothing, and the claim's own
// errors are returned unchanged.
func TestEnrollRejections(t *testing.T) {
	claims := 0
	s := newSite(t, &fakeStore{claim: func(nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
		claims++
		return nodeapi.ClaimResult{}, schema.NewError(schema.KindTokenConsumed, "used")
	}})
	token, _, _ := trust.NewToken()
	good := csr(t, newKey(t), nil)
	req := func(change func(*wire.EnrollRequest)) wire.EnrollRequest {
		r := wire.EnrollRequest{Token: token, CSR: good, AgentVersion: "v1"}
		change(&r)
		return r
	}
	for name, c := range map[string]struct {
		body   any
		kind   schema.Kind
		reason string
	}{
		"no token":           {req(func(r *wire.EnrollRequest) { r.Token = "" }), schema.KindUnauthenticated, "token_malformed"},
		"short token":        {req(func(r *wire.EnrollRequest) { r.Token = token[:len(token)-2] }), schema.KindUnauthenticated, "token_malformed"},
		"token with newline": {req(func(r *wire.EnrollRequest) { r.Token = token + "\n" }), schema.KindUnauthenticated, "token_malformed"},
		"bare prefix":        {req(func(r *wire.EnrollRequest) { r.Token = "gpuet_" }), schema.KindUnauthenticated, "token_malformed"},
		"no CSR":             {req(func(r *wire.EnrollRequest) { r.CSR = "" }), schema.KindInvalidRequest, "csr_pem"},
		"long version":       {req(func(r *wire.EnrollRequest) { r.AgentVersion = strings.Repeat("v", 65) }), schema.KindInvalidRequest, "bad_agent_version"},
		"unknown field":      {`{"token":"` + token + `","csr":"x","agent_version":"","admin":true}`, schema.KindInvalidRequest, "malformed_body"},
		"token as field":     {`{"` + token + `":1}`, schema.KindInvalidRequest, "malformed_body"},
		"repeated field":     {`{"token":"` + token + `","token":"` + token + `"}`, schema.KindInvalidRequest, "malformed_body"},
		"too large":          {`{"token":"` + token + `","csr":"` + strings.Repeat("x", wire.MaxBodyBytes) + `"}`, schema.KindInvalidRequest, "too_large"},
		"not JSON":           {token, schema.KindInvalidRequest, "malformed_body"},
		"no body":            {nil, schema.KindInvalidRequest, "malformed_body"},
	} {
		t.Run(name, func(t *testing.T) {
			a := call(t, s.client(nil), http.MethodPost, s.path("/enroll"), c.body)
			r := a.refusal(t)
			assert.Equal(t, c.kind, r.Code)
			assert.Equal(t, c.kind.Info().HTTP, a.status)
			assert.Equal(t, c.reason, r.Reason)
			assert.NotContains(t, string(a.body), "gpuet_")
		})
	}
	assert.Zero(t, claims)
	a := call(t, s.client(nil), http.MethodPost, s.base+"/internal/v1/nodes/gpu-17/enroll", req(func(*wire.EnrollRequest) {}))
	assert.Equal(t, "bad_node_id", a.refusal(t).Reason)
	a = call(t, s.client(nil), http.MethodPost, s.path("/enroll"), req(func(*wire.EnrollRequest) {}))
	assert.Equal(t, schema.KindTokenConsumed, a.refusal(t).Code)
	assert.Equal(t, 1, claims)
	assert.NotContains(t, s.log.String(), token)
	assert.NotContains(t, s.log.String(), token[6:42], "not even its public part in a refused body")
}

func TestCSRRejections(t *testing.T) {
	s := newSite(t, &fakeStore{claim: func(nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
		t.Error("claimed")
		return nodeapi.ClaimResult{}, nil
	}})
	token, _, _ := trust.NewToken()
	p256 := newKey(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	good := csr(t, p256, nil)
	block, _ := pem.Decode([]byte(good))
	torn := append([]byte(nil), block.Bytes...)
	torn[len(torn)-1] ^= 1
	extension := func(id asn1.ObjectIdentifier, value []byte) func(*x509.CertificateRequest) {
		return func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: id, Critical: true, Value: value}}
		}
	}
	for name, c := range map[string]struct{ csr, reason string }{
		"subject":    {csr(t, p256, func(r *x509.CertificateRequest) { r.Subject.CommonName = s.node.NodeID }), "csr_subject"},
		"DNS name":   {csr(t, p256, func(r *x509.CertificateRequest) { r.DNSNames = []string{"api.internal"} }), "csr_san"},
		"IP address": {csr(t, p256, func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(1, 2, 3, 4)} }), "csr_san"},
		"e-mail":     {csr(t, p256, func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} }), "csr_san"},
		"URI": {csr(t, p256, func(r *x509.CertificateRequest) {
			r.URIs = []*url.URL{{Scheme: "spiffe", Host: env, Path: "/node/x/1"}}
		}), "csr_san"},
		"CA flag":            {csr(t, p256, extension(asn1.ObjectIdentifier{2, 5, 29, 19}, []byte{0x30, 3, 1, 1, 0xff})), "csr_ca"},
		"key usage":          {csr(t, p256, extension(asn1.ObjectIdentifier{2, 5, 29, 15}, []byte{3, 2, 1, 6})), "csr_extension"},
		"server EKU":         {csr(t, p256, extension(asn1.ObjectIdentifier{2, 5, 29, 37}, []byte{0x30, 10, 6, 8, 0x2b, 6, 1, 5, 5, 7, 3, 1})), "csr_extension"},
		"unknown extension":  {csr(t, p256, extension(asn1.ObjectIdentifier{1, 2, 3, 4}, []byte{5, 0})), "csr_extension"},
		"challenge password": {csrWithAttribute(t, p256), "csr_attribute"},
		"P-384":              {csr(t, p384, nil), "csr_key"},
		"Ed25519":            {csr(t, ed, nil), "csr_key"},
		"RSA":                {csr(t, rsaKey, nil), "csr_key"},
		"bad signature":      {string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: torn})), "csr_signature"},
		"two blocks":         {good + good, "csr_pem"},
		"leading text":       {"hello\n" + good, "csr_pem"},
		"other block":        {strings.ReplaceAll(good, "CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"), "csr_pem"},
		"PEM headers":        {strings.Replace(good, "-----\n", "-----\nA: b\n\n", 1), "csr_pem"},
		"a certificate":      {certPEM(s.nodeCA.cert), "csr_pem"},
		"not DER":            {string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})), "csr_malformed"},
		"large":              {good + strings.Repeat("\n", 5000), "csr_size"},
	} {
		t.Run(name, func(t *testing.T) {
			a := call(t, s.client(nil), http.MethodPost, s.path("/enroll"), wire.EnrollRequest{Token: token, CSR: c.csr})
			assert.Equal(t, http.StatusBadRequest, a.status)
			assert.Equal(t, c.reason, a.refusal(t).Reason)
		})
	}
}

// csrWithAttribute makes a request with a challengePassword, which the standard
// library neither writes nor shows.
func csrWithAttribute(tb testing.TB, key *ecdsa.PrivateKey) string {
	tb.Helper()
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(tb, err)
	type attribute struct {
		ID     asn1.ObjectIdentifier
		Values []asn1.RawValue `asn1:"set"`
	}
	type info struct {
		Version    int
		Subject    asn1.RawValue
		Key        asn1.RawValue
		Attributes []attribute `asn1:"tag:0,set"`
	}
	tbs, err := asn1.Marshal(info{Subject: asn1.RawValue{FullBytes: []byte{0x30, 0}}, Key: asn1.RawValue{FullBytes: spki},
		Attributes: []attribute{{ID: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 7}, Values: []asn1.RawValue{{FullBytes: []byte{0x0c, 1, 'x'}}}}}})
	require.NoError(tb, err)
	digest := crypto.SHA256.New()
	digest.Write(tbs)
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest.Sum(nil))
	require.NoError(tb, err)
	der, err := asn1.Marshal(struct {
		Info      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: tbs}, pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}},
		asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}})
	require.NoError(tb, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// If Vault is unavailable after the claim, the error asks the agent to repeat the
// request with the same key.
func TestEnrollWhileVaultIsUnavailable(t *testing.T) {
	var claims []nodeapi.TokenClaim
	s := newSite(t, &fakeStore{claim: func(c nodeapi.TokenClaim) (nodeapi.ClaimResult, error) {
		claims = append(claims, c)
		return nodeapi.ClaimResult{TokenID: c.TokenID, NodeID: c.NodeID, Incarnation: 1}, nil
	}})
	token, _, _ := trust.NewToken()
	req := wire.EnrollRequest{Token: token, CSR: csr(t, newKey(t), nil)}
	s.issuer.set(true, s.nodeCA.cert)
	a := call(t, s.client(nil), http.MethodPost, s.path("/enroll"), req)
	assert.Equal(t, http.StatusServiceUnavailable, a.status)
	assert.Contains(t, a.refusal(t).Message, "repeat the request")
	s.issuer.set(false, s.nodeCA.cert)
	a = call(t, s.client(nil), http.MethodPost, s.path("/enroll"), req)
	assert.Equal(t, http.StatusOK, a.status, string(a.body))
	require.Len(t, claims, 2)
	assert.Equal(t, claims[0].SPKI, claims[1].SPKI)
	assert.InDelta(t, 1, s.metric("gpuaas_enrollments_total", "service_unavailable"), 0)
}
