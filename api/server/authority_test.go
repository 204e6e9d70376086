package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// authority is a CA that a test uses instead of Vault.
type authority struct {
	tb   testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	// down makes it refuse to sign. lost makes it sign and return an error, as if
	// the answer were lost.
	down, lost atomic.Bool
}

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	a := &authority{tb: tb}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), SerialNumber: big.NewInt(1)}
	a.cert = template
	a.cert = a.sign(template, a.key.Public())
	return a
}

func (a *authority) sign(template *x509.Certificate, key any) *x509.Certificate {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 150))
	require.NoError(a.tb, err)
	template.SerialNumber = n
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
	require.NoError(a.tb, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.tb, err)
	return cert
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

func (a *authority) Issue(_ context.Context, csr *x509.CertificateRequest, id trust.Identity) (trust.IssuedCertificate, error) {
	away := schema.NewError(schema.KindServiceUnavailable, "Vault is sealed")
	if a.down.Load() {
		return trust.IssuedCertificate{}, away
	}
	uri, err := url.Parse(id.URI())
	if err != nil {
		return trust.IssuedCertificate{}, err
	}
	cert := a.sign(&x509.Certificate{URIs: []*url.URL{uri}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, csr.PublicKey)
	if a.lost.Load() {
		return trust.IssuedCertificate{}, away
	}
	leaf := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	return trust.IssuedCertificate{LeafPEM: leaf, ChainPEM: a.pem(), Facts: trust.CertFactsOf(cert)}, nil
}

func (a *authority) Roots(context.Context) ([]*x509.Certificate, error) {
	return []*x509.Certificate{a.cert}, nil
}

func (a *authority) Retired(context.Context) ([]*x509.Certificate, error) { return nil, nil }

func (a *authority) ServerCA(context.Context) (string, error) { return a.pem(), nil }
func (a *authority) NodeCA(context.Context) (string, error)   { return a.pem(), nil }

func (a *authority) TaskTrust(context.Context) (trust.TaskTrust, error) {
	return trust.TaskTrust{Keys: trust.VerifierKeys{{State: trust.KeyActive, KeyID: "k1", Public: make([]byte, 32)}}}, nil
}

// delegate is a replica's lease key, valid unless the authority is down.
type delegate struct{ *authority }

func (d delegate) Ready() (<-chan struct{}, error) {
	if d.down.Load() {
		return nil, schema.NewError(schema.KindServiceUnavailable, "Vault is sealed")
	}
	return nil, nil
}

func (d delegate) Sign(g task.Grant) (grant, key json.RawMessage, err error) {
	grant, err = json.Marshal(g)
	return grant, json.RawMessage(`{}`), err
}

// firstSet is version 1 of the verifier set.
func firstSet() trust.StoredSet { return setAfter(trust.StoredSet{}) }

// setAfter returns a successor of a set.
func setAfter(s trust.StoredSet) trust.StoredSet {
	next := trust.StoredSet{Version: s.Version + 1, PrevHash: s.Hash, Document: fmt.Appendf(nil, `{"version":%d}`, s.Version+1)}
	next.Hash = fmt.Sprintf("%x", sha256.Sum256(next.Document))
	return next
}

func (a *authority) server() *tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.tb, err)
	cert := a.sign(&x509.Certificate{DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, key.Public())
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}
