package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
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

// CAFacts are the public facts of one generation of the node CA.
type CAFacts struct {
	Subject     string    `json:"subject"`
	Issuer      string    `json:"issuer"`
	Fingerprint string    `json:"fingerprint"` // hex SHA-256 of the DER
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
}

// ParseCertificates parses the certificates of a PEM text, in order. It rejects a
// text with any other block or a malformed certificate. An empty text has none.
// Errors are KindInvalidRequest and do not repeat the text.
func ParseCertificates(pemText []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := pemText; len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, schema.Errorf(schema.KindInvalidRequest, "the text contains something other than PEM certificates")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, schema.Wrap(schema.KindInvalidRequest, err, "certificate %d is malformed", len(certs)+1)
		}
		certs = append(certs, cert)
	}
	return certs, nil
}

// IdentityLock records when and why a node's identity was locked.
type IdentityLock struct {
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// IssuedCertificate is a newly issued certificate.
type IssuedCertificate struct {
	LeafPEM  string
	ChainPEM string // the issuers, without the leaf
	Facts    CertFacts
}
