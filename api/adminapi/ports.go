package adminapi

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Errors of the ports are *schema.Error. A list returns its rows and the sort key
// of the last row, which is nil when there is no further page.

// Nodes stores nodes.
type Nodes interface {
	// Register adds a node with the id in state registered with its audit row. It checks
	// the SKU against the catalog (KindInvalidRequest, reason sku_unknown,
	// sku_inactive or sku_mismatch) and refuses a host name that another node
	// which is not removed has (KindInvalidRequest, reason host_taken). Without a
	// number of GPUs the node gets that of its SKU.
	Register(ctx context.Context, id string, r wire.RegisterNodeRequest, by audit.Subject) (wire.NodeView, error)
	// Node finds a node by id, or by host name among the nodes that are not
	// removed and then among the removed. KindNotFound otherwise, with a host name
	// that is close in the message when there is one.
	Node(ctx context.Context, idOrHost string) (wire.NodeView, error)
	// SetNode changes a node's registered properties with its audit row and
	// returns the node. KindNotFound; KindInvalidRequest with the reasons of Register
	// for an SKU or a number of GPUs, and with reason enrolled for an SKU or a region
	// once the node has enrolled.
	SetNode(ctx context.Context, nodeID string, c wire.NodeChange, by audit.Subject) (wire.NodeView, error)
	ListNodes(ctx context.Context, q NodeQuery) (nodes []wire.NodeView, next []string, err error)
}

// SKUs stores the SKU catalog.
type SKUs interface {
	// ListSKUs lists the SKUs in order of name.
	ListSKUs(ctx context.Context, q SKUQuery) (skus []inventory.SKU, next []string, err error)
	// SKU returns a SKU. KindNotFound otherwise.
	SKU(ctx context.Context, name string) (inventory.SKU, error)
	// AddSKU adds a SKU with its audit row. An active SKU with the same content stays
	// as it is, and an inactive one becomes active. KindAlreadyExists for other content.
	AddSKU(ctx context.Context, n inventory.NewSKU, by audit.Subject) (inventory.SKU, error)
	// DeactivateSKU makes the catalog refuse new nodes of the SKU, with its audit row,
	// unless it already does. KindNotFound.
	DeactivateSKU(ctx context.Context, name, reason string, by audit.Subject) (inventory.SKU, error)
}

// Machines reads the providers of the workers and the instances of nodes.
type Machines interface {
	// Providers returns the providers that the workers have stored, in order of name.
	Providers(ctx context.Context) ([]machine.Provider, error)
	// Instance returns an instance, live or ended. KindNotFound otherwise.
	Instance(ctx context.Context, instanceID string) (instance.View, error)
	ListInstances(ctx context.Context, q InstanceQuery) (instances []instance.View, next []string, err error)
}

// Signals reads the signals of nodes and stores reports about their health.
type Signals interface {
	ListSignals(ctx context.Context, q SignalQuery) (signals []health.Signal, next []string, err error)
	// ReportHealth replaces the conditions that the cluster agent reported for the node, with a
	// signal for each change. A second call with the report changes nothing. accepted is false
	// if a newer report is stored.
	ReportHealth(ctx context.Context, n wire.NodeView, r health.Report) (accepted bool, err error)
}

// Repairs reads what is kept of repairs.
type Repairs interface {
	// Evidence returns that of the node's last repair that cured nothing. KindNotFound if there is none.
	Evidence(ctx context.Context, node wire.NodeView) (evidence.Bundle, error)
}

// EnrollmentTokens stores enrollment tokens and references to bundles.
type EnrollmentTokens interface {
	// TokenExpiry returns when a token or a reference that is issued now expires. It counts
	// from the database's time, against which they are checked.
	TokenExpiry(ctx context.Context) (time.Time, error)
	// IssueToken voids the node's live enrollment tokens and stores a new one,
	// moves the node to bootstrap_issued and writes the workflow's event and the
	// audit row, in one transaction. It returns KindInvalidRequest in a state that
	// does not enroll. A claimed token remains valid for the claiming key after it
	// expires, until there is a new token or the certificate is used. With purpose
	// reissue it voids every live token of the node, keeps the node's state, writes
	// the voided tokens into the audit row, and is allowed in the
	// start states of the action reissue-enrollment.
	IssueToken(ctx context.Context, t trust.MintedToken, by audit.Subject) error
	// IssueFetch stores a one-time reference to a bundle that is made when it is
	// fetched: hash and expiry only. UseFetch spends it in one conditional
	// update and returns its node and purpose; KindTokenConsumed, KindTokenExpired
	// or KindUnauthenticated otherwise. If the node's state allows no bundle
	// (draining, for example), UseFetch returns KindInvalidRequest and does not spend
	// the reference. A second use is always rejected, even after a lost response:
	// unlike a token, a reference is not bound to a key that distinguishes a repeat
	// from theft. The operator then creates a new reference. Both write an audit row
	// with the remote subject.
	IssueFetch(ctx context.Context, t trust.MintedToken, by audit.Subject) error
	UseFetch(ctx context.Context, tokenID string, hash []byte, by audit.Subject) (nodeID string, purpose trust.TokenPurpose, err error)
	// CheckFetch returns the node of a reference that UseFetch would spend, and when the
	// reference expires. It rejects and audits as UseFetch does, and changes nothing: a
	// success writes no audit row.
	CheckFetch(ctx context.Context, tokenID string, hash []byte, by audit.Subject) (nodeID string, expires time.Time, err error)
}

// Operations reads operations.
type Operations interface {
	// Operation returns the operation's whole status. KindNotFound otherwise.
	Operation(ctx context.Context, operationID string) (lifecycle.OperationStatus, error)
	ListOperations(ctx context.Context, q OperationQuery) (ops []wire.OperationSummary, next []string, err error)
	// ListStuck is ListOperations with the state of each node. Page.After has the
	// same form.
	ListStuck(ctx context.Context, q OperationQuery) (ops []wire.StuckOperation, next []string, err error)
	// CountStuck returns the number of operations on the query's page of ListStuck and
	// all later pages.
	CountStuck(ctx context.Context, q OperationQuery) (int, error)
	// NoteStored writes the audit row of a decision that Temporal stored for a later
	// worker, once for the decision's ID. KindNotFound if there is no such operation.
	NoteStored(ctx context.Context, r lifecycle.ResolveRequest, correlationID string) error
}

// Tasks reads node tasks and decides about them.
type Tasks interface {
	// Task returns a task with the end of its output. KindNotFound otherwise.
	Task(ctx context.Context, taskID string) (wire.TaskView, error)
	// ResumeTask dispatches a lost task again. CancelTask ends a task, or requests
	// its node to end it. Both write an audit row. KindNotFound, and KindTaskStatus
	// for a task whose status does not allow the decision.
	ResumeTask(ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error)
	CancelTask(ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error)
	ListTasks(ctx context.Context, q TaskQuery) (tasks []wire.TaskView, next []string, err error)
}

// Trail reads the audit trail and the changes for the event stream.
type Trail interface {
	ListAudit(ctx context.Context, q AuditQuery) (events []audit.Row, next []string, err error)
	// AuditStreams lists the streams of the audit trail in order; AuditStream returns
	// up to limit events of one after seq, in order of seq.
	AuditStreams(ctx context.Context, p Page) (streams, next []string, err error)
	AuditStream(ctx context.Context, stream string, after int64, limit int) ([]audit.Event, error)
	// AuditHead returns the head of a stream, zero if it has none.
	AuditHead(ctx context.Context, stream string) (audit.Head, error)
	// Changes returns the next limit operations that changed and audit events that
	// were stored after the position, in order of position. A zero position is
	// ChangesOverlap before the database's time.
	Changes(ctx context.Context, after Position, limit int) ([]Change, error)
}

// Insights reads what the records say about a node, the fleet and past operations.
type Insights interface {
	// ListStuckNodes lists the nodes of the stuck table's rows about nodes, oldest first, at most
	// stuck.MaxNodes, and returns how many more there are. Only the query's node and selector
	// count.
	ListStuckNodes(ctx context.Context, q OperationQuery) (nodes []stuck.Node, more int, err error)
	// Evidence returns what the database has about a node, for package cause. KindNotFound.
	Evidence(ctx context.Context, nodeID string, lookback time.Duration) (cause.Evidence, error)
	// Cause returns the stored probable cause of an operation's park since a time, nil without one.
	Cause(ctx context.Context, operationID string, since time.Time) (*cause.Report, error)
	// Capacity counts nodes by SKU and region, of one SKU and one region if they are not empty.
	Capacity(ctx context.Context, sku, region string) ([]insight.Capacity, error)
	// Fleet counts the nodes that are not removed by region, SKU and state, and the operations that
	// ended in the last 24 hours by status.
	Fleet(ctx context.Context) (insight.Fleet, error)
	// Durations returns how long the newest completed operations of an action took, of nodes of
	// one provider.
	Durations(ctx context.Context, a lifecycle.Action, provider string) ([]insight.Duration, error)
}

// Checkpoints reads the signed checkpoints of the audit trail.
type Checkpoints interface {
	// After returns up to limit checkpoints above a number, in order.
	After(ctx context.Context, number int64, limit int) ([]audit.StoredCheckpoint, error)
	// AcceptMissing ends the alarm about the checkpoints that nodes keep and the
	// database lost, with an audit row, and returns how many there were.
	AcceptMissing(ctx context.Context, reason string, by audit.Subject) (int64, error)
}

// Change is one entry of the event stream: an operation that changed or an audit
// event. One of the two is set.
type Change struct {
	Position
	Operation *wire.OperationSummary
	Audit     *audit.Event
}

// Position is the place of a change among all changes, in order of its fields.
type Position struct {
	At     time.Time // by the database's clock, in UTC
	Stream string    // an audit stream or the id of an operation
	Seq    int64     // of an audit event
}

// ChangesOverlap is how far before the newest change a later one may appear,
// because transactions do not commit in the order of their times. It is longer
// than any call of the database.
const ChangesOverlap = 20 * time.Second

// Lifecycle starts lifecycle workflows and delivers decisions to them.
type Lifecycle interface {
	// Submit starts the action's workflow and returns when the claim is decided:
	// accepted, or a typed rejection (KindOperationInProgress, KindNodeInUse,
	// KindInvalidRequest, KindNotFound). The same operation id again attaches to its
	// own run.
	// KindServiceUnavailable names Temporal's address.
	Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error)
	// Resolve delivers a decision to the running operation of a workflow id and
	// returns the status after it. A decision with the same id again returns the
	// first response. KindDecisionOutdated if the decision is addressed to another
	// operation, phase or parking; KindNotFound if none runs; KindInvalidRequest if
	// the phase does not allow it.
	// KindKeyInUse if that decision had other content. KindServiceUnavailable with reason
	// lifecycle.ReasonCancelStored if Temporal stored a cancel for a later worker, and
	// lifecycle.ReasonDecisionAccepted if the operation applies the decision later.
	Resolve(ctx context.Context, workflowID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error)
	// Resolved returns the first response to a decision by its id, even after the run
	// ended, as long as Temporal retains the run. KindNotFound if the run received no
	// such decision, KindKeyInUse if that decision had other content.
	Resolved(ctx context.Context, workflowID, runID string, r lifecycle.ResolveRequest) (lifecycle.OperationStatus, error)
	// RunEnds returns for each operation how its last run ended, or "" while a run of it
	// is open, whatever the database has of the operation. An error means that it is not
	// known.
	RunEnds(ctx context.Context, ops []lifecycle.Operation) (ends []lifecycle.RunEnd, errs []error)
	// RunFaults returns the calls of an open operation that fail and are retried.
	RunFaults(ctx context.Context, op lifecycle.Operation) ([]wire.ControlPlaneFault, error)
}

// Rehydrator ends the operations of nodes that have no open run.
type Rehydrator interface {
	// Rehydrate reads the runs of the node's open operations, marks those that have
	// none as abandoned, and accepts the end of every abandoned operation of the node.
	// Repeating a call changes nothing. KindNotFound; KindOperationInProgress if the run
	// of every open operation is open; KindServiceUnavailable, without a change, if
	// Temporal does not respond.
	Rehydrate(ctx context.Context, nodeID, reason string, by audit.Subject) (lifecycle.Rehydration, error)
}

// Trust is the public trust material of a bundle.
type Trust interface {
	// ServerCA and NodeCA return PEM bundles.
	ServerCA(ctx context.Context) (string, error)
	NodeCA(ctx context.Context) (string, error)
	// TaskTrust returns the first trust of a node that verifies tasks: the keys of
	// the newest verifier set, its root, and its version as the floor.
	// KindServiceUnavailable until a set was checked, KindInternal if Vault's keys
	// are not those of the set.
	TaskTrust(ctx context.Context) (trust.TaskTrust, error)
}
