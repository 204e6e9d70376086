package wire

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
)

// HeaderCorrelationID is taken from a request or made, returned, logged and
// carried into the workflow, the task and the agent's log.
const HeaderCorrelationID = "X-Correlation-Id"

// HeaderVerifierSet names the newest verifier set, as VerifierSetRef.String does, in
// each answer of tasks/wait.
const HeaderVerifierSet = "Gpuaas-Verifier-Set"

// HeaderCanceledTasks lists, with commas between, those tasks of a poll's have that
// an operator cancelled or that were voided: the agent should ask about them
// with a progress call now. It comes with a 204 of tasks/wait.
const HeaderCanceledTasks = "Gpuaas-Task-News"

// EnrollRequest is the body of POST /internal/v1/nodes/{node_id}/enroll. It is
// sent only to a server whose certificate the bundle's CA verifies.
type EnrollRequest struct {
	Token        string `json:"token"`
	CSR          string `json:"csr"` // PEM, P-256, signed by the node's key
	AgentVersion string `json:"agent_version"`
	// RecoveryKey is the node's Ed25519 public key for recoveries, base64; it
	// is never in a certificate. Signature is its signature of EnrollStatement.
	// Both may be empty: such a node cannot recover by itself.
	RecoveryKey string `json:"recovery_key,omitempty"`
	Signature   string `json:"signature,omitempty"`
}

// EnrollResponse is the 200 answer of an enrolment, a renewal and a recovery. Asking again with the same key and token
// before the certificate's first use gives a fresh certificate for that key.
type EnrollResponse struct {
	NodeID      string    `json:"node_id"`
	Incarnation int64     `json:"incarnation"`
	Certificate string    `json:"certificate"` // PEM leaf
	CAChain     string    `json:"ca_chain"`    // PEM issuers
	NotAfter    time.Time `json:"not_after"`
	// Sequence rises with each identity of an incarnation.
	Sequence int64 `json:"sequence"`
	// RecoveryToken replaces the one the node holds when this identity is used
	// for the first time. Empty without a recovery key.
	RecoveryToken     string    `json:"recovery_token,omitempty"`
	RecoveryExpiresAt time.Time `json:"recovery_expires_at,omitzero"`
	// ServerTime lets a node with a wrong clock see that it has one.
	ServerTime time.Time `json:"server_time"`
}

// HeartbeatRequest is the body of POST /internal/v1/nodes/{node_id}/heartbeat,
// sent every HeartbeatInterval and whenever the workloads change. The answer is
// 204.
type HeartbeatRequest struct {
	AgentVersion  string          `json:"agent_version"`
	UptimeSeconds int64           `json:"uptime_seconds"`
	BootID        string          `json:"boot_id"`
	Cordoned      bool            `json:"cordoned"`
	Workloads     []task.Workload `json:"workloads"`
	// Phase is starting or ready.
	Phase string    `json:"phase"`
	At    time.Time `json:"at"` // the node's clock, for skew only
}
