package adminapi

import (
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Page selects one page of a list.
type Page struct {
	// Limit is the number of rows, 1 to wire.MaxPage.
	Limit int
	// After is the sort key of the last row of the previous page, as the list
	// returned it; empty for the first page.
	After []string
}

// NodeQuery selects nodes, in order of host name. Conditions that are empty
// match every node; several values of one condition are alternatives.
type NodeQuery struct {
	Page
	States    []lifecycle.NodeState
	SKUs      []string
	Regions   []string
	Providers []string
	Issuers   []string // of the certificate in use
	// HostPrefix matches the beginning of the host name, HostPattern all of it
	// with * for any text and ? for one character.
	HostPrefix  string
	HostPattern string
	Selector    Selector
	// Removed includes nodes that were removed.
	Removed bool
	// View is how much of each node the rows need.
	View View
}

// View is how much of a node a list reads.
type View string

// The views. Each includes the previous one.
const (
	ViewName    View = "name"    // id, host and state
	ViewSummary View = "summary" // without facts, workloads and certificates
	ViewFull    View = "full"
)

// SKUQuery selects SKUs, in order of name.
type SKUQuery struct {
	Page
	// Active, if not nil, selects the SKUs that are active, or those that are not.
	Active *bool
}

// InstanceQuery selects instances, live and ended ones, newest first.
type InstanceQuery struct {
	Page
	NodeID    string
	States    []lifecycle.InstanceState
	Providers []string
}

// OperationQuery selects operations, newest first.
type OperationQuery struct {
	Page
	NodeID   string
	Actions  []lifecycle.Action
	Statuses []lifecycle.OperationState
	// WaitingOn and Reasons match parked operations.
	WaitingOn []lifecycle.Attention
	Reasons   []string
	// Open excludes operations that have ended.
	Open bool
	// Holds, if not nil, selects the operations that hold their node, or those that
	// do not: reissues.
	Holds *bool
	// Since excludes operations that started earlier, unless it is zero.
	Since    time.Time
	Selector Selector
	// Stuck selects operations that are parked or overdue, oldest first.
	Stuck bool
}

// TaskQuery selects tasks, newest first.
type TaskQuery struct {
	Page
	NodeID   string
	Statuses []task.Status
	Types    []task.Type
	Open     bool // excludes tasks that have ended; a lost task has not
	Orphaned bool // only tasks whose result could not be delivered to Temporal
	Since    time.Time
	Selector Selector // of their nodes
}

// SignalQuery selects signals, newest first.
type SignalQuery struct {
	Page
	NodeID   string
	Types    []health.SignalType // one that ends with .* means each type with this beginning
	Statuses []health.Status
	SKUs     []string
	Regions  []string
	Since    time.Time
	Selector Selector // of their nodes
}

// AuditQuery selects audit events of all streams, newest first.
type AuditQuery struct {
	Page
	Stream  string
	Actions []string
	Actors  []string
	Results []string
	Since   time.Time
	// Selector, if not empty, selects the streams of the nodes that match.
	Selector Selector
}
