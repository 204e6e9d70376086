package nodeapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// identityOf makes a root and a node's certificate of it.
func identityOf(tb testing.TB, id trust.Identity) (root, leaf *x509.Certificate) {
	tb.Helper()
	uri, err := url.Parse(id.URI())
	require.NoError(tb, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	now := time.Now()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	node := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		URIs: []*url.URL{uri}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	out := make([]*x509.Certificate, 2)
	for i, template := range []*x509.Certificate{ca, node} {
		der, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), key)
		require.NoError(tb, err)
		out[i], err = x509.ParseCertificate(der)
		require.NoError(tb, err)
	}
	return out[0], out[1]
}

// The cache verifies a connection's certificate once per CA pool: the test empties
// the pool in place, which only a second verification would notice.
func TestCertificateCacheVerifiesOnce(t *testing.T) {
	id := trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}
	root, leaf := identityOf(t, id)
	known := &caPool{roots: newPool([]*x509.Certificate{root}), retiredRoots: newPool()}
	state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	c := new(certificateCache)
	first, err := c.verify(state, known, time.Now())
	require.NoError(t, err)
	require.Equal(t, peer{id: id, facts: trust.CertFactsOf(leaf)}, first)
	known.roots = newPool()
	again, err := c.verify(state, known, time.Now())
	require.NoError(t, err)
	require.Equal(t, first, again)

	_, err = c.verify(state, &caPool{roots: newPool(), retiredRoots: newPool()}, time.Now())
	require.Error(t, err, "another CA pool")
	_, err = c.verify(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{new(*leaf)}}, known, time.Now())
	require.Error(t, err, "another certificate")
	_, err = c.verify(&tls.ConnectionState{}, known, time.Now())
	require.Equal(t, schema.ReasonNoCertificate, schema.AsError(err).Reason)
	_, err = c.verify(nil, known, time.Now())
	require.Equal(t, schema.ReasonNoCertificate, schema.AsError(err).Reason)
}

// BenchmarkCertificate measures the certificate check of the first and of a later
// request of a connection.
func BenchmarkCertificate(b *testing.B) {
	root, leaf := identityOf(b, trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1})
	known := &caPool{roots: newPool([]*x509.Certificate{root}), retiredRoots: newPool()}
	state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	for name, next := range map[string]func(*certificateCache) *certificateCache{
		"first": func(*certificateCache) *certificateCache { return new(certificateCache) },
		"later": func(c *certificateCache) *certificateCache { return c },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			c := new(certificateCache)
			for b.Loop() {
				c = next(c)
				_, err := c.verify(state, known, time.Now())
				require.NoError(b, err)
			}
		})
	}
}
