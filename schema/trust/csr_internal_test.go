package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// FuzzCSR checks that every accepted request contains a P-256 key and nothing else:
// an issuer that copies every field of a request still makes a certificate with only
// the fields that we set. The corpus in testdata has a request for
// each kind of extra.
func FuzzCSR(f *testing.F) {
	ca := newLooseCA(f)
	f.Fuzz(func(t *testing.T, der []byte) {
		csr, err := ParseCSR(string(pem.EncodeToMemory(&pem.Block{Type: csrBlock, Bytes: der})))
		if err != nil {
			return
		}
		k, ok := csr.PublicKey.(*ecdsa.PublicKey)
		if !ok || k.Curve != elliptic.P256() || csr.CheckSignature() != nil {
			t.Fatalf("accepted %x", der)
		}
		if leaf := ca.sign(t, csr); !ca.onlyOurs(leaf, csr) {
			t.Fatalf("the request %x made the certificate %x", der, leaf.Raw)
		}
	})
}

// The corpus contains one valid request; the others are rejected.
func TestCSRCorpusIsRejected(t *testing.T) {
	accepted := 0
	for _, der := range corpus(t) {
		if _, err := ParseCSR(string(pem.EncodeToMemory(&pem.Block{Type: csrBlock, Bytes: der}))); err == nil {
			accepted++
		}
	}
	if accepted != 1 {
		t.Fatalf("%d requests of the corpus are accepted, want the one good one", accepted)
	}
}

// looseCA is a CA whose role takes subject, names and extensions from the
// request, as Vault's does by default, beside our name.
type looseCA struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	uri  *url.URL
}

func newLooseCA(tb testing.TB) *looseCA {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	uri, err := url.Parse(Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}.URI())
	if err != nil {
		tb.Fatal(err)
	}
	return &looseCA{key: key, uri: uri, cert: &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}}
}

func (c *looseCA) sign(tb testing.TB, csr *x509.CertificateRequest) *x509.Certificate {
	tb.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Unix(1e9, 0), NotAfter: time.Unix(2e9, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
		RawSubject: csr.RawSubject, DNSNames: csr.DNSNames, EmailAddresses: csr.EmailAddresses, IPAddresses: csr.IPAddresses,
		URIs: append([]*url.URL{c.uri}, csr.URIs...), ExtraExtensions: append(slices.Clone(csr.Extensions), csr.ExtraExtensions...)}
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, csr.PublicKey, c.key)
	if err != nil {
		tb.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return leaf
}

// onlyOurs reports whether the certificate has the request's key and otherwise
// what the CA itself set.
func (c *looseCA) onlyOurs(leaf *x509.Certificate, csr *x509.CertificateRequest) bool {
	known := []asn1.ObjectIdentifier{{2, 5, 29, 15}, {2, 5, 29, 17}, {2, 5, 29, 19}, {2, 5, 29, 37}}
	for _, e := range leaf.Extensions {
		if !slices.ContainsFunc(known, e.Id.Equal) {
			return false
		}
	}
	return bytes.Equal(leaf.RawSubjectPublicKeyInfo, csr.RawSubjectPublicKeyInfo) && bytes.Equal(leaf.RawSubject, []byte{0x30, 0}) &&
		len(leaf.Extensions) == len(known) && len(leaf.URIs) == 1 && leaf.URIs[0].String() == c.uri.String() &&
		len(leaf.DNSNames)+len(leaf.EmailAddresses)+len(leaf.IPAddresses) == 0 && !leaf.IsCA &&
		leaf.KeyUsage == x509.KeyUsageDigitalSignature && slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) &&
		len(leaf.UnknownExtKeyUsage) == 0
}
