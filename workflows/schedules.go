package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Rounds is the result of a run of a scheduled workflow.
type Rounds[S any] struct {
	Rounds int `json:"rounds"`
	// Failed is the number of rounds that failed, Failure the last failure.
	Failed  int    `json:"failed,omitempty"`
	Failure string `json:"failure,omitempty"`
	// Changes are the summaries of the rounds that changed something.
	Changes []S `json:"changes,omitempty"`
}

// ReclaimStaleDispatch is a run of the reclaimer. Each round requeues stale tasks,
// marks them lost or voids them.
func ReclaimStaleDispatch(ctx workflow.Context) (Rounds[activities.ReclaimSummary], error) {
	return runRounds(ctx, roundOf[activities.ReclaimSummary](ctx, "Reclaim stale tasks", reclaimer.ReclaimTasks), func(s activities.ReclaimSummary) bool { return len(s.Decisions) > 0 })
}

// WatchOperations is a run of the run watcher. Each round marks the operations that
// are open in the database and have no open run as abandoned. A round that was too short for
// all of them is continued by the next one.
func WatchOperations(ctx workflow.Context) (Rounds[activities.WatchSummary], error) {
	after := ""
	return runRounds(ctx, func() (s activities.WatchSummary, err error) {
		err = workflow.ExecuteActivity(remote(ctx, callRound, 0, "Find operations whose run ended"), watcher.AbandonOperations, after).Get(ctx, &s)
		if after = ""; s.More {
			after = s.After
		}
		return s, err
	}, func(s activities.WatchSummary) bool { return len(s.Abandoned) > 0 })
}

// DecideRepairs is a run of health recovery. Each round decides about the nodes with a fault, and
// starts the repairs that nothing stops.
func DecideRepairs(ctx workflow.Context) (Rounds[activities.RepairSummary], error) {
	return runRounds(ctx, roundOf[activities.RepairSummary](ctx, "Decide about nodes with a fault", decider.DecideRepairs), activities.RepairSummary.Changed)
}

// DeleteOldRecords is a run of the schedule that deletes old records. Rounds follow each other
// until nothing is left to delete, or the time of a run is over; the next run continues. A
// round that fails ends the run. A cancel of the run ends it early as completed.
func DeleteOldRecords(ctx workflow.Context) (done Rounds[activities.RetentionSummary], err error) {
	for end := now(ctx).Add(lifecycle.Rounds * lifecycle.RoundInterval); now(ctx).Before(end); {
		var s activities.RetentionSummary
		if err := workflow.ExecuteActivity(remote(ctx, callRound, 0, "Delete old records"), retainer.DeleteOldRecords).Get(ctx, &s); ctx.Err() != nil {
			return done, nil //nolint:nilerr // a cancel
		} else if err != nil {
			return done, err
		}
		done.Rounds++
		if len(s.Deleted)+len(s.Archived) > 0 {
			done.Changes = append(done.Changes, s)
		}
		if !s.More {
			break
		}
	}
	return done, nil
}

// SweepMachines is a run of the sweep: one round that finds the machines that no instance owns, and
// deletes leftovers if the worker is configured to. A cancel waits for the current call of a provider.
func SweepMachines(ctx workflow.Context) (activities.SweepSummary, error) {
	return runOnce[activities.SweepSummary](ctx, "Find machines that no instance owns", sweeper.SweepMachines)
}

// ScanDrift is a run of the scan: one round that compares all nodes with their templates, and starts
// the upgrades of agents that the policies of templates allow.
func ScanDrift(ctx workflow.Context) (activities.DriftSummary, error) {
	return runOnce[activities.DriftSummary](ctx, "Compare nodes with their templates", scanner.ScanDrift)
}

// ExplainParks is a run of the schedule that finds the probable cause of each park. It is no part of
// the operation's own workflow: a probe that hangs delays no operation, and a new probe changes no
// history.
func ExplainParks(ctx workflow.Context) (Rounds[activities.ExplainSummary], error) {
	return runRounds(ctx, roundOf[activities.ExplainSummary](ctx, "Find the probable cause of each park", explainer.ExplainParks), func(s activities.ExplainSummary) bool { return s.Explained > 0 })
}

// runOnce is a run of one round, whose activity returns a summary. A round that fails fails the run. A
// cancel of the run ends it early as completed.
func runOnce[S any](ctx workflow.Context, summary string, round any) (s S, err error) {
	err = workflow.ExecuteActivity(remote(ctx, callSweep, 0, summary), round).Get(ctx, &s)
	if ctx.Err() != nil {
		return s, nil //nolint:nilerr // a cancel
	}
	return s, err
}

// runRounds runs a round every lifecycle.RoundInterval until the time of a run is over. The
// round after a failed one does the same work. If the last round fails, the run fails, so that its schedule counts as failing.
// A cancel of the run ends it early as completed.
func runRounds[S any](ctx workflow.Context, round func() (S, error), changed func(S) bool) (Rounds[S], error) {
	var done Rounds[S]
	for end := now(ctx).Add(lifecycle.Rounds * lifecycle.RoundInterval); ; {
		s, err := round()
		if ctx.Err() != nil {
			return done, nil //nolint:nilerr // a cancel
		}
		done.Rounds++
		if err != nil {
			done.Failed++
			done.Failure = failureOf(err).Message
		} else if changed(s) {
			done.Changes = append(done.Changes, s)
		}
		if !now(ctx).Add(lifecycle.RoundInterval).Before(end) {
			return done, done.failure(err)
		}
		if err := pause(ctx, lifecycle.RoundInterval, "Wait for the next round"); err != nil {
			return done, nil //nolint:nilerr // a cancel
		}
	}
}

// roundOf returns the round that runs an activity without arguments, which returns a summary.
func roundOf[S any](ctx workflow.Context, summary string, activity any) func() (S, error) {
	return func() (s S, err error) {
		err = workflow.ExecuteActivity(remote(ctx, callRound, 0, summary), activity).Get(ctx, &s)
		return s, err
	}
}

// failure is the failure of a run whose last round failed with cause, otherwise nil.
func (r Rounds[S]) failure(cause error) error {
	if cause == nil {
		return nil
	}
	f := failureOf(cause)
	return activities.Failure(schema.NewError(f.Kind, "%d of %d rounds failed, the last one: %s", r.Failed, r.Rounds, f.Message).
		WithReason(f.Reason).WithNext(f.Next), true)
}

// pause waits with a summary that the timeline shows.
func pause(ctx workflow.Context, d time.Duration, summary string) error {
	return workflow.NewTimerWithOptions(ctx, d, workflow.TimerOptions{Summary: summary}).Get(ctx, nil)
}
