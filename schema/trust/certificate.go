package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// CertFacts are the public facts of a certificate, for evidence and checks.
type CertFacts struct {
	Subject     string    `json:"subject"`
	URI         string    `json:"uri"`
	Issuer      string    `json:"issuer"`
	Serial      string    `json:"serial"`      // lower-case hex without colons
	Fingerprint string    `json:"fingerprint"` // hex SHA-256 of the DER
	SPKI        string    `json:"spki"`        // hex SHA-256 of the SubjectPublicKeyInfo
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
}

// CertFactsOf returns the public facts of a certificate. All code that renders a
// serial, a fingerprint or a key hash uses this function, so that stored facts
// and the facts of a handshake compare as strings.
func CertFactsOf(c *x509.Certificate) CertFacts {
	f := CertFacts{
		Subject:     c.Subject.String(),
		Issuer:      c.Issuer.String(),
		Serial:      hex.EncodeToString(c.SerialNumber.Bytes()),
		Fingerprint: schema.SHA256Hex(c.Raw),
		SPKI:        schema.SHA256Hex(c.RawSubjectPublicKeyInfo),
		NotBefore:   c.NotBefore.UTC(),
		NotAfter:    c.NotAfter.UTC(),
	}
	if len(c.URIs) > 0 {
		f.URI = c.URIs[0].String()
	}
	return f
}

// ParseCertificates parses a PEM text that contains only certificates. It rejects a
// text with one malformed certificate, which may be the needed one. An empty text has
// none.
func ParseCertificates(text string) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := []byte(text); len(bytes.TrimSpace(rest)) > 0; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil || b.Type != "CERTIFICATE" {
			return nil, schema.NewError(schema.KindInvalidRequest, "the text contains something other than PEM certificates")
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, schema.Wrap(schema.KindInvalidRequest, err, "malformed certificate")
		}
		certs = append(certs, c)
	}
	return certs, nil
}

// EncodeCertificates returns the certificates in PEM.
func EncodeCertificates(certs ...*x509.Certificate) string {
	var b strings.Builder
	for _, c := range certs {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return b.String()
}

// BundleDigest identifies a set of CA certificates, in whatever order: the hex SHA-256 of the
// sorted SHA-256 hashes of their DER. It is empty for none.
func BundleDigest(certs ...*x509.Certificate) string {
	if len(certs) == 0 {
		return ""
	}
	var hashes []string
	for _, c := range certs {
		hashes = append(hashes, schema.SHA256Hex(c.Raw))
	}
	slices.Sort(hashes)
	return schema.SHA256Hex([]byte(strings.Join(slices.Compact(hashes), "\n")))
}

// IssuedCertificate is a newly issued certificate.
type IssuedCertificate struct {
	LeafPEM  string
	ChainPEM string // the issuers, without the leaf
	Facts    CertFacts
}
