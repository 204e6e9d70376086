package recovery

import (
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// Policy says which faults are repaired, how, and what stops a repair. Policies are documents: see
// DecodePolicy and Default.
type Policy struct {
	// Mode defaults to monitor: decisions are recorded and no repair starts.
	Mode Mode `json:"mode"`
	// Ladders are tried in order; the first whose match fits the node and the fault gives the rungs. A
	// fault that no ladder fits is not repaired.
	Ladders []Ladder `json:"ladders"`
	// Repairs replace the repair that the reporter named, for example for one XID. The first match
	// applies.
	Repairs []Override `json:"repairs"`
	// ReplaceClasses are the classes whose nodes without GPUs may be replaced, GPUReplaceClasses those
	// whose nodes with GPUs may. A node of another class is rebooted at most.
	ReplaceClasses    []string `json:"replace_classes"`
	GPUReplaceClasses []string `json:"gpu_replace_classes"`
	// Budgets limit the repairs that run at once. All that apply to a node must allow its repair. An
	// armed policy needs one for the fleet.
	Budgets []Budget `json:"budgets"`
	// MaxOut limits the nodes that repairs have quarantined, and no person has released, together with
	// the repairs that run: each of those may end in a quarantine too. A percentage allows at least
	// MinCorrelated nodes.
	MaxOut  []Budget `json:"max_out"`
	Breaker Breaker  `json:"breaker"`
	Suspect Suspect  `json:"suspect"`
	Rack    RackRule `json:"rack"`
	// BootGrace is how long after a boot no fault of the node is repaired.
	BootGrace Duration `json:"boot_grace"`
	// Samples is how many checks must have seen a fault.
	Samples int `json:"samples"`
	// Threshold is how long a fault must last before its repair; Thresholds are those of checkers, by
	// name, that differ.
	Threshold  Duration            `json:"threshold"`
	Thresholds map[string]Duration `json:"thresholds"`
	// Cooldown is how long after a repair of a node no other starts on it.
	Cooldown Duration `json:"cooldown"`
	Flapping Flapping `json:"flapping"`
	// Windows are times in which matching nodes are not repaired.
	Windows []Window `json:"windows"`
	// Approvals are the rungs that an operator must approve.
	Approvals []Rung `json:"approvals"`
	// DisabledCheckers are the names of checkers whose faults count for nothing.
	DisabledCheckers []string `json:"disabled_checkers"`
}

// Ladder is the rungs for the faults that match.
type Ladder struct {
	Match Match  `json:"match,omitzero"`
	Rungs []Rung `json:"rungs"`
}

// Override is the repair of the faults that match.
type Override struct {
	Match  Match         `json:"match"`
	Repair health.Repair `json:"repair"`
}

// Match selects nodes and faults. An empty field matches all; all fields must match.
type Match struct {
	SKUs     []string        `json:"skus,omitempty"`
	Classes  []string        `json:"classes,omitempty"`
	Regions  []string        `json:"regions,omitempty"`
	Racks    []string        `json:"racks,omitempty"`
	Hosts    []string        `json:"hosts,omitempty"`
	GPU      *bool           `json:"gpu,omitempty"` // whether the node has GPUs
	Checkers []string        `json:"checkers,omitempty"`
	Reasons  []string        `json:"reasons,omitempty"`
	Codes    []int           `json:"codes,omitempty"`
	Repairs  []health.Repair `json:"repairs,omitempty"` // what the fault needs
}

// Budget is how many repairs may run at once in each place of its scope. The limit is the smaller of
// Count and Percent of the nodes that can show the fault, rounded down. 0 means none. For one SKU, rack
// or region, a budget with its Key replaces that without a key.
type Budget struct {
	Scope Scope `json:"scope"`
	// Key is the SKU, rack or region to which the budget applies; empty means each one.
	Key     string `json:"key,omitempty"`
	Count   int    `json:"count"`
	Percent int    `json:"percent"`
}

// Breaker stops all repairs if many nodes become unhealthy at once: Nodes or Percent of the fleet,
// whichever is fewer, but at least MinCorrelated, within Within. HalfOpenAfter later, one node is
// repaired; the breaker closes when that repair is verified.
type Breaker struct {
	Nodes         int      `json:"nodes"`
	Percent       int      `json:"percent"`
	Within        Duration `json:"within"`
	HalfOpenAfter Duration `json:"half_open_after"`
}

// Suspect stops the repairs for a reason that spread from the first node to Percent of the nodes that
// can show it within Within: the checker may be wrong.
type Suspect struct {
	Percent int      `json:"percent"`
	Within  Duration `json:"within"`
	// Trusted are reasons, as "checker/Reason", that an operator confirmed.
	Trusted []string `json:"trusted,omitempty"`
}

// RackRule makes one incident of the faults of a rack if at least Percent of its nodes and at least
// Nodes have one. These nodes are not repaired.
type RackRule struct {
	Percent int `json:"percent"`
	Nodes   int `json:"nodes"`
}

// Flapping stops the repairs of a node that was repaired Repairs times within Within: a person
// decides.
type Flapping struct {
	Repairs int      `json:"repairs"`
	Within  Duration `json:"within"`
}

// Window is a maintenance window: either Start to End, or Weekly.
type Window struct {
	Match  Match     `json:"match,omitzero"` // nodes only
	Start  time.Time `json:"start,omitzero"`
	End    time.Time `json:"end,omitzero"`
	Weekly *Weekly   `json:"weekly,omitempty"`
	Reason string    `json:"reason"`
}

// Weekly is a window of each week, in UTC.
type Weekly struct {
	Days []string `json:"days"` // "mon" to "sun", the days on which it begins
	At   string   `json:"at"`   // "22:00"
	For  Duration `json:"for"`  // at most 24h
}

// LookBack is the longest time that a policy looks back at repairs: attempts are read, and kept, for as
// long.
const LookBack = 30 * 24 * time.Hour

// MinCorrelated is the smallest number of nodes that the rules for faults of many nodes count as many.
const MinCorrelated = 3

// gpuFault reports whether only nodes with GPUs can have faults of a checker.
func gpuFault(checker string) bool { return strings.HasPrefix(checker, "gpu") }

// threshold returns how long a fault of a checker must last.
func (p Policy) threshold(checker string) time.Duration {
	if d, ok := p.Thresholds[checker]; ok {
		return time.Duration(d)
	}
	return time.Duration(p.Threshold)
}
