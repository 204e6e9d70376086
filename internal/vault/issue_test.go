package vault

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/csrtest"
)

func TestIssue(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	key, id := csrtest.Key(t), nodeIdentity()
	csr := csrtest.New(t, x509.CertificateRequest{}, key)
	issued, err := c.Issue(t.Context(), csr, id)
	require.NoError(t, err)

	certs, err := parseCerts(issued.LeafPEM)
	require.NoError(t, err)
	require.Len(t, certs, 1)
	leaf := certs[0]
	require.Equal(t, id.URI(), leaf.URIs[0].String())
	back, err := trust.ParseIdentity(leaf.URIs[0])
	require.NoError(t, err)
	require.Equal(t, id, back)
	require.Empty(t, leaf.Subject.String())
	require.Empty(t, leaf.DNSNames)
	require.Empty(t, leaf.IPAddresses)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, leaf.ExtKeyUsage)
	require.Equal(t, x509.KeyUsageDigitalSignature, leaf.KeyUsage)
	require.False(t, leaf.IsCA)
	require.True(t, leaf.BasicConstraintsValid)
	require.True(t, key.PublicKey.Equal(leaf.PublicKey))
	require.InDelta(t, (nodeCertTTL + backdate).Seconds(), leaf.NotAfter.Sub(leaf.NotBefore).Seconds(), 2)
	require.WithinDuration(t, time.Now().Add(-backdate), leaf.NotBefore, time.Minute)

	require.Equal(t, trust.CertFactsOf(leaf), issued.Facts)
	require.Equal(t, "CN=gpuaas test node CA G1", issued.Facts.Issuer)
	require.Equal(t, id.URI(), issued.Facts.URI)
	require.Regexp(t, "^[0-9a-f]{30,40}$", issued.Facts.Serial)
	require.Equal(t, schema.SHA256Hex(csr.RawSubjectPublicKeyInfo), issued.Facts.SPKI)

	roots, err := c.Roots(t.Context())
	require.NoError(t, err)
	require.Len(t, roots, 1)
	require.True(t, roots[0].MaxPathLenZero)
	chain, err := parseCerts(issued.ChainPEM)
	require.NoError(t, err)
	require.Equal(t, roots[0].Raw, chain[0].Raw)
	serverCA, err := c.ServerCA(t.Context())
	require.NoError(t, err)
	nodeCA, err := c.NodeCA(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, nodeCA, serverCA)
	require.Equal(t, nodeCA, issued.ChainPEM)

	// Vault keeps no record of it: only the CA's certificate, and no lease.
	require.Len(t, b.list(t, "pki-node/certs"), 1)
	leases, err := b.Root(t).Logical().List("sys/leases/lookup/pki-node/")
	require.NoError(t, err)
	require.Nil(t, leases)

	// A repeated request for the same key issues another certificate.
	again, err := c.Issue(t.Context(), csr, id)
	require.NoError(t, err)
	require.NotEqual(t, issued.Facts.Serial, again.Facts.Serial)
	require.Equal(t, issued.Facts.SPKI, again.Facts.SPKI)
}

// Issue rejects invalid requests without a call to Vault.
func TestIssueRejectsBeforeVault(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	csr := x509.CertificateRequest{}
	csr.DNSNames = []string{"node"}
	_, err := c.Issue(t.Context(), csrtest.New(t, csr, csrtest.Key(t)), nodeIdentity())
	requireKind(t, err, schema.KindInvalidRequest, "csr_san")
	good := csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t))
	for _, id := range []trust.Identity{
		{Env: "prod", NodeID: schema.NewID(), Incarnation: 1},
		{Env: testEnv, NodeID: "x/y", Incarnation: 1},
		{Env: testEnv, NodeID: schema.NewID() + ",spiffe://test/node/x/1", Incarnation: 1},
		{Env: testEnv, NodeID: schema.NewID(), Incarnation: 0},
		{},
	} {
		_, err := c.Issue(t.Context(), good, id)
		requireKind(t, err, schema.KindInternal, "")
	}
	require.Zero(t, b.calls.of("issue"))
}

// Issue detects a loosened role by the certificates that it issues.
func TestIssueChecksCertificate(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	role, err := b.Root(t).Logical().Read("pki-node/roles/node")
	require.NoError(t, err)
	for name, change := range map[string]map[string]any{
		"server use":   {"server_flag": true},
		"code signing": {"code_signing_flag": true},
		"key usage":    {"key_usage": "DigitalSignature,CertSign"},
		"long life":    {"ttl": "100h", "max_ttl": "100h"},
		"subject":      {"organization": "system:masters"},
		"no CA flag":   {"basic_constraints_valid_for_non_ca": false},
	} {
		t.Run(name, func(t *testing.T) {
			loosened := maps.Clone(role.Data)
			maps.Copy(loosened, change)
			b.write(t, "pki-node/roles/node", loosened)
			_, err := c.Issue(t.Context(), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), nodeIdentity())
			requireKind(t, err, schema.KindInternal, "")
			require.ErrorContains(t, err, "discarded a certificate")
		})
	}
	require.NoError(t, b.install.setup(t), "setup tightens it again")
	_, err = c.Issue(t.Context(), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), nodeIdentity())
	require.NoError(t, err)
}

// A retired issuer is no longer a root, and its certificates are rejected.
func TestRetiredIssuer(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	b.write(t, "pki-node/root/generate/internal", map[string]any{
		"common_name": "gpuaas test node CA G2", "issuer_name": "g2", "key_type": "ec", "key_bits": 256, "ttl": "87600h",
	})
	_, err := b.Root(t).Logical().JSONMergePatch(t.Context(), "pki-node/issuer/g1", map[string]any{"usage": "read-only,crl-signing"})
	require.NoError(t, err)
	roots, err := c.Roots(t.Context())
	require.NoError(t, err)
	require.Len(t, roots, 1)
	require.Equal(t, "gpuaas test node CA G2", roots[0].Subject.CommonName)
	retired, err := c.Retired(t.Context())
	require.NoError(t, err)
	require.Len(t, retired, 1)
	require.Equal(t, "gpuaas test node CA G1", retired[0].Subject.CommonName)
	_, err = c.Issue(t.Context(), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), nodeIdentity())
	require.Error(t, err, "the role still names g1")
}

func TestLeafFaults(t *testing.T) {
	t.Parallel()
	key, id := csrtest.Key(t), nodeIdentity()
	caKey := csrtest.Key(t)
	good := func() *x509.Certificate {
		return &x509.Certificate{
			SerialNumber:          big.NewInt(7),
			NotBefore:             time.Now().Add(-backdate),
			NotAfter:              time.Now().Add(nodeCertTTL),
			KeyUsage:              x509.KeyUsageDigitalSignature,
			ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			BasicConstraintsValid: true,
			URIs:                  mustURIs(t, id.URI()),
		}
	}
	parent := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, SubjectKeyId: []byte{1}}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	want := leafSpec{spki: spki, names: []string{id.URI()}, usage: x509.ExtKeyUsageClientAuth, lifetime: nodeCertTTL}
	sign := func(c *x509.Certificate) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), caKey)
		require.NoError(t, err)
		out, err := x509.ParseCertificate(der)
		require.NoError(t, err)
		return out
	}
	require.Empty(t, want.fault(sign(good())))
	for name, change := range map[string]func(*x509.Certificate){
		"subject":      func(c *x509.Certificate) { c.Subject.CommonName = "x" },
		"no URI":       func(c *x509.Certificate) { c.URIs = nil },
		"other URI":    func(c *x509.Certificate) { c.URIs = mustURIs(t, nodeIdentity().URI()) },
		"two URIs":     func(c *x509.Certificate) { c.URIs = mustURIs(t, id.URI(), id.URI()) },
		"DNS name":     func(c *x509.Certificate) { c.DNSNames = []string{"a"} },
		"address":      func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(1, 2, 3, 4)} },
		"e-mail":       func(c *x509.Certificate) { c.EmailAddresses = []string{"a@b"} },
		"CA":           func(c *x509.Certificate) { c.IsCA = true },
		"no CA flag":   func(c *x509.Certificate) { c.BasicConstraintsValid = false },
		"key usage":    func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign },
		"server":       func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) },
		"any use":      func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} },
		"unknown use":  func(c *x509.Certificate) { c.UnknownExtKeyUsage = append(c.UnknownExtKeyUsage, []int{1, 2, 3}) },
		"issuer URL":   func(c *x509.Certificate) { c.IssuingCertificateURL = []string{"https://vault.internal/ca"} },
		"OCSP URL":     func(c *x509.Certificate) { c.OCSPServer = []string{"https://vault.internal/ocsp"} },
		"CRL URL":      func(c *x509.Certificate) { c.CRLDistributionPoints = []string{"https://vault.internal/crl"} },
		"lives longer": func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := good()
			change(c)
			require.NotEmpty(t, want.fault(sign(c)))
		})
	}
	other := want
	other.spki = append([]byte{}, spki...)
	other.spki[len(spki)-1] ^= 1
	require.Equal(t, "another key", other.fault(sign(good())))
}

func TestServerCertificate(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	source, err := c.ServerCertificate(t.Context())
	require.NoError(t, err)
	served, err := source.GetCertificate(nil)
	require.NoError(t, err)
	require.Len(t, served.Certificate, 1, "the root stays at home")
	leaf := source.Leaf()
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, leaf.ExtKeyUsage)
	require.InDelta(t, (serverCertTTL + backdate).Seconds(), leaf.NotAfter.Sub(leaf.NotBefore).Seconds(), 2)

	// A client with the bundle's CA accepts it for each name, and for no other.
	serverCA, err := c.ServerCA(t.Context())
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM([]byte(serverCA)))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: source.GetCertificate})
	require.NoError(t, err)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _ = conn.(*tls.Conn).Handshake(); _ = conn.Close() }()
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	dial := func(name string) error {
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{RootCAs: pool, ServerName: name})
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	for _, name := range []string{"localhost", "api.test", "127.0.0.1", "::1"} {
		require.NoError(t, dial(name), name)
	}
	require.Error(t, dial("other.test"))
	require.Error(t, dial("10.0.0.1"))
}

// The server certificate is renewed, and the old one stays in use while Vault is
// unavailable.
func TestServerCertificateRenews(t *testing.T) {
	b := prepared(t)
	role, err := b.Root(t).Logical().Read("pki-api/roles/api")
	require.NoError(t, err)
	role.Data["ttl"], role.Data["max_ttl"], role.Data["not_before_duration"] = "6s", "6s", "1s"
	b.write(t, "pki-api/roles/api", role.Data)
	c := b.login(t, "api")
	source, err := c.ServerCertificate(t.Context())
	require.NoError(t, err)
	b.Seal(t)
	first := source.Leaf()
	harness.Eventually(t, "a failed renewal", func() bool { return strings.Contains(b.log.String(), "cannot renew the server certificate") })
	require.Equal(t, first, source.Leaf())
	b.Unseal(t)
	harness.Eventually(t, "a renewal", func() bool { return !first.Equal(source.Leaf()) })
	require.NotEqual(t, trust.CertFactsOf(first).SPKI, trust.CertFactsOf(source.Leaf()).SPKI, "with a new key")
}

func TestRootsAreCachedAndRefreshed(t *testing.T) {
	b := prepared(t)
	c := b.loginWith(t, b.config("api"))
	c.nodeCAs.every = time.Millisecond
	_, err := c.Roots(t.Context())
	require.NoError(t, err)
	b.write(t, "pki-node/root/generate/internal", map[string]any{
		"common_name": "gpuaas test node CA G2", "issuer_name": "g2", "key_type": "ec", "key_bits": 256, "ttl": "87600h",
	})
	harness.Eventually(t, "two roots", func() bool {
		roots, err := c.Roots(t.Context())
		return err == nil && len(roots) == 2
	})

	b.calls = &calls{} // the first client still refreshes
	slow := b.login(t, "api")
	_, err = slow.Roots(t.Context())
	require.NoError(t, err)
	before := b.calls.of("issuers")
	for range 100 {
		_, err = slow.Roots(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, before, b.calls.of("issuers"))
}

func TestRootsAreRereadOnRequest(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	c.nodeCAs.every = time.Hour
	_, err := c.Roots(t.Context())
	require.NoError(t, err)
	b.write(t, "pki-node/root/generate/internal", map[string]any{
		"common_name": "gpuaas test node CA G2", "issuer_name": "g2", "key_type": "ec", "key_bits": 256, "ttl": "87600h",
	})
	c.RereadNodeCAs()
	harness.Eventually(t, "two roots", func() bool {
		roots, err := c.Roots(t.Context())
		return err == nil && len(roots) == 2
	})
}

func mustURIs(t *testing.T, texts ...string) []*url.URL {
	t.Helper()
	var out []*url.URL
	for _, text := range texts {
		u, err := url.Parse(text)
		require.NoError(t, err)
		out = append(out, u)
	}
	return out
}
