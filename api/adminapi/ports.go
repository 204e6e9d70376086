package adminapi

import (
	"context"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Store is what the admin API needs of the database. Errors are *schema.Error.
type Store interface {
	// Register adds a node in state registered with its audit row. It checks
	// the SKU against the catalog (KindInvalidRequest, reason sku_unknown,
	// sku_inactive or sku_mismatch) and refuses a host name that a node which is
	// not removed already has (KindInvalidRequest, reason host_taken).
	Register(ctx context.Context, r wire.RegisterNodeRequest, by audit.Subject) (wire.NodeView, error)
	// Node finds a node by id, or by host name among the nodes that are not
	// removed and then among the removed. KindNotFound otherwise.
	Node(ctx context.Context, idOrHost string) (wire.NodeView, error)
	// Nodes lists all nodes by host name.
	Nodes(ctx context.Context) ([]wire.NodeView, error)
	// IssueToken voids the node's live enrolment tokens and stores a new one,
	// moves the node to bootstrap_issued and writes the workflow's event and the
	// audit row, in one transaction. KindInvalidRequest in a state that does not
	// enrol. A token that was claimed already stays good for the claiming key
	// beyond its own end; only a new token or the certificate's first use ends
	// that. With purpose reissue it voids every live token of the node, leaves
	// its state alone, writes audit nodes.reissue_enrollment with what it voided,
	// and is allowed in the states of schema's ReissueEnrollment row.
	IssueToken(ctx context.Context, t trust.MintedToken, by audit.Subject) error
	// IssueFetch stores a one-time reference to a bundle that is made when it is
	// fetched: hash and expiry only. UseFetch spends it in one conditional
	// update and returns its node and purpose; KindTokenConsumed, KindTokenExpired
	// or KindUnauthenticated otherwise. A node that takes no bundle as it is
	// (draining, say) is KindInvalidRequest and leaves the reference unspent. A
	// second use is refused whoever asks, also after a lost answer: unlike a
	// token, a reference is bound to no key that could tell a repeat from a
	// thief. The remedy is a new reference. Both leave an audit row with who asked.
	IssueFetch(ctx context.Context, t trust.MintedToken, by audit.Subject) error
	UseFetch(ctx context.Context, tokenID string, hash []byte, by audit.Subject) (nodeID string, purpose trust.TokenPurpose, err error)
	// Audit returns up to limit events of a stream after seq, in order.
	Audit(ctx context.Context, stream string, after int64, limit int) ([]audit.Event, error)
	// AuditStreams lists the streams there are.
	AuditStreams(ctx context.Context) ([]string, error)
	// Operations lists operations, newest first: of one node when nodeID is not
	// empty, only those that are not over when open.
	Operations(ctx context.Context, nodeID string, open bool) ([]wire.OperationSummary, error)
	// TaskList lists node tasks, newest first, without what they printed: of one
	// node when nodeID is not empty, only those that are not over when open.
	TaskList(ctx context.Context, nodeID string, open bool) ([]wire.TaskView, error)
	// Task returns a task with the end of what it printed. KindNotFound
	// otherwise.
	Task(ctx context.Context, taskID string) (wire.TaskView, error)
	// ResumeTask offers a lost task again, CancelTask ends a task or asks its
	// node to. Both leave an audit row. KindNotFound, and KindTaskStatus for a
	// task whose status does not allow it.
	ResumeTask(ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error)
	CancelTask(ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error)
}

// Lifecycle starts lifecycle workflows.
type Lifecycle interface {
	// Submit starts the action's workflow with the early answer: accepted, or a
	// typed refusal (KindOperationInProgress, KindNodeInUse, KindInvalidRequest,
	// KindNotFound). The same operation id again attaches to its own run.
	// KindServiceUnavailable names Temporal's address.
	Submit(ctx context.Context, in lifecycle.OperationInput) (lifecycle.Operation, error)
}

// Trust is the public trust material a bundle carries.
type Trust interface {
	// ServerCA and NodeCA return PEM bundles.
	ServerCA(ctx context.Context) (string, error)
	NodeCA(ctx context.Context) (string, error)
	// TaskTrust returns what a node starts from when it judges tasks: the keys
	// of the newest verifier set, its root, and itself as the floor.
	// KindServiceUnavailable while none was checked, KindInternal when Vault's
	// keys are not the set's.
	TaskTrust(ctx context.Context) (trust.TaskTrust, error)
}
