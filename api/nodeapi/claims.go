package nodeapi

import (
	"crypto/ed25519"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Caller is an authenticated node, as its row was at the time of the request.
type Caller struct {
	NodeID      string
	Incarnation int64
	Host        string
	State       lifecycle.NodeState
	Serial      string
	// HasPolled is true if a poll of this incarnation is on record.
	HasPolled bool
	// Session is the agent process that made the node's last recorded poll; empty if
	// unknown.
	Session string
	// Contested is true if a process polled after a newer one: both may run.
	Contested bool
	// VerifierSet is the node's verifier set on record.
	VerifierSet trust.VerifierSetRef
	// CABundle is the digest of the node CA bundle on record.
	CABundle string
	// Floors are the counters on record: the highest sequence of a task and of an identity.
	Floors task.Floors
	// Idle is true if the node has no task to dispatch: every open task runs
	// under its lease. A caller that subscribed to the Notifier before it
	// authenticated may skip Tasks.NextTask. False if unknown.
	Idle bool
}

// TokenClaim claims a token.
type TokenClaim struct {
	NodeID        string // from the path; the token's row decides
	TokenID       string
	Hash          []byte // SHA-256 of the secret
	SPKI          string // hex SHA-256 of the CSR's key
	CorrelationID string
	AgentVersion  string
	RemoteAddr    string
	// RecoveryKey is stored with the claim of an enrollment; nil if the node sent none.
	RecoveryKey []byte
	// PreviousKey is the recovery key of an earlier enrollment that signed the request too,
	// nil without one.
	PreviousKey []byte
}

// RenewClaim claims a renewal for an authenticated caller.
type RenewClaim struct {
	Caller        Caller
	SPKI          string // hex SHA-256 of the CSR's key
	Sequence      int64
	CorrelationID string
}

// RecoveryClaim claims a recovery token for the identity with the sequence. The
// request's signature was verified.
type RecoveryClaim struct {
	TokenClaim
	Incarnation, Sequence int64
}

// RecoveryFacts are what a recovery request is verified against.
type RecoveryFacts struct {
	Incarnation int64
	Key         ed25519.PublicKey // nil if the node never sent one
}

// ClaimResult is a granted claim.
type ClaimResult struct {
	TokenID     string // empty for a renewal
	NodeID      string
	Incarnation int64
	// Recoverable is true if the node has a recovery key, so a recovery token is
	// minted with the certificate.
	Recoverable bool
	// Now is the time of the claim by the database's clock, from which the life of the recovery
	// token counts.
	Now time.Time
}

// NewIdentity is an issued certificate with its recovery token, as stored in the
// pending slot until the certificate's first use.
type NewIdentity struct {
	NodeID      string
	Incarnation int64
	Via         trust.IssueMethod
	// TokenID is the claimed token; empty for a renewal.
	TokenID string
	Cert    trust.CertFacts
	// Recovery is the next recovery token, of purpose trust.PurposeRecover.
	Recovery      trust.MintedToken
	CorrelationID string
}
