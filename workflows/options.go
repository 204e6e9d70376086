package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// callKind is a row of the one table of timeouts and retries. What a phase may
// take in all is its budget in lifecycle.Phases; the rows here divide it.
type callKind int

const (
	// callRecord is a short database write or read, as a local activity.
	callRecord callKind = iota
	// callRecordSlow is the same function as a normal activity, for when the
	// database did not answer in time.
	callRecordSlow
	// callWait is a check that is repeated until it holds.
	callWait
	// callProvider is one call of a provider.
	callProvider
	// callTask is work on a node: open until the node API completes it. A cancel
	// does not wait for the node: the operation voids the task, and the node stops
	// when its lease is refused. A dead node would keep every decision waiting for
	// the heartbeat timeout otherwise.
	callTask
	// callSweep is one sweep of the reclaimer. Its total is below the run timeout
	// that the schedule gives it.
	callSweep
)

// limits is what a kind of call may take. Zero start means the phase's budget.
type limits struct {
	start time.Duration // of one try
	total time.Duration // of all tries; zero means the phase's budget
	first time.Duration // wait before the second try
	grow  float64
	most  time.Duration // longest wait between tries
	tries int32         // zero means unlimited within total
	// beat is the heartbeat timeout: how long a try may be silent. Zero means
	// for as long as the try may take.
	beat time.Duration
}

// table holds every timeout and retry policy. The local activity's total stays
// well under the 10 s a workflow task has.
func table(k callKind) limits {
	switch k {
	case callRecord:
		return limits{2 * time.Second, 5 * time.Second, 100 * time.Millisecond, 2, time.Second, 3, 0}
	case callRecordSlow:
		return limits{10 * time.Second, 24 * time.Hour, time.Second, 2, 30 * time.Second, 0, 0}
	case callWait:
		return limits{10 * time.Second, 0, 5 * time.Second, 1, 5 * time.Second, 0, 0}
	case callProvider:
		return limits{45 * time.Second, 0, 2 * time.Second, 2, time.Minute, 0, 0}
	case callSweep:
		return limits{time.Minute, 2 * time.Minute, time.Second, 2, 10 * time.Second, 3, 30 * time.Second}
	default: // callTask
		return limits{0, 0, time.Second, 2, 30 * time.Second, 0, task.HeartbeatTimeout}
	}
}

func (l limits) retry() *temporal.RetryPolicy {
	return &temporal.RetryPolicy{
		InitialInterval: l.first, BackoffCoefficient: l.grow, MaximumInterval: l.most, MaximumAttempts: l.tries,
	}
}

// local returns ctx with the options of a local activity.
func local(ctx workflow.Context, summary string) workflow.Context {
	l := table(callRecord)
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: l.start, ScheduleToCloseTimeout: l.total, RetryPolicy: l.retry(), Summary: summary,
	})
}

// remote returns ctx with the options of a normal activity that has budget for
// all its tries.
func remote(ctx workflow.Context, k callKind, budget time.Duration, id, summary string) workflow.Context {
	l := table(k)
	if l.total == 0 {
		l.total = budget
	}
	if l.start == 0 || l.start > l.total {
		l.start = l.total
	}
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		ActivityID: id, StartToCloseTimeout: l.start, ScheduleToCloseTimeout: l.total, HeartbeatTimeout: l.beat,
		RetryPolicy: l.retry(), Summary: summary,
	})
}

// onRecord runs a function of activities.Record: as a local activity first,
// which costs one marker, and as a normal one when the database did not answer
// within a workflow task.
func onRecord(ctx workflow.Context, summary string, fn, in, out any) error {
	err := workflow.ExecuteLocalActivity(local(ctx, summary), fn, in).Get(ctx, out)
	if err == nil || temporal.IsCanceledError(err) || !kindOf(err).Info().Retry {
		return err
	}
	slow := remote(ctx, callRecordSlow, 0, "", summary+" (the database is slow)")
	return workflow.ExecuteActivity(slow, fn, in).Get(ctx, out)
}

// tryRecord is onRecord without the long retries, for projections that the next
// write repeats anyway.
func tryRecord(ctx workflow.Context, summary string, fn, in any) {
	err := workflow.ExecuteLocalActivity(local(ctx, summary), fn, in).Get(ctx, nil)
	if err != nil {
		workflow.GetLogger(ctx).Warn("projection not written, the next one repeats it", "kind", string(kindOf(err)))
	}
}

// maxTaskLife bounds an envelope whatever its phase's budget is.
const maxTaskLife = 48 * time.Hour

// taskDeadline is when a task given out now is void.
func taskDeadline(ctx workflow.Context, budget time.Duration) time.Time {
	return workflow.Now(ctx).Add(min(budget, maxTaskLife)).UTC()
}

// kindOf returns the kind of a failed call: that of the application error at
// its root, KindServiceUnavailable for a timeout, KindInternal for the rest.
func kindOf(err error) schema.Kind { return failureOf(err).Kind }
