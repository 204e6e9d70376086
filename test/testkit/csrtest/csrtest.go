// Package csrtest makes keys and certificate requests for tests.
package csrtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"testing"

	"github.com/stretchr/testify/require"
)

// Key returns a new P-256 key, as nodes use.
func Key(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	return key
}

// New returns a certificate request as crypto/x509 makes it.
func New(tb testing.TB, template x509.CertificateRequest, key crypto.Signer) *x509.CertificateRequest {
	tb.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	require.NoError(tb, err)
	csr, err := x509.ParseCertificateRequest(der)
	require.NoError(tb, err)
	return csr
}

// TwoCommonNames returns a subject that parsers interpret differently.
func TwoCommonNames(tb testing.TB) []byte {
	tb.Helper()
	cn := asn1.ObjectIdentifier{2, 5, 4, 3}
	raw, err := asn1.Marshal(pkix.RDNSequence{{{Type: cn, Value: "a"}}, {{Type: cn, Value: "b"}}})
	require.NoError(tb, err)
	return raw
}
