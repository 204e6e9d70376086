package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
)

// CertFactsOf returns the public facts of a certificate. It is the one place that
// renders serial, fingerprint and key hash (Vault's serial_number without its
// colons is the same serial), so that what the CA's adapter stored
// and what a handshake shows compare as strings.
func CertFactsOf(c *x509.Certificate) CertFacts {
	fingerprint := sha256.Sum256(c.Raw)
	f := CertFacts{
		Subject:     c.Subject.String(),
		Issuer:      c.Issuer.String(),
		Serial:      hex.EncodeToString(c.SerialNumber.Bytes()),
		Fingerprint: hex.EncodeToString(fingerprint[:]),
		SPKI:        SPKIHash(c.RawSubjectPublicKeyInfo),
		NotBefore:   c.NotBefore.UTC(),
		NotAfter:    c.NotAfter.UTC(),
	}
	if len(c.URIs) > 0 {
		f.URI = c.URIs[0].String()
	}
	return f
}

// SPKIHash returns the hex SHA-256 of a DER SubjectPublicKeyInfo: the name of a
// public key in tokens and certificate facts.
func SPKIHash(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}
