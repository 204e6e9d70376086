package wire

// RenewRequest is the body of POST /internal/v1/nodes/{node_id}/certificates/
// renew, made over mTLS. The same CSR again gives a fresh certificate for the
// same key in place of an unused one.
type RenewRequest struct {
	CSR string `json:"csr"` // PEM, P-256, a fresh key
	// Sequence is the agent's: that of the identity it asks with.
	Sequence     int64  `json:"sequence"`
	AgentVersion string `json:"agent_version"`
}

// RecoverRequest is the body of POST /internal/v1/nodes/{node_id}/recover, made
// without a client certificate.
type RecoverRequest struct {
	Token        string `json:"token"` // of PurposeRecover
	CSR          string `json:"csr"`
	Incarnation  int64  `json:"incarnation"`
	Sequence     int64  `json:"sequence"`
	Signature    string `json:"signature"` // base64, by the recovery key, of RecoverStatement
	AgentVersion string `json:"agent_version"`
}
