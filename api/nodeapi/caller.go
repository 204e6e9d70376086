package nodeapi

import "github.com/gpuaas/gpuaas/schema/lifecycle"

// Caller is an authenticated node: what its row said when the request came.
type Caller struct {
	NodeID      string
	Incarnation int64
	Host        string
	State       lifecycle.NodeState
	Serial      string
	// HasPolled is true when a poll of this incarnation is on record already, so
	// that recording the next one costs nothing.
	HasPolled bool
	// VerifierSet is the version of the verifier set on record for the node.
	VerifierSet int64
	// Idle is true when the read of the row also found that every open task of
	// the node runs under its lease, so that asking for one is in vain. False when
	// it is not known.
	Idle bool
}

// TokenClaim is an enrolment's claim of its token.
type TokenClaim struct {
	NodeID        string // of the path; the token's row decides
	TokenID       string
	Hash          []byte // SHA-256 of the secret
	SPKI          string // hex SHA-256 of the CSR's key
	CorrelationID string
	AgentVersion  string
	RemoteAddr    string
	// RecoveryKey is kept with the claim; nil when the node gave none.
	RecoveryKey []byte
}

// ClaimResult is a claimed token, or a claimed renewal.
type ClaimResult struct {
	TokenID     string
	NodeID      string
	Incarnation int64
	// Recoverable is true when the node has a recovery key, so that a recovery
	// token is of use to it.
	Recoverable bool
}
