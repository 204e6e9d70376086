package wire

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// RegisterNodeRequest is the body of POST /api/v1/admin/nodes, as in the
// onboarding runbook.
type RegisterNodeRequest struct {
	Host           string          `json:"host"`
	Port           int             `json:"port,omitempty"` // SSH; 22 when 0
	SSHUsername    string          `json:"ssh_username,omitempty"`
	SSHPublicKey   string          `json:"ssh_public_key,omitempty"`
	SKU            string          `json:"sku"`
	GPUsTotal      int             `json:"gpus_total,omitempty"`
	RegionCode     string          `json:"region_code"`
	OnboardingMode string          `json:"onboarding_mode,omitempty"` // manual when empty
	LifecycleClass inventory.Class `json:"lifecycle_class,omitempty"` // persistent when empty
	Probe          bool            `json:"probe,omitempty"`
}

// NodeView is a node as the admin API shows it.
type NodeView struct {
	ID             string          `json:"id"`
	Host           string          `json:"host"`
	Port           int             `json:"port"`
	SSHUsername    string          `json:"ssh_username,omitempty"`
	SSHPublicKey   string          `json:"ssh_public_key,omitempty"`
	SKU            string          `json:"sku"`
	GPUsTotal      int             `json:"gpus_total"`
	RegionCode     string          `json:"region_code"`
	OnboardingMode string          `json:"onboarding_mode"`
	LifecycleClass inventory.Class `json:"lifecycle_class"`

	State       lifecycle.NodeState `json:"state"`
	StateSince  time.Time           `json:"state_since"`
	Cordoned    bool                `json:"cordoned"`
	Incarnation int64               `json:"incarnation"`
	Instance    *lifecycle.Instance `json:"instance,omitempty"`
	Identity    *trust.CertFacts    `json:"identity,omitempty"`
	// PendingIdentity is an issued certificate that was not used yet.
	PendingIdentity *trust.CertFacts `json:"pending_identity,omitempty"`
	// IdentitySequence rises with each identity of the incarnation; 0 without one.
	IdentitySequence int64 `json:"identity_sequence,omitempty"`
	// SetVersion is the version of the verifier set that the node's last poll
	// named, 0 before the first; NewestSetVersion is the newest there is.
	SetVersion       int64 `json:"set_version,omitempty"`
	NewestSetVersion int64 `json:"newest_set_version,omitempty"`
	// IdentityLock says that every request of the node is refused, and why.
	IdentityLock *trust.IdentityLock `json:"identity_lock,omitempty"`
	// TrustedCAs are the node CA generations that the node API accepts.
	TrustedCAs []trust.CAFacts `json:"trusted_cas,omitempty"`

	LastHeartbeatAt *time.Time       `json:"last_heartbeat_at"`
	AgentVersion    string           `json:"agent_version,omitempty"`
	BootID          string           `json:"boot_id,omitempty"`
	UptimeSeconds   int64            `json:"uptime_seconds,omitempty"`
	Workloads       []task.Workload  `json:"workloads"`
	Facts           *inventory.Facts `json:"facts,omitempty"`

	// Operation is the operation that holds the node, when one does.
	Operation *OperationSummary `json:"operation,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
}

// Blockers says in words what keeps the node from being retired.
func (n NodeView) Blockers() []string {
	var out []string
	for _, w := range n.Workloads {
		out = append(out, w.Kind+" "+w.Name)
	}
	return out
}

// OperationSummary is the database's projection of an operation.
type OperationSummary struct {
	OperationID   string                   `json:"operation_id"`
	NodeID        string                   `json:"node_id"`
	Host          string                   `json:"host"`
	WorkflowID    string                   `json:"workflow_id"`
	RunID         string                   `json:"run_id"`
	Action        lifecycle.Action         `json:"action"`
	OpSeq         int64                    `json:"op_seq"`
	Status        lifecycle.OperationState `json:"status"`
	Phase         string                   `json:"phase"`
	WaitingOn     lifecycle.Attention      `json:"waiting_on"`
	Stuck         *lifecycle.Stuck         `json:"stuck,omitempty"`
	Actor         string                   `json:"actor"`
	Reason        string                   `json:"reason,omitempty"`
	CorrelationID string                   `json:"correlation_id"`
	Outcome       string                   `json:"outcome,omitempty"`
	StartedAt     time.Time                `json:"started_at"`
	EndedAt       *time.Time               `json:"ended_at,omitempty"`
}

// NodeList answers GET /api/v1/admin/nodes.
type NodeList struct {
	Nodes []NodeView `json:"nodes"`
}

// LifecycleRequest is the body of POST /api/v1/admin/nodes/{node_id}/{verb}.
// An empty body is allowed.
type LifecycleRequest struct {
	Reason         string            `json:"reason,omitempty"`
	IdempotencyKey string            `json:"idempotency_key,omitempty"`
	Options        lifecycle.Options `json:"options"`
}

// LifecycleResponse answers a lifecycle request with 202. BootstrapBundle is set
// for enroll only, and only in this one answer.
type LifecycleResponse struct {
	Operation       lifecycle.Operation    `json:"operation"`
	Node            NodeView               `json:"node"`
	BootstrapBundle *trust.BootstrapBundle `json:"bootstrap_bundle,omitempty"`
	// RecoveryBundle is set for reissue-enrollment only.
	RecoveryBundle *RecoveryBundle `json:"recovery_bundle,omitempty"`
}

// RecoveryBundle is the bundle of a reissue with the one command that applies
// it on the node.
type RecoveryBundle struct {
	trust.BootstrapBundle
	// RestartCommand is a shell command to copy to the node: it updates
	// GPUAAS_ENROLLMENT_TOKEN and the rest of the env file, moves stale
	// certificate and key aside and restarts the agent. It holds the token.
	RestartCommand string `json:"restart_command"`
}

// BootstrapScriptResponse answers POST …/bootstrap-script.
type BootstrapScriptResponse struct {
	// Script installs the agent on a Debian or Ubuntu host. It holds the token,
	// or with FetchRef a one-time reference in its place.
	Script    string    `json:"script"`
	ExpiresAt time.Time `json:"expires_at"`
}

// BootstrapScriptRequest is the body of POST …/bootstrap-script. An empty body
// is allowed.
type BootstrapScriptRequest struct {
	// FetchRef puts a one-time reference into the script instead of the token,
	// for cloud-init and other places that many can read.
	FetchRef bool `json:"fetch_ref,omitempty"`
}

// AuditPage answers GET /api/v1/admin/audit?node=ID&after=SEQ&limit=N. Streams
// lists the streams when no node was named; Events is the page otherwise, in
// order of seq.
type AuditPage struct {
	Streams []string      `json:"streams,omitempty"`
	Events  []audit.Event `json:"events"`
	// More is true when a further page exists after the last seq.
	More bool `json:"more"`
}

// OperationList answers GET /api/v1/admin/operations?node=ID&open=true.
type OperationList struct {
	Operations []OperationSummary `json:"operations"`
}
