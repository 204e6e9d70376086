package nodeapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
)

// FuzzCSR checks that whatever is accepted brings a P-256 key and nothing else.
func FuzzCSR(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	for _, template := range []*x509.CertificateRequest{{}, {DNSNames: []string{"x"}}, {Subject: pkix.Name{CommonName: "x"}}} {
		der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(der)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		csr, err := parseCSR(string(pem.EncodeToMemory(&pem.Block{Type: csrBlock, Bytes: der})))
		if err != nil {
			return
		}
		k, ok := csr.PublicKey.(*ecdsa.PublicKey)
		if !ok || k.Curve != elliptic.P256() || csr.CheckSignature() != nil || len(csr.Subject.Names) > 0 ||
			len(csr.Extensions)+len(csr.DNSNames)+len(csr.URIs)+len(csr.IPAddresses)+len(csr.EmailAddresses) > 0 {
			t.Fatalf("accepted %x", der)
		}
	})
}
