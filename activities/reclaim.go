package activities

import (
	"context"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// reclaimBatch is how many tasks are looked at between two heartbeats.
const reclaimBatch = 100

// maxReclaimedShown bounds the decisions that a sweep's report names.
const maxReclaimedShown = 50

// Sweep holds the activity of the reclaimer.
type Sweep struct {
	Reclaimer Reclaimer
	// Decided is told of each decision. Defaults to nothing.
	Decided func(t task.Type, r ReclaimResult)
}

// Swept is what a sweep came to.
type Swept struct {
	// Counts are the decisions by result.
	Counts map[ReclaimResult]int `json:"counts,omitempty"`
	// Decisions are the first of them.
	Decisions []ReclaimDecision `json:"decisions,omitempty"`
	// After is the last task of the last whole batch.
	After string `json:"after,omitempty"`
}

func (s *Swept) add(d ReclaimDecision) {
	if s.Counts == nil {
		s.Counts = map[ReclaimResult]int{}
	}
	s.Counts[d.Result]++
	if len(s.Decisions) < maxReclaimedShown {
		s.Decisions = append(s.Decisions, d)
	}
}

// ReclaimTasks goes through the tasks that nobody holds any more; see
// Reclaimer.Reclaim. A second try goes on after the last batch that the first
// one finished, and what that had decided is decided no second time.
func (s *Sweep) ReclaimTasks(ctx context.Context) (Swept, error) {
	var done Swept
	if activity.HasHeartbeatDetails(ctx) {
		if err := activity.GetHeartbeatDetails(ctx, &done); err != nil {
			return Swept{}, fail(schema.Wrap(schema.KindInternal, err, "reading how far the sweep had come"))
		}
	}
	var failed error
	for {
		report, err := s.Reclaimer.Reclaim(ctx, ReclaimRequest{After: done.After, Limit: reclaimBatch})
		s.count(&done, report.Decisions)
		if schema.KindOf(err) == schema.KindServiceUnavailable {
			return Swept{}, fail(err)
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
			return Swept{}, fail(ctx.Err())
		}
	}
	if failed != nil {
		// Everything else is decided; a further try would hide what is not.
		return Swept{}, final(schema.AsError(failed))
	}
	return done, nil
}

func (s *Sweep) count(done *Swept, decisions []ReclaimDecision) {
	for _, d := range decisions {
		done.add(d)
		if s.Decided != nil {
			s.Decided(d.Type, d.Result)
		}
	}
}
