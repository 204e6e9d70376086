package trust

import "time"

// CertFacts are the public facts of a certificate, for evidence and checks.
type CertFacts struct {
	Subject     string    `json:"subject"`
	URI         string    `json:"uri"`
	Issuer      string    `json:"issuer"`
	Serial      string    `json:"serial"`      // hex, lower case, no colons
	Fingerprint string    `json:"fingerprint"` // hex SHA-256 of the DER
	SPKI        string    `json:"spki"`        // hex SHA-256 of the public key
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
}

// CAFacts are the public facts of one generation of the node CA.
type CAFacts struct {
	Subject     string    `json:"subject"`
	Issuer      string    `json:"issuer"`
	Fingerprint string    `json:"fingerprint"` // hex SHA-256 of the DER
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
}

// IdentityLock is why and since when a node's identity is locked.
type IdentityLock struct {
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// IssuedCertificate is a certificate fresh from the CA.
type IssuedCertificate struct {
	LeafPEM  string
	ChainPEM string // issuers, leaf excluded
	Facts    CertFacts
}
