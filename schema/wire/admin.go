package wire

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// HeaderIdempotencyKey makes a POST of the admin API safe to repeat: the same
// key again answers for the request that used it first.
const HeaderIdempotencyKey = "Idempotency-Key"

// Bounds of what an operator may write, the same in the CLI and the admin API.
const (
	MaxReason         = 500 // characters of a reason
	MaxIdempotencyKey = 128 // characters of an idempotency key
	MaxDrainDeadline  = 7 * 24 * time.Hour
)

// Page sizes of lists.
const (
	DefaultPage = 100
	MaxPage     = 1000
)

// RegisterNodeRequest is the body of POST /api/v1/admin/nodes, as in the
// onboarding runbook.
type RegisterNodeRequest struct {
	Host           string            `json:"host"`
	Port           int               `json:"port,omitempty"` // SSH; 22 when 0
	SSHUsername    string            `json:"ssh_username,omitempty"`
	SSHPublicKey   string            `json:"ssh_public_key,omitempty"`
	SKU            string            `json:"sku"`
	GPUsTotal      int               `json:"gpus_total,omitempty"` // the SKU's number when 0
	RegionCode     string            `json:"region_code"`
	OnboardingMode string            `json:"onboarding_mode,omitempty"` // manual when empty
	LifecycleClass inventory.Class   `json:"lifecycle_class,omitempty"` // persistent when empty
	Probe          bool              `json:"probe,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
}

// NodeChange is the body of PATCH /api/v1/admin/nodes/{node}. Fields that are
// left out stay as they are.
type NodeChange struct {
	GPUsTotal *int `json:"gpus_total,omitempty"`
	// Labels are set, RemoveLabels removed; a key must not be in both.
	Labels       map[string]string `json:"labels,omitempty"`
	RemoveLabels []string          `json:"remove_labels,omitempty"`
	Reason       string            `json:"reason,omitempty"`
}

// NodeView is a node as the admin API shows it. Lists leave out the fields that
// the request's view or field mask does not name.
type NodeView struct {
	ID             string            `json:"id"`
	Host           string            `json:"host"`
	Port           int               `json:"port"`
	SSHUsername    string            `json:"ssh_username,omitempty"`
	SSHPublicKey   string            `json:"ssh_public_key,omitempty"`
	SKU            string            `json:"sku"`
	GPUsTotal      int               `json:"gpus_total"`
	RegionCode     string            `json:"region_code"`
	OnboardingMode string            `json:"onboarding_mode"`
	LifecycleClass inventory.Class   `json:"lifecycle_class"`
	Labels         map[string]string `json:"labels,omitempty"`

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
	// IdentityLock is set while every request of the node is refused.
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

// Blockers names the workloads that keep the node from being retired.
func (n NodeView) Blockers() []string {
	var out []string
	for _, w := range n.Workloads {
		out = append(out, w.Kind+" "+w.Name)
	}
	return out
}

// NodeList answers GET /api/v1/admin/nodes.
type NodeList struct {
	Nodes []NodeView `json:"nodes"`
	// NextPageToken is the page_token of the next page; empty on the last.
	NextPageToken string `json:"next_page_token,omitempty"`
}

// OperationSummary is one operation in a list.
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
	DeadlineAt    *time.Time               `json:"deadline_at,omitempty"`
}

// OperationList answers GET /api/v1/admin/operations.
type OperationList struct {
	Operations    []OperationSummary `json:"operations"`
	NextPageToken string             `json:"next_page_token,omitempty"`
}

// OperationView answers GET /api/v1/admin/operations/{operation_id} and every
// decision: the operation's whole status document.
type OperationView struct {
	Operation lifecycle.Operation `json:"operation"`
	Node      lifecycle.NodeRef   `json:"node"`
	// WebURL is the operation's page in Temporal's Web UI, when its address is
	// configured.
	WebURL string `json:"web_url,omitempty"`
}

// Status is the view without its link.
func (v OperationView) Status() lifecycle.OperationStatus {
	return lifecycle.OperationStatus{Operation: v.Operation, Node: v.Node}
}

// ResolveOperation is the body of POST
// /api/v1/admin/operations/{operation_id}/{decision}. Phase and StuckSince address
// the decision to what the operator saw: one that no longer fits is refused
// decision_outdated. An empty field is not compared.
type ResolveOperation struct {
	Reason     string     `json:"reason,omitempty"`
	Phase      string     `json:"phase,omitempty"`
	StuckSince *time.Time `json:"stuck_since,omitempty"`
}

// StuckOperation is an operation that needs attention: parked, overdue or
// abandoned.
type StuckOperation struct {
	OperationSummary
	State  lifecycle.NodeState `json:"state"`
	WebURL string              `json:"web_url,omitempty"`
}

// ControlPlaneFault is something of the control plane that needs attention.
type ControlPlaneFault struct {
	Component string `json:"component"` // for example reclaimer
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Next      string `json:"next,omitempty"`
}

// StuckList answers GET /api/v1/admin/stuck, oldest first.
type StuckList struct {
	Stuck         []StuckOperation    `json:"stuck"`
	Faults        []ControlPlaneFault `json:"faults"`
	NextPageToken string              `json:"next_page_token,omitempty"`
}

// LifecycleRequest is the body of POST /api/v1/admin/nodes/{node}/{verb}. An
// empty body is allowed.
type LifecycleRequest struct {
	Reason  string            `json:"reason,omitempty"`
	Options lifecycle.Options `json:"options"`
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
