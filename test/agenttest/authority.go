package agenttest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Authority is a certificate authority for one test.
type Authority struct {
	key  *ecdsa.PrivateKey
	Cert *x509.Certificate
	PEM  []byte
}

func NewAuthority(tb testing.TB, name string) Authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(tb, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(tb, err)
	return Authority{key, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a Authority) sign(tb testing.TB, tmpl *x509.Certificate, pub any) []byte {
	tb.Helper()
	tmpl.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	if tmpl.NotBefore.IsZero() {
		tmpl.NotBefore = time.Now().Add(-time.Minute)
	}
	if tmpl.NotAfter.IsZero() {
		tmpl.NotAfter = time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.Cert, pub, a.key)
	require.NoError(tb, err)
	return der
}

func (a Authority) Server(tb testing.TB) tls.Certificate {
	tb.Helper()
	return a.ServerWith(tb, &x509.Certificate{DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

func (a Authority) ServerWith(tb testing.TB, tmpl *x509.Certificate) tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	der := a.sign(tb, tmpl, &key.PublicKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Node makes a certificate for a node's key.
func (a Authority) Node(tb testing.TB, id trust.Identity, pub any, notAfter time.Time) []byte {
	tb.Helper()
	return a.NodeFrom(tb, id, pub, time.Time{}, notAfter)
}

func (a Authority) NodeFrom(tb testing.TB, id trust.Identity, pub any, notBefore, notAfter time.Time) []byte {
	tb.Helper()
	uri, err := url.Parse(id.URI())
	require.NoError(tb, err)
	der := a.sign(tb, &x509.Certificate{
		URIs: []*url.URL{uri}, NotBefore: notBefore, NotAfter: notAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, pub)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// ReadCSR parses a request that must name no subject and ask for no extension.
func ReadCSR(text string) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, schema.NewError(schema.KindInvalidRequest, "no csr")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || csr.CheckSignature() != nil || !bytes.Equal(csr.RawSubject, []byte{0x30, 0}) || len(csr.Extensions) > 0 {
		return nil, schema.NewError(schema.KindInvalidRequest, "bad csr")
	}
	return csr, nil
}
