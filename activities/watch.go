package activities

import (
	"cmp"
	"context"
	"time"

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
	// the node's poll. The node's state does not change. Nothing changes, and marked is
	// false, if the operation ended, is abandoned, or if runID is not its newest run.
	Abandon(ctx context.Context, operationID, runID string, end lifecycle.RunEnd) (marked bool, err error)
	// Continue marks an abandoned operation as running, because a run of it is open
	// after all: an operator reset the one that ended. Nothing changes if the operation
	// is not abandoned, or if runID is not the newest run on record.
	Continue(ctx context.Context, operationID, runID string) error
}

// Runs reads the runs of operations from Temporal.
type Runs interface {
	// RunEnds returns for each operation how its last run ended, or "" while a run of
	// the operation is open. An error means that it is not known. After
	// KindServiceUnavailable it may omit the other reads and return the same error for them.
	RunEnds(ctx context.Context, ops []lifecycle.Operation) (ends []lifecycle.RunEnd, errs []error)
}

const (
	// watchBatch is how many operations one query reads.
	watchBatch = 100
	// maxMissingKept bounds the missing runs that a round marks; the next one marks more.
	maxMissingKept = 500
)

// Watch has the activity that finds abandoned operations.
type Watch struct {
	Abandoner Abandoner
	Runs      Runs
	// Budget is how long a round reads; 0 means three quarters of lifecycle.RoundTry.
	Budget time.Duration
	// OnAbandon observes each operation that was marked as abandoned. nil observes nothing.
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
	// More is set if the time of the round was over before the last operation. The next
	// round continues after After.
	More bool `json:"more,omitempty"`
}

// AbandonedOperation is an operation that the watch marked.
type AbandonedOperation struct {
	OperationID string           `json:"operation_id"`
	NodeID      string           `json:"node_id"`
	Host        string           `json:"host"`
	Action      lifecycle.Action `json:"action"`
	End         lifecycle.RunEnd `json:"end"`
}

// round is the progress of AbandonOperations, which its heartbeats store.
type round struct {
	WatchSummary
	// Open is the number of operations that were read and not abandoned before, and
	// NotFound the number of them whose run Temporal does not have.
	Open     int `json:"open,omitempty"`
	NotFound int `json:"not_found,omitempty"`
	// Missing are the first of those that are not marked yet.
	Missing []ended `json:"missing,omitempty"`
}

// ended is an operation whose run ended.
type ended struct {
	AbandonedOperation
	RunID string `json:"run_id"`
}

// AbandonOperations marks every operation that no run continues; see Abandoner. It marks
// those whose run Temporal does not have at the end, and none of them if there are too
// many: then the worker probably uses the wrong namespace. It fails in that case, with
// reason runs_missing.
//
// It starts after the operation after, "" for the first one. If the time of the round is over,
// the summary has the last operation that was read. The missing runs that it counts are those
// of the part that it read.
//
// A second attempt continues after the last operation of the first one. If the run of one
// operation cannot be read, AbandonOperations continues with the others and returns the
// error at the end. KindServiceUnavailable ends the attempt.
func (w *Watch) AbandonOperations(ctx context.Context, after string) (WatchSummary, error) {
	r := round{WatchSummary: WatchSummary{Ends: map[lifecycle.RunEnd]int{}, After: after}}
	if activity.HasHeartbeatDetails(ctx) {
		if err := activity.GetHeartbeatDetails(ctx, &r); err != nil {
			return WatchSummary{}, Fail(schema.Wrap(schema.KindInternal, err, "reading the progress of the previous attempt"))
		}
	}
	failed, err := w.readAll(ctx, &r)
	if err != nil {
		return WatchSummary{}, Fail(err)
	}
	if lifecycle.TooManyMissing(r.NotFound, r.Open) {
		return WatchSummary{}, Failure(errRunsMissing(r), true)
	}
	for len(r.Missing) > 0 {
		if err := w.abandon(ctx, &r, r.Missing[0]); schema.KindOf(err) == schema.KindServiceUnavailable {
			return WatchSummary{}, Fail(err)
		} else if failed == nil {
			failed = err
		}
		if r.Missing = r.Missing[1:]; len(r.Missing)%watchBatch == 0 {
			activity.RecordHeartbeat(ctx, r)
		}
	}
	if failed != nil {
		// All other operations are decided. A retry would hide the failed one.
		return WatchSummary{}, Failure(schema.AsError(failed), true)
	}
	return r.WatchSummary, nil
}

func errRunsMissing(r round) *schema.Error {
	return schema.NewError(schema.KindServiceUnavailable,
		"Temporal does not have the runs of %d of %d open operations, so none of these operations was marked as abandoned", r.NotFound, r.Open).
		WithReason(lifecycle.ReasonRunsMissing).WithNext("check TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE of gpuaas-worker; if the runs are lost: " +
		lifecycle.RehydrateCommand("--stuck-reason "+string(lifecycle.RunLost)))
}

// readAll reads the runs of all operations after r.After and marks those whose run was
// found and ended. failed is the first error about a single operation.
func (w *Watch) readAll(ctx context.Context, r *round) (failed, err error) {
	for until := time.Now().Add(cmp.Or(w.Budget, lifecycle.RoundTry*3/4)); ; {
		batch, err := w.Abandoner.Watched(ctx, r.After, watchBatch)
		if err != nil || len(batch) == 0 {
			return failed, err
		}
		ops := make([]lifecycle.Operation, len(batch))
		for i, op := range batch {
			ops[i] = op.Operation
		}
		ends, errs := w.Runs.RunEnds(ctx, ops)
		for i, op := range batch {
			err := errs[i]
			if err == nil {
				err = w.decide(ctx, r, op, ends[i])
			}
			if schema.KindOf(err) == schema.KindServiceUnavailable {
				return failed, err
			}
			if err != nil && failed == nil {
				failed = err
			}
			r.After = op.Operation.OperationID
			r.Watched++
		}
		activity.RecordHeartbeat(ctx, *r)
		if ctx.Err() != nil || len(batch) < watchBatch {
			return failed, ctx.Err()
		}
		if r.More = time.Now().After(until); r.More {
			return failed, nil
		}
	}
}

// decide marks an operation as abandoned if its run ended, and as running if a run is
// open again. It keeps an operation whose run is missing for the end of the round.
func (w *Watch) decide(ctx context.Context, r *round, op WatchedOperation, end lifecycle.RunEnd) error {
	o := op.Operation
	known := o.Status == lifecycle.OperationAbandoned
	if known && end == "" {
		return w.Abandoner.Continue(ctx, o.OperationID, o.RunID)
	}
	if known {
		return nil
	}
	r.Open++
	e := ended{AbandonedOperation{OperationID: o.OperationID, NodeID: op.NodeID, Host: op.Host, Action: o.Action, End: end}, o.RunID}
	switch end {
	case "":
		return nil
	case lifecycle.RunLost:
		r.NotFound++
		if len(r.Missing) < maxMissingKept {
			r.Missing = append(r.Missing, e)
		}
		return nil
	}
	return w.abandon(ctx, r, e)
}

// abandon marks an operation as abandoned and counts it, unless it changed meanwhile.
func (w *Watch) abandon(ctx context.Context, r *round, e ended) error {
	marked, err := w.Abandoner.Abandon(ctx, e.OperationID, e.RunID, e.End)
	if err != nil || !marked {
		return err
	}
	r.Ends[e.End]++
	if len(r.Abandoned) < maxDecisionsShown {
		r.Abandoned = append(r.Abandoned, e.AbandonedOperation)
	}
	if w.OnAbandon != nil {
		w.OnAbandon(e.Action, e.End)
	}
	return nil
}
