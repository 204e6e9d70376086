package nodeapi

import (
	"crypto/ed25519"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// NewIdentity is an issued certificate with the recovery token that goes with
// it, as the database keeps them: both wait in the pending slot until the
// certificate's first use.
type NewIdentity struct {
	NodeID      string
	Incarnation int64
	Via         trust.IssueMethod
	// TokenID is the token that paid for it; empty for a renewal.
	TokenID string
	Cert    trust.CertFacts
	// Recovery is the next recovery token, purpose PurposeRecover.
	Recovery      trust.MintedToken
	CorrelationID string
}

// RenewClaim asks for a renewal on behalf of an authenticated caller.
type RenewClaim struct {
	Caller        Caller
	SPKI          string // hex SHA-256 of the CSR's key
	Sequence      int64
	CorrelationID string
}

// RecoveryClaim asks for a recovery; its signature has been checked.
type RecoveryClaim struct {
	NodeID        string
	TokenID       string
	Hash          []byte
	SPKI          string
	Incarnation   int64
	Sequence      int64
	CorrelationID string
	AgentVersion  string
	RemoteAddr    string
}

// RecoveryFacts are what a recovery request is checked against before it is
// claimed.
type RecoveryFacts struct {
	Incarnation int64
	Key         ed25519.PublicKey // nil when the node never gave one
}
