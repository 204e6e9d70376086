package trust_test

import (
	"crypto/ed25519"
	"crypto/rand"
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

func TestParseCertificates(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block := func(kind string, serial int64) string {
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(serial)},
			&x509.Certificate{}, public, private)
		require.NoError(t, err)
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	one, two := block("CERTIFICATE", 1), block("CERTIFICATE", 2)
	certs, err := trust.ParseCertificates(one + "\n" + two + " \n")
	require.NoError(t, err)
	require.Len(t, certs, 2)
	require.Equal(t, int64(2), certs[1].SerialNumber.Int64(), "in order")
	require.Equal(t, one+two, trust.EncodeCertificates(certs...))

	certs, err = trust.ParseCertificates("")
	require.NoError(t, err)
	require.Empty(t, certs)

	for name, text := range map[string]string{
		"another block":           one + block("PRIVATE KEY", 3),
		"text after the last one": one + "end",
		"malformed":               one + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})),
	} {
		_, err := trust.ParseCertificates(text)
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), name)
	}
}

func TestCertFactsOf(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	uri, err := url.Parse("spiffe://dev/node/x/1")
	require.NoError(t, err)
	zone := time.FixedZone("x", 3600)
	template := &x509.Certificate{SerialNumber: big.NewInt(0x0a0b), Subject: pkix.Name{CommonName: "leaf"}, URIs: []*url.URL{uri},
		NotBefore: time.Date(2026, 1, 2, 3, 4, 5, 0, zone), NotAfter: time.Date(2026, 1, 5, 3, 4, 5, 0, zone)}
	der, err := x509.CreateCertificate(rand.Reader, template, &x509.Certificate{Subject: pkix.Name{CommonName: "CA"}}, public, private)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	spki, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	require.Equal(t, trust.CertFacts{Subject: "CN=leaf", URI: uri.String(), Issuer: "CN=CA", Serial: "0a0b",
		Fingerprint: schema.SHA256Hex(der), SPKI: schema.SHA256Hex(spki),
		NotBefore: time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC), NotAfter: time.Date(2026, 1, 5, 2, 4, 5, 0, time.UTC)}, trust.CertFactsOf(cert))
	require.Equal(t, schema.SHA256Hex(der), trust.Fingerprint(trust.EncodeCertificates(cert)))
	cert.URIs = nil
	require.Empty(t, trust.CertFactsOf(cert).URI)
}
