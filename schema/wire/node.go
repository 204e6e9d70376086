package wire

import (
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/signal"
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
	GPUsTotal      int             `json:"gpus_total,omitempty"` // the SKU's number when 0
	RegionCode     string          `json:"region_code"`
	OnboardingMode string          `json:"onboarding_mode,omitempty"` // manual when empty
	LifecycleClass inventory.Class `json:"lifecycle_class,omitempty"` // persistent when empty
	WorkloadDriver string          `json:"workload_driver,omitempty"` // the SKU's when empty
	// Probe makes the node's enrollment end with a probe of its health.
	Probe  bool              `json:"probe,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// NodeChange is the body of PATCH /api/v1/admin/nodes/{node}. Fields that are
// left out stay as they are.
type NodeChange struct {
	// SKU and RegionCode cannot be changed once the node has enrolled. A new SKU
	// without GPUsTotal sets the number of GPUs to that of the SKU.
	SKU        string `json:"sku,omitempty"`
	RegionCode string `json:"region_code,omitempty"`
	GPUsTotal  *int   `json:"gpus_total,omitempty"`
	// WorkloadDriver takes effect with the node's next bundle.
	WorkloadDriver string `json:"workload_driver,omitempty"`
	// UnsetWorkloadDriver leaves the node without a driver; not with WorkloadDriver.
	UnsetWorkloadDriver bool `json:"unset_workload_driver,omitempty"`
	// Labels are set, RemoveLabels removed; a key must not be in both.
	Labels       map[string]string `json:"labels,omitempty"`
	RemoveLabels []string          `json:"remove_labels,omitempty"`
	Reason       string            `json:"reason,omitempty"`
}

// NodeView is a node as the admin API shows it. Lists leave out the fields that
// the request's view or field mask does not name.
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
	// WorkloadDriver is the driver that the node's bundles name, empty for none.
	WorkloadDriver string `json:"workload_driver,omitempty"`
	// Probe is true if the node's enrollment ends with a probe of its health.
	Probe  bool              `json:"probe,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`

	State       lifecycle.NodeState `json:"state"`
	StateSince  time.Time           `json:"state_since"`
	Cordoned    bool                `json:"cordoned"`
	Incarnation int64               `json:"incarnation"`
	Instance    *lifecycle.Instance `json:"instance,omitempty"`
	Identity    *trust.CertFacts    `json:"identity,omitempty"`
	// PendingIdentity is an issued certificate that was not used yet.
	PendingIdentity *trust.CertFacts `json:"pending_identity,omitempty"`
	// IdentitySequence increases with each identity of the incarnation; 0 without one.
	IdentitySequence int64 `json:"identity_sequence,omitempty"`
	// SetVersion is the version of the verifier set that the node's last poll
	// named, 0 before the first; NewestSetVersion is the newest there is.
	SetVersion       int64 `json:"set_version,omitempty"`
	NewestSetVersion int64 `json:"newest_set_version,omitempty"`
	// SetLost is set if the database does not have the set that the node named.
	SetLost bool `json:"set_lost,omitempty"`
	// IdentityLock is set while every request of the node is refused.
	IdentityLock *trust.IdentityLock `json:"identity_lock,omitempty"`
	// IdentityAlarm is set for trust.AlarmAge after a second machine may have used the
	// node's identity or token, until the node is unlocked or its identity reissued.
	IdentityAlarm *trust.IdentityAlarm `json:"identity_alarm,omitempty"`
	// TrustedCAs are the node CA generations that the node API accepts.
	TrustedCAs []trust.CertFacts `json:"trusted_cas,omitempty"`

	LastHeartbeatAt *time.Time `json:"last_heartbeat_at"`
	AgentVersion    string     `json:"agent_version,omitempty"`
	BootID          string     `json:"boot_id,omitempty"`
	UptimeSeconds   int64      `json:"uptime_seconds,omitempty"`
	// AgentFault is why the agent accepts no tasks.
	AgentFault string `json:"agent_fault,omitempty"`
	// Driver is the workload driver that the agent uses, and DriverFault why it does not
	// list the workloads. Driver is empty if none is configured.
	Driver      string          `json:"driver,omitempty"`
	DriverFault string          `json:"driver_fault,omitempty"`
	Workloads   []task.Workload `json:"workloads"`
	// Conditions are what the reporters found about the node, unhealthy ones first.
	Conditions []signal.Condition `json:"conditions,omitempty"`
	Facts      *inventory.Facts   `json:"facts,omitempty"`

	// Operation is the operation that holds the node, when one does.
	Operation *OperationSummary `json:"operation,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
}

// StartState is the state in which an action finds the node: its state without an
// operation that is abandoned, which the action supersedes.
func (n NodeView) StartState() lifecycle.NodeState {
	if n.Operation == nil || n.Operation.Status != lifecycle.OperationAbandoned || n.Operation.PriorState == "" {
		return n.State
	}
	return n.State.Without(n.Operation.PriorState)
}

// Next is the command that a node without an operation needs; see lifecycle.NodeNext. A quarantined node that
// has a fault is not released before its fault is read. It is empty while an operation holds the node,
// which has its own. Only the provider manual creates no
// machines.
func (n NodeView) Next() string {
	if n.Operation != nil {
		return ""
	}
	faulty := func(c signal.Condition) bool { return !c.Stale && c.Faulty() }
	if n.State == lifecycle.NodeQuarantined && slices.ContainsFunc(n.Conditions, faulty) {
		return "gpuaas doctor " + n.Host
	}
	return lifecycle.NodeNext(lifecycle.NodeRef{NodeID: n.ID, Host: n.Host, State: n.State}, n.Cordoned, n.OnboardingMode != inventory.ProviderManual)
}

// Blockers names the workloads that keep the node from being retired.
func (n NodeView) Blockers() []string {
	var out []string
	for _, w := range n.Workloads {
		if w.Kind == task.KindUnknown { // the name says so
			out = append(out, w.Name)
		} else {
			out = append(out, w.Kind+" "+w.Name)
		}
	}
	return out
}

// NodeList is the response to GET /api/v1/admin/nodes.
type NodeList struct {
	Nodes []NodeView `json:"nodes"`
	// NextPageToken is the page_token of the next page; empty on the last.
	NextPageToken string `json:"next_page_token,omitempty"`
}
