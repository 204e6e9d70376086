package activities

import (
	"context"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Reclaimer reconciles stale tasks.
type Reclaimer interface {
	// Reclaim reconciles one batch of tasks whose lease ended more than
	// task.StaleGrace ago, whose operation ended, or whose stored result is not
	// delivered. It decides each task in a transaction of its own and writes an
	// audit row. Read and idempotent tasks are requeued and the node's poll is
	// woken. Destructive tasks become lost, and their activity is completed as
	// failed with reason lifecycle.ReasonTaskLost.
	//
	// Reclaim is idempotent: a repeated, concurrent or late call makes no decision
	// that the tasks' state does not require. If one task cannot be decided, Reclaim
	// continues with the others and returns the error with the complete report.
	// KindServiceUnavailable ends the batch.
	Reclaim(ctx context.Context, r ReclaimRequest) (ReclaimReport, error)
}

// ReclaimResult is the reclaimer's decision about one task.
type ReclaimResult string

// The reclaimer's decisions.
const (
	// ReclaimRequeued: a read or idempotent task is pending again.
	ReclaimRequeued ReclaimResult = "requeued"
	// ReclaimLost: a destructive task is lost; its operation parks.
	ReclaimLost ReclaimResult = "lost"
	// ReclaimVoided: the task's operation ended.
	ReclaimVoided ReclaimResult = "voided"
	// ReclaimRedelivered: the delivery of a stored result is retried immediately.
	ReclaimRedelivered ReclaimResult = "redelivered"
)

// ReclaimRequest describes one batch of the reclaimer.
type ReclaimRequest struct {
	// After is the last task of the previous batch, "" for the first batch.
	After string `json:"after,omitempty"`
	Limit int    `json:"limit"`
}

// ReclaimDecision is one decision.
type ReclaimDecision struct {
	TaskID string        `json:"task_id"`
	NodeID string        `json:"node_id"`
	Host   string        `json:"host"`
	Type   task.Type     `json:"type"`
	Result ReclaimResult `json:"result"`
}

// ReclaimReport lists the decisions of a batch.
type ReclaimReport struct {
	Decisions []ReclaimDecision `json:"decisions,omitempty"`
	// Next is the After of the next batch, "" when there is none.
	Next string `json:"next,omitempty"`
}

// reclaimBatch is how many tasks are reconciled between two heartbeats.
const reclaimBatch = 100

// maxDecisionsShown bounds the decisions that a summary lists.
const maxDecisionsShown = 50

// Reclaim has the activity of the reclaimer.
type Reclaim struct {
	Reclaimer Reclaimer
	// OnDecision observes each decision. nil observes nothing.
	OnDecision func(t task.Type, r ReclaimResult)
}

// ReclaimSummary is the result of one run of the reclaimer.
type ReclaimSummary struct {
	// Counts are the decisions by result.
	Counts map[ReclaimResult]int `json:"counts,omitempty"`
	// Decisions are the first of them.
	Decisions []ReclaimDecision `json:"decisions,omitempty"`
	// After is the last task of the last complete batch.
	After string `json:"after,omitempty"`
}

// ReclaimTasks reconciles all stale tasks; see Reclaimer.Reclaim. A second
// attempt continues after the last batch that the first one completed.
func (r *Reclaim) ReclaimTasks(ctx context.Context) (ReclaimSummary, error) {
	done := ReclaimSummary{Counts: map[ReclaimResult]int{}}
	if activity.HasHeartbeatDetails(ctx) {
		if err := activity.GetHeartbeatDetails(ctx, &done); err != nil {
			return ReclaimSummary{}, Fail(schema.Wrap(schema.KindInternal, err, "reading the progress of the previous attempt"))
		}
	}
	var failed error
	for {
		report, err := r.Reclaimer.Reclaim(ctx, ReclaimRequest{After: done.After, Limit: reclaimBatch})
		r.count(&done, report.Decisions)
		if schema.KindOf(err) == schema.KindServiceUnavailable {
			return ReclaimSummary{}, Fail(err)
		}
		if err != nil && failed == nil {
			failed = err
		}
		if report.Next == "" {
			break
		}
		done.After = report.Next
		activity.RecordHeartbeat(ctx, done)
		if ctx.Err() != nil {
			return ReclaimSummary{}, Fail(ctx.Err())
		}
	}
	if failed != nil {
		// All other tasks are decided. A retry would hide the failed one.
		return ReclaimSummary{}, Failure(schema.AsError(failed), true)
	}
	return done, nil
}

func (r *Reclaim) count(done *ReclaimSummary, decisions []ReclaimDecision) {
	for _, d := range decisions {
		done.Counts[d.Result]++
		if r.OnDecision != nil {
			r.OnDecision(d.Type, d.Result)
		}
	}
	done.Decisions = append(done.Decisions, decisions[:min(len(decisions), maxDecisionsShown-len(done.Decisions))]...)
}
