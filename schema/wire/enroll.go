package wire

import "time"

// EnrollRequest is the body of POST /internal/v1/nodes/{node_id}/enroll. The
// agent sends it only to a server whose certificate the bundle's CA verifies.
type EnrollRequest struct {
	Token        string `json:"token"`
	CSR          string `json:"csr"` // PEM, P-256, signed by the node's key
	AgentVersion string `json:"agent_version"`
	// RecoveryKey is the node's Ed25519 public key for recoveries in base64. No
	// certificate contains it. Signature is its signature over
	// trust.EnrollStatement. A node that sends neither cannot recover its
	// identity without an operator.
	RecoveryKey string `json:"recovery_key,omitempty"`
	Signature   string `json:"signature,omitempty"`
	// PreviousKey is the recovery key of the node's previous enrollment, and PreviousSignature
	// its signature over the same statement. They prove that the node that enrolls again is
	// the one that was enrolled before.
	PreviousKey       string `json:"previous_recovery_key,omitempty"`
	PreviousSignature string `json:"previous_signature,omitempty"`
}

// RenewRequest is the body of POST
// /internal/v1/nodes/{node_id}/certificates/renew, sent with the current
// certificate. Repeating the same CSR replaces an unused certificate with a
// fresh one for the same key.
type RenewRequest struct {
	CSR string `json:"csr"` // PEM, P-256, a fresh key
	// Sequence is that of the identity the agent authenticates with.
	Sequence     int64  `json:"sequence"`
	AgentVersion string `json:"agent_version"`
}

// RecoverRequest is the body of POST /internal/v1/nodes/{node_id}/recover, sent
// without a client certificate.
type RecoverRequest struct {
	Token        string `json:"token"` // of purpose trust.PurposeRecover
	CSR          string `json:"csr"`
	Incarnation  int64  `json:"incarnation"`
	Sequence     int64  `json:"sequence"`
	Signature    string `json:"signature"` // base64, by the recovery key, over trust.RecoverStatement
	AgentVersion string `json:"agent_version"`
}

// EnrollResponse is the 200 response to an enrollment, a renewal and a recovery.
// Repeating the request with the same key before the certificate's first use
// returns a fresh certificate for that key.
type EnrollResponse struct {
	NodeID      string    `json:"node_id"`
	Incarnation int64     `json:"incarnation"`
	Certificate string    `json:"certificate"` // PEM leaf
	CAChain     string    `json:"ca_chain"`    // PEM issuers
	NotAfter    time.Time `json:"not_after"`
	// Sequence increases with each identity of an incarnation.
	Sequence int64 `json:"sequence"`
	// RecoveryToken replaces the node's current one at the first use of this
	// identity. It is empty for a node without a recovery key.
	RecoveryToken     string    `json:"recovery_token,omitempty"`
	RecoveryExpiresAt time.Time `json:"recovery_expires_at,omitzero"`
	// ServerTime lets a node detect that its clock is wrong.
	ServerTime time.Time `json:"server_time"`
}
