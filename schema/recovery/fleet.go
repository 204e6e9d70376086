package recovery

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// Node is everything that Decide reads about one node.
type Node struct {
	NodeID  string `json:"node_id"`
	Host    string `json:"host"`
	SKU     string `json:"sku"`
	Region  string `json:"region"`
	Rack    string `json:"rack,omitempty"` // the node's label "rack"
	Class   string `json:"class"`          // inventory.Class
	GPUs    int    `json:"gpus"`           // of the SKU
	Creates bool   `json:"creates"`        // the provider creates machines, so it can restart and replace this one
	State   string `json:"state"`          // lifecycle.NodeState
	// Held is why an operator or an operation holds the node, empty if none does. It has the ID of the
	// operation, unless that is abandoned.
	Held string `json:"held,omitempty"`
	// BootedAt is when the boot ID last changed, zero if that is not known.
	BootedAt   time.Time          `json:"booted_at,omitzero"`
	Phase      health.Phase       `json:"phase"`
	Conditions []health.Condition `json:"conditions"`
	// Attempts are the repairs within the longest time that the policy looks back, newest last.
	Attempts []Attempt `json:"attempts,omitempty"`
}

// Size is how many nodes a scope has: the denominator of budgets and of the breaker.
type Size struct {
	Scope Scope  `json:"scope"`
	Key   string `json:"key"` // "" for the fleet
	Nodes int    `json:"nodes"`
	// GPUNodes counts those of Nodes that have GPUs: the denominator for faults of GPUs.
	GPUNodes int `json:"gpu_nodes"`
	// Busy counts the nodes of the scope that hold a reservation now, for a repair or a rollout.
	Busy int `json:"busy"`
	// Out counts the nodes of the scope that health recovery quarantined and no person released.
	Out int `json:"out"`
}

// Scope is what a budget counts.
type Scope string

// The scopes.
const (
	ScopeFleet  Scope = "fleet"
	ScopeSKU    Scope = "sku"
	ScopeRack   Scope = "rack"
	ScopeRegion Scope = "region"
)

// Fleet is what Decide reads: the nodes with an unhealthy condition, in a phase other than healthy, or
// probed by the breaker, and the sizes of the fleet and of every SKU, rack and region of these nodes.
type Fleet struct {
	At      time.Time    `json:"at"`
	Nodes   []Node       `json:"nodes"`
	Sizes   []Size       `json:"sizes"`
	Breaker BreakerState `json:"breaker"`
	// Incidents are those of the round before.
	Incidents []Incident `json:"incidents,omitempty"`
	// CloseWith is how an operator closes the breaker, for sentences. Empty means the command of the control
	// plane.
	CloseWith string `json:"close_with,omitempty"`
}

// BreakerState is the breaker between two rounds. It stops the start of repairs, never their end.
type BreakerState struct {
	// OpenSince is zero if the breaker is closed. Probing is set while one node is repaired to find
	// out whether the breaker can close.
	OpenSince    time.Time `json:"open_since,omitzero"`
	Probing      string    `json:"probing,omitempty"` // the node ID
	ProbingSince time.Time `json:"probing_since,omitzero"`
	// ClosedAt is when the breaker or an operator last closed it. Faults that began before do not open
	// it again.
	ClosedAt time.Time `json:"closed_at,omitzero"`
	// Why names the cause and the figures, in one sentence for operators. After the breaker closed, it
	// says why.
	Why string `json:"why,omitempty"`
}

// Decision is what a round decides about one node.
type Decision struct {
	NodeID string       `json:"node_id"`
	Host   string       `json:"host"`
	Phase  health.Phase `json:"phase"` // the phase after the decision
	Fault  Fault        `json:"fault,omitzero"`
	// Rung is the first rung of the repair, and Request the whole repair. Empty if none is needed.
	Rung    Rung    `json:"rung,omitempty"`
	Request Request `json:"request,omitzero"`
	Brake   Brake   `json:"brake,omitempty"`
	// Why is one sentence for operators, with the figures that decided.
	Why string `json:"why"`
}

// Incident is a fault of many nodes at once: one line for operators instead of one for each node.
type Incident struct {
	// Brake is BrakeRack or BrakeSuspect: what stops the repairs of the nodes.
	Brake Brake    `json:"brake,omitempty"`
	Scope Scope    `json:"scope"`
	Key   string   `json:"key"`
	Fault Fault    `json:"fault"`
	Nodes []string `json:"nodes"` // hosts
	Why   string   `json:"why"`
}

// Result is the result of one round. It has one decision for each node of the fleet.
type Result struct {
	Decisions []Decision   `json:"decisions"`
	Incidents []Incident   `json:"incidents,omitempty"`
	Breaker   BreakerState `json:"breaker"`
}
