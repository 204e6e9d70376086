package metrics

import (
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// NodeCount is the number of nodes of a SKU and a region in a state, their registered GPUs, and how long
// ago, by the database's clock, the oldest of them entered it, for the gauges nodes, gpus and
// state_age_seconds.
type NodeCount struct {
	State         lifecycle.NodeState
	SKU           string
	Region        string
	Nodes         int64
	GPUs          int64
	OldestSeconds float64
}

// AgentCount is the number of nodes whose agent reported a version, for the gauge node_agents.
type AgentCount struct {
	Version string
	Nodes   int64
}

// QueueCount is how many tasks of a kind wait in Temporal's task queue, and the age of the oldest one, for
// the gauges gpuaas_queue_*.
type QueueCount struct {
	// Tasks is workflow or activity.
	Tasks         string
	Waiting       int64
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

// TaskCount is the number of node tasks of a status that is not terminal, and how long ago the oldest of
// them was created, for the gauges task_leases and task_age_seconds.
type TaskCount struct {
	Status        task.Status
	Tasks         int64
	OldestSeconds float64
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
	Unapproved  int64 // nodes whose repair needs an approval before it starts
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
// the gauge gpuaas_node_conditions. Both are empty for what nodes report beyond MaxNodeConditions.
type ConditionCount struct {
	Checker string
	Reason  string
	Nodes   int64
}

// CertificateCounts summarizes the certificates that nodes hold.
type CertificateCounts struct {
	// Held counts the current certificates.
	Held int64
	// ExpirySeconds is the time until the first of them expires; 0 without certificates.
	ExpirySeconds float64
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
