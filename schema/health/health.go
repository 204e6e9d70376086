// Package health describes whether a node works: the results of checks, the signals that they
// leave, and the phases of its recovery. It is pure: it reads no clock, no file and no network.
//
// Reporters (the node agent, the cluster agent) run checkers on samples and report conditions. The
// control plane stores the conditions, writes a signal for each change, and decides with a policy
// (package recovery) whether a node is repaired.
package health

import "time"

// Status is the result of one check.
type Status string

// The statuses. A check that did not end, or whose input is missing, is unknown: it is no reason
// for a repair, and it ends none.
const (
	Healthy   Status = "healthy"
	Unhealthy Status = "unhealthy"
	Unknown   Status = "unknown"
)

// Repair is what cures a fault, as the device or its vendor's table says. The policy of the
// installation decides what is done.
type Repair string

// The repairs, the least harmful first.
const (
	RepairNone     Repair = "none"      // a fault of the workload, or information
	RepairObserve  Repair = "observe"   // unknown code: report it, act on nothing
	RepairRestart  Repair = "restart"   // restart a service of the node
	RepairResetGPU Repair = "reset_gpu" // reset the GPU, which ends the work on it
	RepairReboot   Repair = "reboot"    // restart the node
	RepairReplace  Repair = "replace"   // drain the node, and replace its machine
	RepairRMA      Repair = "rma"       // the hardware must be repaired
)

// Condition is the result of one checker for the node or one of its components.
type Condition struct {
	// Checker is the name of the checker: 1 to MaxName of a-z 0-9 _
	Checker string `json:"checker"`
	// Component is the part of the node, for example the UUID of a GPU; empty for the node. At most
	// MaxComponent printable ASCII characters.
	Component string `json:"component,omitempty"`
	Status    Status `json:"status"`
	// Reason is one of the checker's constants: 1 to MaxReason of A-Z a-z 0-9 _
	Reason string `json:"reason"`
	// Code is the device's code, for example of an XID; 0 for none.
	Code int `json:"code,omitempty"`
	// Repair is what the fault needs; empty if the status is not Unhealthy.
	Repair Repair `json:"repair,omitempty"`
	// Detail is one line for operators, at most MaxDetail printable ASCII characters. It is
	// untrusted.
	Detail string `json:"detail,omitempty"`
	// Since is when the reporter first saw this status of the checker and the component, by its
	// clock. It does not change while only the reason changes.
	Since time.Time `json:"since"`
	// Samples counts the checks since then with this status.
	Samples int `json:"samples,omitempty"`
	// FaultSince and FaultSamples are Since and Samples of the fault that an unknown condition
	// interrupts, so that it continues when it is seen again. Zero for other conditions.
	FaultSince   time.Time `json:"fault_since,omitzero"`
	FaultSamples int       `json:"fault_samples,omitempty"`
	// UnknownSeconds is how much of the time since the fault began was unknown; see Lasted.
	UnknownSeconds int64 `json:"unknown_seconds,omitempty"`
}

// Report is what a reporter found at one time. It lists every checker that applies to the node, so
// a checker that is missing no longer applies.
type Report struct {
	At         time.Time   `json:"at"`
	BootID     string      `json:"boot_id,omitempty"`
	Conditions []Condition `json:"conditions"` // at most MaxConditions
}

// The limits of a report.
const (
	MaxConditions = 128
	MaxName       = 32
	MaxReason     = 64
	MaxComponent  = 64
	MaxDetail     = 256
)

// Phase is where a node is in its recovery. It is separate from the node's state.
type Phase int

// The phases. The zero value is PhaseUnknown: nothing was checked yet.
const (
	PhaseUnknown Phase = iota
	PhaseHealthy
	PhaseUnhealthy
	PhaseWaitingReboot
	PhaseDrain
	PhaseReplace
)
