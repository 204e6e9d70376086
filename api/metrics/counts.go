package metrics

import (
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// NodeCount is the number of nodes of a SKU and a region in a state, and how long ago, by the
// database's clock, the oldest of them entered it, for the gauges nodes and state_age_seconds.
type NodeCount struct {
	State         lifecycle.NodeState
	SKU           string
	Region        string
	Nodes         int64
	OldestSeconds float64
}

// StuckCount is the number of parked and abandoned operations of one phase and reason,
// for the gauge stuck_operations.
type StuckCount struct {
	Phase      string
	Reason     string
	Operations int64
}

// StuckNodeCount is the number of nodes of one row of the stuck table, for the gauge
// gpuaas_stuck_nodes.
type StuckNodeCount struct {
	Row   string
	Nodes int64
}

// TaskCount is the number of node tasks of a status that is not terminal, for
// the gauge task_leases.
type TaskCount struct {
	Status task.Status
	Tasks  int64
}

// IdentityCount is the number of nodes with a locked identity or an alarm of one reason, for
// the gauge identity_attention.
type IdentityCount struct {
	Reason string
	Nodes  int64
}

// RecoveryCounts is the state of health recovery, for the gauges gpuaas_recovery_*.
type RecoveryCounts struct {
	BreakerOpen bool
	Incidents   int64
	Nodes       int64 // in a phase other than healthy
	Used        int64 // operations that use budgets
	Blocked     int64 // nodes whose repair a budget stops
	RoundAge    float64
}

// PhaseCount is the number of nodes in a health phase, and how long ago, by the database's clock, the
// oldest of them entered it, for the gauges gpuaas_recovery_phase_*.
type PhaseCount struct {
	Phase         string
	Nodes         int64
	OldestSeconds float64
}

// SurplusCount is the number of machines at a provider that no instance owns, for the gauge
// gpuaas_surplus_machines.
type SurplusCount struct {
	Provider   string
	Leftovers  int64
	Orphans    int64
	Duplicates int64
}

// ConditionCount is the number of nodes with an unhealthy condition of a checker for one reason, for
// the gauge gpuaas_node_conditions.
type ConditionCount struct {
	Checker string
	Reason  string
	Nodes   int64
}

// CertificateCounts summarizes the certificates that nodes hold.
type CertificateCounts struct {
	// ShareLeft is the remaining share of the lifetime of the current certificate
	// that expires first, from 0 to 1; 1 without certificates.
	ShareLeft float64
	// Overdue counts current certificates that should have been renewed already.
	Overdue int64
	// Unpromoted counts certificates that were issued over UnpromotedAfter ago and
	// never used.
	Unpromoted int64
}

// TableSize is the size of a table.
type TableSize struct {
	Table string
	Rows  int64 // estimated
	Bytes int64 // with indexes
}
