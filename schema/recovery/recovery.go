// Package recovery decides whether and how a node with a fault is repaired: the policy, the ladder of
// repairs, the budgets and the breaker. It is pure, so that recorded facts give the same decisions
// again: see Decide and package replay.
package recovery

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// Mode says what happens with a decision.
type Mode string

// The modes. In monitor mode, decisions are recorded and nothing is done.
const (
	ModeMonitor Mode = "monitor"
	ModeArmed   Mode = "armed"
)

// Rung is one step of a ladder of repairs.
type Rung string

// The rungs, in the order in which a ladder may have them.
const (
	RungResetGPU   Rung = "reset_gpu"  // reset the GPUs that have the fault
	RungReboot     Rung = "reboot"     // restart the node, by its agent or else by its provider
	RungReplace    Rung = "replace"    // drain the node, and replace its machine
	RungQuarantine Rung = "quarantine" // leave the node out of service, with a bundle for the vendor
)

// Brake is why a repair does not start. Empty means that nothing stops it.
type Brake string

// The brakes.
const (
	BrakeMonitor   Brake = "monitor"    // the policy is in monitor mode
	BrakeThreshold Brake = "threshold"  // the fault is younger than its threshold
	BrakeSamples   Brake = "samples"    // too few checks have seen the fault
	BrakeBootGrace Brake = "boot_grace" // the node booted a moment ago
	BrakeBudget    Brake = "budget"     // the budget of a scope is used up
	BrakeBreaker   Brake = "breaker"    // the breaker is open
	BrakeRack      Brake = "rack"       // the fault is that of the rack
	BrakeCooldown  Brake = "cooldown"   // the node was repaired a moment ago
	BrakeFlapping  Brake = "flapping"   // the node was repaired too often: a person decides
	BrakeWindow    Brake = "window"     // a maintenance window covers the node
	BrakeHeld      Brake = "held"       // an operator or another operation holds the node
	BrakeApproval  Brake = "approval"   // the next rung needs an approval
	BrakeSuspect   Brake = "suspect"    // a new reason on many nodes: the checker may be wrong
)

// Fault is the condition for which a node is repaired.
type Fault struct {
	Checker   string        `json:"checker"`
	Component string        `json:"component,omitempty"`
	Reason    string        `json:"reason"`
	Code      int           `json:"code,omitempty"`
	Repair    health.Repair `json:"repair"`
	Since     time.Time     `json:"since"`
}

// Request is the repair that a Recover operation performs. It is one of the operation's options,
// so it holds nothing secret.
type Request struct {
	// DecisionID is the decision that asked for it; empty if a person did.
	DecisionID string `json:"decision_id,omitempty"`
	Fault      Fault  `json:"fault,omitzero"`
	// Rungs are the rungs to climb in order, from the first one. The operation ends at the first
	// rung after which the node is verified as healthy.
	Rungs []Rung `json:"rungs,omitempty"`
	// GPUs are the UUIDs to reset in RungResetGPU; empty means all.
	GPUs []string `json:"gpus,omitempty"`
	// Approve lists rungs before which the operation parks until an operator approves.
	Approve []Rung `json:"approve,omitempty"`
	// RebootWaitSeconds is how long a reboot may take; 0 means the default of the node's kind.
	RebootWaitSeconds int64 `json:"reboot_wait_seconds,omitempty"`
}

// Attempt is one repair of a node, for the history that the brakes read and as its proof.
type Attempt struct {
	OperationID string    `json:"operation_id"`
	NodeID      string    `json:"node_id"`
	SKU         string    `json:"sku,omitempty"`
	Rung        Rung      `json:"rung"`
	Fault       Fault     `json:"fault"`
	StartedAt   time.Time `json:"started_at"`
	EndedAt     time.Time `json:"ended_at,omitzero"`
	// Outcome is "cured", "not_cured", "failed", "unknown" or "not_begun"; empty while it runs.
	Outcome string `json:"outcome,omitempty"`
	// The proof: the boot IDs around the rung, and the tests after it with their figures.
	BootBefore string `json:"boot_before,omitempty"`
	BootAfter  string `json:"boot_after,omitempty"`
	Tests      []Test `json:"tests,omitempty"`
}

// Test is one check that verified a repair.
type Test struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}
