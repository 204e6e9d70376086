package activities

import (
	"context"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// WatchedOperation is an open operation whose run must be open, too.
type WatchedOperation struct {
	// Operation has the operation's ids, its action, status, phase rows and start.
	// RunID is that of the newest run.
	Operation lifecycle.Operation `json:"operation"`
	NodeID    string              `json:"node_id"`
	Host      string              `json:"host"`
}

// Abandoner finds and marks operations that no run continues. Errors are
// *schema.Error.
type Abandoner interface {
	// Watched returns the open operations that are not abandoned and older than
	// lifecycle.WatchGrace, ordered by operation ID. It starts after the ID after, ""
	// for the first ones.
	Watched(ctx context.Context, after string, limit int) ([]WatchedOperation, error)
	// Abandon marks an open operation as abandoned: in one transaction it stores the
	// reason and the options, voids the operation's tasks, writes an audit row and wakes
	// the node's poll. The node's state does not change. Nothing changes if the
	// operation ended, is abandoned, or if runID is not its newest run.
	Abandon(ctx context.Context, operationID, runID string, end lifecycle.RunEnd) error
}

// Runs reads the runs of operations from Temporal.
type Runs interface {
	// RunEnd returns how the operation's last run ended, or "" while a run of the
	// operation is open. Any error means that it is not known.
	RunEnd(ctx context.Context, op lifecycle.Operation) (lifecycle.RunEnd, error)
}

// Watch has the activity that finds abandoned operations.
type Watch struct {
	Abandoner Abandoner
	Runs      Runs
	// OnAbandon observes each operation that is marked. nil observes nothing.
	OnAbandon func(a lifecycle.Action, end lifecycle.RunEnd)
}

// WatchSummary is the result of one run of the watch.
type WatchSummary struct {
	// Watched is the number of operations whose run was read.
	Watched int `json:"watched,omitempty"`
	// Abandoned are the operations that were marked, by reason.
	Abandoned map[lifecycle.RunEnd]int `json:"abandoned,omitempty"`
	// Operations are the first of them.
	Operations []AbandonedOperation `json:"operations,omitempty"`
	// After is the last operation of the last complete batch.
	After string `json:"after,omitempty"`
}

// AbandonedOperation is an operation that the watch marked.
type AbandonedOperation struct {
	OperationID string           `json:"operation_id"`
	NodeID      string           `json:"node_id"`
	Host        string           `json:"host"`
	Action      lifecycle.Action `json:"action"`
	End         lifecycle.RunEnd `json:"end"`
}

// AbandonOperations marks every abandoned operation; see Abandoner. A second attempt
// continues after the last batch that the first one completed.
func (w *Watch) AbandonOperations(context.Context) (WatchSummary, error) {
	return WatchSummary{}, nil
}
