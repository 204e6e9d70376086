package activities

import (
	"context"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
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
	// Watched returns the open operations that are older than lifecycle.WatchGrace,
	// abandoned ones included, ordered by operation ID. It starts after the ID after,
	// "" for the first ones.
	Watched(ctx context.Context, after string, limit int) ([]WatchedOperation, error)
	// Abandon marks an open operation as abandoned: in one transaction it stores the
	// reason and the options, voids the operation's tasks, writes an audit row and wakes
	// the node's poll. The node's state does not change. Nothing changes if the
	// operation ended, is abandoned, or if runID is not its newest run.
	Abandon(ctx context.Context, operationID, runID string, end lifecycle.RunEnd) error
	// Continue marks an abandoned operation as running, because a run of it is open
	// after all: an operator reset the one that ended. Nothing changes if the operation
	// is not abandoned, or if runID is not the newest run on record.
	Continue(ctx context.Context, operationID, runID string) error
}

// Runs reads the runs of operations from Temporal.
type Runs interface {
	// RunEnd returns how the operation's last run ended, or "" while a run of the
	// operation is open. Any error means that it is not known.
	RunEnd(ctx context.Context, op lifecycle.Operation) (lifecycle.RunEnd, error)
}

// watchBatch is how many operations one query reads.
const watchBatch = 100

// Watch has the activity that finds abandoned operations.
type Watch struct {
	Abandoner Abandoner
	Runs      Runs
	// OnAbandon observes each operation whose run ended. A repeated activity may call
	// it twice. nil observes nothing.
	OnAbandon func(a lifecycle.Action, end lifecycle.RunEnd)
}

// WatchSummary is the result of one run of the watch.
type WatchSummary struct {
	// Watched is the number of operations whose run was read.
	Watched int `json:"watched,omitempty"`
	// Ends are the operations that were marked as abandoned, by reason.
	Ends map[lifecycle.RunEnd]int `json:"ends,omitempty"`
	// Abandoned are the first of them.
	Abandoned []AbandonedOperation `json:"abandoned,omitempty"`
	// After is the last operation that was watched.
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

// AbandonOperations marks every operation that no run continues; see Abandoner. A second attempt
// continues after the last operation of the first one. If the run of one operation
// cannot be read, AbandonOperations continues with the others and returns the error at
// the end. KindServiceUnavailable ends the attempt.
func (w *Watch) AbandonOperations(ctx context.Context) (WatchSummary, error) {
	done := WatchSummary{Ends: map[lifecycle.RunEnd]int{}}
	if activity.HasHeartbeatDetails(ctx) {
		if err := activity.GetHeartbeatDetails(ctx, &done); err != nil {
			return WatchSummary{}, Fail(schema.Wrap(schema.KindInternal, err, "reading the progress of the previous attempt"))
		}
	}
	var failed error
	for more := true; more; {
		batch, err := w.Abandoner.Watched(ctx, done.After, watchBatch)
		if err != nil {
			return WatchSummary{}, Fail(err)
		}
		for _, op := range batch {
			err := w.watch(ctx, &done, op)
			if schema.KindOf(err) == schema.KindServiceUnavailable {
				return WatchSummary{}, Fail(err)
			}
			if err != nil && failed == nil {
				failed = err
			}
			activity.RecordHeartbeat(ctx, done)
			if ctx.Err() != nil {
				return WatchSummary{}, Fail(ctx.Err())
			}
		}
		more = len(batch) == watchBatch
	}
	if failed != nil {
		// All other operations are decided. A retry would hide the failed one.
		return WatchSummary{}, Failure(schema.AsError(failed), true)
	}
	return done, nil
}

// watch reads the run of one operation and marks the operation as abandoned if the run
// ended, and as running if a run is open again.
func (w *Watch) watch(ctx context.Context, done *WatchSummary, op WatchedOperation) error {
	id := op.Operation.OperationID
	known := op.Operation.Status == lifecycle.OperationAbandoned
	end, err := w.Runs.RunEnd(ctx, op.Operation)
	switch {
	case err != nil:
	case end != "" && !known:
		err = w.Abandoner.Abandon(ctx, id, op.Operation.RunID, end)
	case end == "" && known:
		err = w.Abandoner.Continue(ctx, id, op.Operation.RunID)
	}
	if schema.KindOf(err) == schema.KindServiceUnavailable {
		return err
	}
	done.After = id
	done.Watched++
	if err != nil || end == "" || known {
		return err
	}
	done.Ends[end]++
	if len(done.Abandoned) < maxDecisionsShown {
		done.Abandoned = append(done.Abandoned, AbandonedOperation{OperationID: id, NodeID: op.NodeID, Host: op.Host,
			Action: op.Operation.Action, End: end})
	}
	if w.OnAbandon != nil {
		w.OnAbandon(op.Operation.Action, end)
	}
	return nil
}
