package nodeapi_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestValidCertificate(t *testing.T) {
	s := newSite(t, &fakeStore{})
	for _, h2 := range []bool{true, false} {
		c := s.clientWith(s.cert(), h2, nil)
		for _, e := range endpoints() {
			a := call(t, c, e.method, s.path(e.path), e.body)
			assert.Less(t, a.status, 300, "%s: %s", e.path, a.body)
			assert.Equal(t, map[bool]int{true: 2, false: 1}[h2], a.proto)
		}
	}
}

// Every endpoint rejects every certificate but the node's own valid one, with its
// reason, the error envelope and a log line with the certificate's facts.
func TestCertificateRejections(t *testing.T) {
	s := newSite(t, &fakeStore{})
	foreign, other := newCA(t, "foreign CA"), s.node
	other.NodeID = schema.NewID()
	otherEnv := s.node
	otherEnv.Env = "prod"
	spoil := func(change func(*x509.Certificate)) *tls.Certificate { return s.nodeCA.leaf(t, s.node, change) }
	uri := func(text string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			u, err := url.Parse(text)
			require.NoError(t, err)
			c.URIs = []*url.URL{u}
		}
	}
	twin := newCA(t, "node CA 1") // the same name, another key
	retired := newCA(t, "node CA 0")
	s.issuer.retired = []*x509.Certificate{retired.cert}
	for name, c := range map[string]struct {
		cert   *tls.Certificate
		reason string
	}{
		"none":                {nil, schema.ReasonNoCertificate},
		"foreign CA":          {foreign.leaf(t, s.node, nil), schema.ReasonUnknownIssuer},
		"CA twin":             {twin.leaf(t, s.node, nil), schema.ReasonUnknownIssuer},
		"CA made again":       {twin.leaf(t, s.node, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(-25 * time.Hour) }), schema.ReasonIssuerRetired},
		"API's own CA":        {s.serverCA.leaf(t, s.node, nil), schema.ReasonUnknownIssuer},
		"retired CA":          {retired.leaf(t, s.node, nil), schema.ReasonIssuerRetired},
		"twin of a retired":   {newCA(t, "node CA 0").leaf(t, s.node, nil), schema.ReasonUnknownIssuer},
		"expired and retired": {retired.leaf(t, s.node, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), schema.ReasonIssuerRetired},
		"expired":             {spoil(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), schema.ReasonExpired},
		"of the future":       {spoil(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(10 * time.Minute) }), schema.ReasonExpired},
		"expired and foreign": {foreign.leaf(t, s.node, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), schema.ReasonUnknownIssuer},
		"for servers":         {spoil(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), schema.ReasonIdentityMismatch},
		"for anything":        {spoil(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }), schema.ReasonIdentityMismatch},
		"a CA":                {spoil(func(c *x509.Certificate) { c.IsCA = true }), schema.ReasonIdentityMismatch},
		"no name":             {spoil(func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"x"} }), schema.ReasonIdentityMismatch},
		"two names":           {spoil(func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }), schema.ReasonIdentityMismatch},
		"a DNS name too":      {spoil(func(c *x509.Certificate) { c.DNSNames = []string{"x"} }), schema.ReasonIdentityMismatch},
		"no SPIFFE id":        {spoil(uri("https://test/node/x/1")), schema.ReasonIdentityMismatch},
		"incarnation 0":       {spoil(uri("spiffe://test/node/" + s.node.NodeID + "/0")), schema.ReasonIdentityMismatch},
		"incarnation 01":      {spoil(uri("spiffe://test/node/" + s.node.NodeID + "/01")), schema.ReasonIdentityMismatch},
		"not a node":          {spoil(uri("spiffe://test/worker/" + s.node.NodeID + "/1")), schema.ReasonIdentityMismatch},
		"another node":        {s.nodeCA.leaf(t, other, nil), schema.ReasonIdentityMismatch},
		"another environment": {s.nodeCA.leaf(t, otherEnv, nil), schema.ReasonIdentityMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			client := s.client(c.cert)
			for _, e := range endpoints() {
				a := call(t, client, e.method, s.path(e.path), e.body, wire.HeaderCorrelationID, "refused")
				assert.Equal(t, http.StatusUnauthorized, a.status, e.path)
				r := a.refusal(t)
				assert.Equal(t, schema.KindInvalidNodeIdentity, r.Code)
				assert.Equal(t, c.reason, r.Reason, r.Message)
				assert.Equal(t, "refused", r.CorrelationID)
			}
		})
	}
	for reason, cases := range map[string]float64{schema.ReasonNoCertificate: 1, schema.ReasonUnknownIssuer: 5,
		schema.ReasonIssuerRetired: 3, schema.ReasonExpired: 2, schema.ReasonIdentityMismatch: 12} {
		assert.InDelta(t, float64(len(endpoints()))*cases, s.metric("gpuaas_identity_refusals_total", reason), 0, reason)
	}
}

// refusalLine is what the log says of a refused request.
type refusalLine struct {
	Status      int              `json:"status"`
	Code        string           `json:"code"`
	Reason      string           `json:"reason"`
	NodeID      string           `json:"node_id"`
	Certificate *trust.CertFacts `json:"certificate"`
}

// refusals returns the log lines of requests that were refused, by reason.
func (s *site) refusals() map[string]refusalLine {
	lines := map[string]refusalLine{}
	for text := range strings.Lines(s.log.String()) {
		var l refusalLine
		require.NoError(s.tb, json.Unmarshal([]byte(text), &l), text)
		if l.Status >= http.StatusBadRequest {
			lines[l.Reason] = l
		}
	}
	return lines
}

// The log distinguishes a missing or invalid identity, a fenced node and a forwarded
// identity, and contains the facts of the presented certificate.
func TestRejectionsLogCertificate(t *testing.T) {
	var fenced string
	s := newSite(t, &fakeStore{authenticate: func(id trust.Identity, f trust.CertFacts) (nodeapi.Caller, error) {
		if fenced != "" {
			return nodeapi.Caller{}, schema.NewError(schema.KindInvalidNodeIdentity, "fenced").WithReason(fenced)
		}
		return nodeapi.Caller{NodeID: id.NodeID}, nil
	}})
	foreign := newCA(t, "foreign CA").leaf(t, s.node, nil)
	retired := newCA(t, "node CA 0")
	s.issuer.retired = []*x509.Certificate{retired.cert}
	for reason, c := range map[string]struct {
		cert    *tls.Certificate
		headers []string
	}{
		schema.ReasonNoCertificate:    {},
		schema.ReasonUnknownIssuer:    {cert: foreign},
		schema.ReasonIssuerRetired:    {cert: retired.leaf(t, s.node, nil)},
		schema.ReasonExpired:          {cert: s.nodeCA.leaf(t, s.node, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) })},
		schema.ReasonIdentityMismatch: {cert: s.nodeCA.leaf(t, s.node, func(c *x509.Certificate) { c.URIs = nil })},
		schema.ReasonNodeLocked:       {cert: s.cert()},
		schema.ReasonNodeRemoved:      {cert: s.cert()},
		schema.ReasonSerialSuperseded: {cert: s.cert()},
		"forwarded_identity":          {cert: s.cert(), headers: []string{"X-Forwarded-Tls-Client-Cert", "MIIB"}},
	} {
		fenced = ""
		if reason == schema.ReasonNodeLocked || reason == schema.ReasonNodeRemoved || reason == schema.ReasonSerialSuperseded {
			fenced = reason
		}
		a := call(t, s.client(c.cert), http.MethodGet, s.path("/tasks/wait"), nil, c.headers...)
		require.Equal(t, reason, a.refusal(t).Reason)
		line := s.refusals()[reason]
		require.Equal(t, string(a.refusal(t).Code), line.Code)
		if c.cert == nil {
			require.Nil(t, line.Certificate)
			continue
		}
		require.NotNil(t, line.Certificate, reason)
		require.Equal(t, trust.CertFactsOf(c.cert.Leaf), *line.Certificate, reason)
		if len(c.headers) == 0 {
			require.Equal(t, s.node.NodeID, line.NodeID)
		}
	}
	require.Len(t, s.refusals(), 9, "each cause has its own reason")
}

func TestStoreRejections(t *testing.T) {
	for _, reason := range []string{schema.ReasonNodeRemoved, schema.ReasonNodeLocked, schema.ReasonSerialSuperseded} {
		s := newSite(t, &fakeStore{authenticate: func(trust.Identity, trust.CertFacts) (nodeapi.Caller, error) {
			return nodeapi.Caller{}, schema.NewError(schema.KindInvalidNodeIdentity, "no").WithReason(reason)
		}})
		c := s.client(s.cert())
		for _, e := range endpoints() {
			a := call(t, c, e.method, s.path(e.path), e.body)
			assert.Equal(t, http.StatusUnauthorized, a.status)
			assert.Equal(t, reason, a.refusal(t).Reason, e.path)
		}
	}
}

// The store receives the facts that the issuer's adapter stored.
func TestStoreReceivesCertificateFacts(t *testing.T) {
	var id trust.Identity
	var facts trust.CertFacts
	s := newSite(t, &fakeStore{authenticate: func(i trust.Identity, f trust.CertFacts) (nodeapi.Caller, error) {
		id, facts = i, f
		return nodeapi.Caller{NodeID: i.NodeID}, nil
	}})
	cert := s.cert()
	call(t, s.client(cert), http.MethodGet, s.path("/tasks/wait"), nil)
	assert.Equal(t, s.node, id)
	assert.Equal(t, trust.CertFactsOf(cert.Leaf), facts)
}

// An open connection is rejected when its CA or certificate is no longer valid.
func TestOpenConnectionIsReverified(t *testing.T) {
	for _, h2 := range []bool{true, false} {
		var ahead atomic.Int64
		s := newSiteWith(t, &fakeStore{}, func(c *nodeapi.Config) {
			c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		})
		next := newCA(t, "node CA 2")
		expiring := s.nodeCA.leaf(t, s.node, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
		c := s.clientWith(expiring, h2, nil)
		heartbeat := func() answer {
			reused := false
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
			a, err := try(ctx, c, http.MethodGet, s.path("/tasks/wait"), nil)
			require.NoError(t, err)
			if a.status != http.StatusNoContent {
				assert.True(t, reused, "the same connection")
			}
			return a
		}
		require.Equal(t, http.StatusNoContent, heartbeat().status)

		s.issuer.set(false, next.cert)
		assert.Equal(t, schema.ReasonUnknownIssuer, heartbeat().refusal(t).Reason, "the CA was distrusted")
		s.issuer.set(false, next.cert, s.nodeCA.cert)
		require.Equal(t, http.StatusNoContent, heartbeat().status)
		s.issuer.retire(next.cert)
		assert.Equal(t, schema.ReasonIssuerRetired, heartbeat().refusal(t).Reason, "the CA was retired")
		s.issuer.set(false, s.nodeCA.cert)
		require.Equal(t, http.StatusNoContent, heartbeat().status, "a rotation was rolled back")

		ahead.Store(int64(time.Hour + time.Second))
		assert.Equal(t, schema.ReasonExpired, heartbeat().refusal(t).Reason)
	}
}

// The cached certificate is valid only within the dates of every certificate of its
// chain, on a clock that was set back too.
func TestOpenConnectionExpiresWithItsRoot(t *testing.T) {
	for _, h2 := range []bool{true, false} {
		var now atomic.Pointer[time.Time]
		at := func(d time.Duration) { now.Store(new(time.Now().Add(d))) }
		at(0)
		s := newSiteWith(t, &fakeStore{}, func(c *nodeapi.Config) { c.Now = func() time.Time { return *now.Load() } })
		long := s.nodeCA.leaf(t, s.node, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-100*time.Hour), time.Now().Add(100*time.Hour)
		})
		c := s.clientWith(long, h2, nil)
		heartbeat := func() answer {
			return call(t, c, http.MethodGet, s.path("/tasks/wait"), nil)
		}
		require.Equal(t, http.StatusNoContent, heartbeat().status)
		at(23 * time.Hour)
		require.Equal(t, http.StatusNoContent, heartbeat().status)
		for _, d := range []time.Duration{25 * time.Hour, -25 * time.Hour} {
			at(d)
			assert.Equal(t, schema.ReasonUnknownIssuer, heartbeat().refusal(t).Reason, d)
			at(0)
			require.Equal(t, http.StatusNoContent, heartbeat().status)
		}
		at(101 * time.Hour)
		assert.Equal(t, http.StatusUnauthorized, heartbeat().status)
	}
}

func TestHandshake(t *testing.T) {
	s := newSite(t, &fakeStore{})
	t.Run("no resumption", func(t *testing.T) {
		cache := tls.NewLRUClientSessionCache(8)
		for range 3 {
			c := s.clientWith(s.cert(), false, func(cfg *tls.Config) { cfg.ClientSessionCache = cache })
			var state tls.ConnectionState
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				TLSHandshakeDone: func(cs tls.ConnectionState, _ error) { state = cs }})
			a, err := try(ctx, c, http.MethodGet, s.path("/tasks/wait"), nil)
			require.NoError(t, err)
			assert.Equal(t, http.StatusNoContent, a.status)
			assert.False(t, state.DidResume)
			assert.Equal(t, uint16(tls.VersionTLS13), state.Version)
		}
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		c := s.clientWith(s.cert(), false, func(cfg *tls.Config) { cfg.MaxVersion = tls.VersionTLS12 })
		_, err := try(t.Context(), c, http.MethodGet, s.path("/tasks/wait"), nil)
		assert.ErrorContains(t, err, "protocol version")
	})
	t.Run("acceptable CAs", func(t *testing.T) {
		retired := newCA(t, "node CA 0")
		s.issuer.retired = []*x509.Certificate{retired.cert}
		var names [][]byte
		cert := s.cert()
		c := s.clientWith(nil, false, func(cfg *tls.Config) {
			cfg.GetClientCertificate = func(i *tls.CertificateRequestInfo) (*tls.Certificate, error) {
				names = i.AcceptableCAs
				return cert, nil
			}
		})
		call(t, c, http.MethodGet, s.path("/tasks/wait"), nil)
		assert.ElementsMatch(t, [][]byte{s.nodeCA.cert.RawSubject, retired.cert.RawSubject}, names,
			"a node with a retired issuer presents its certificate and receives the reason")
	})
	t.Run("plain HTTP", func(t *testing.T) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "https://"))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, err = conn.Write([]byte("GET /api/v1/healthz HTTP/1.1\r\nHost: x\r\n\r\n"))
		require.NoError(t, err)
		buf := make([]byte, 64)
		n, _ := conn.Read(buf)
		assert.Contains(t, string(buf[:n]), "400 Bad Request")
	})
}

// A forwarded identity is rejected in every spelling, with and without a valid
// certificate, on every path.
func TestForwardedIdentity(t *testing.T) {
	s := newSite(t, &fakeStore{})
	for _, h2 := range []bool{true, false} {
		for _, cert := range []*tls.Certificate{nil, s.cert()} {
			c := s.clientWith(cert, h2, nil)
			for _, name := range []string{"Client-Cert", "client-cert", "CLIENT_CERT", "X-Client-Cert", "X_Client_Cert", "x-client_cert",
				"X-Forwarded-Client-Cert", "X_Forwarded_Client_Cert", "X-Forwarded-Tls-Client-Cert", "X-Forwarded-TLS-Client-Cert",
				"x_forwarded_tls-client_cert", "X-Forwarded-Tls-Client-Cert-Info", "Ssl-Client-Cert"} {
				for _, path := range []string{"/tasks/wait", "/enroll", "/nothing"} {
					method := http.MethodPost
					if path == "/tasks/wait" {
						method = http.MethodGet
					}
					a := call(t, c, method, s.path(path), nil, name, "MIIB")
					assert.Equal(t, http.StatusBadRequest, a.status, "%s %s", name, path)
					assert.Equal(t, "forwarded_identity", a.refusal(t).Reason)
				}
			}
		}
	}
	a := call(t, s.client(s.cert()), http.MethodGet, s.path("/tasks/wait"), nil, "Authorization", "Bearer old-wire")
	assert.Equal(t, http.StatusNoContent, a.status, "a bearer token is ignored")
	a = call(t, s.client(nil), http.MethodGet, s.path("/tasks/wait"), nil, "Authorization", "Bearer old-wire")
	assert.Equal(t, schema.ReasonNoCertificate, a.refusal(t).Reason, "and grants nothing")
}
