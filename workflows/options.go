package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// callPolicy holds the timeouts and retries of one kind of call. The budget of a
// phase bounds all of its calls.
type callPolicy struct {
	// try bounds one attempt, total all attempts. Zero means the phase's budget.
	try, total time.Duration
	// interval is the wait before the second try. It grows by factor up to
	// maxInterval.
	interval, maxInterval time.Duration
	factor                float64
	// maxTries bounds the tries. Zero means no bound within total.
	maxTries int32
	// heartbeat is how long a try may go without a heartbeat. Zero means as long as
	// the try may take.
	heartbeat time.Duration
}

// Every timeout and retry policy.
//
//nolint:gochecknoglobals // read-only table
var (
	// callRecord is a short database call as a local activity. Its total stays well
	// below the 10 s of a workflow task.
	callRecord = callPolicy{
		try: 2 * time.Second, total: 5 * time.Second,
		interval: 100 * time.Millisecond, factor: 2, maxInterval: time.Second, maxTries: 3,
	}
	// callRecordSlow is the same function as a normal activity, for a database that
	// did not respond in time.
	callRecordSlow = callPolicy{
		try: 10 * time.Second, total: 24 * time.Hour,
		interval: time.Second, factor: 2, maxInterval: 30 * time.Second,
	}
	// callWait is a check that is repeated until it succeeds.
	callWait = callPolicy{try: 10 * time.Second, interval: 5 * time.Second, factor: 1, maxInterval: 5 * time.Second}
	// callProvider is one call of a provider.
	callProvider = callPolicy{try: 45 * time.Second, interval: 2 * time.Second, factor: 2, maxInterval: time.Minute}
	// callTask is a task on a node. The activity stays open until the relay
	// completes it. A cancel does not wait for the node: the operation voids the
	// task, and the agent stops when the API rejects its lease. Waiting would delay
	// every decision about a silent node by the heartbeat timeout.
	callTask = callPolicy{
		interval: time.Second, factor: 2, maxInterval: 30 * time.Second, heartbeat: task.HeartbeatTimeout,
	}
	// callReclaim is one run of the reclaimer. Its total is below the run timeout of
	// the schedule.
	callReclaim = callPolicy{
		try: time.Minute, total: 2 * time.Minute,
		interval: time.Second, factor: 2, maxInterval: 10 * time.Second, maxTries: 3, heartbeat: 30 * time.Second,
	}
)

func (p callPolicy) retry() *temporal.RetryPolicy {
	return &temporal.RetryPolicy{
		InitialInterval: p.interval, BackoffCoefficient: p.factor, MaximumInterval: p.maxInterval, MaximumAttempts: p.maxTries,
	}
}

// local returns ctx with the options of a local activity.
func local(ctx workflow.Context, summary string) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: callRecord.try, ScheduleToCloseTimeout: callRecord.total,
		RetryPolicy: callRecord.retry(), Summary: summary,
	})
}

// remote returns ctx with the options of a normal activity. budget bounds all of
// its tries where the policy does not.
func remote(ctx workflow.Context, p callPolicy, budget time.Duration, id, summary string) workflow.Context {
	if p.total == 0 {
		p.total = budget
	}
	if p.try == 0 || p.try > p.total {
		p.try = p.total
	}
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		ActivityID: id, StartToCloseTimeout: p.try, ScheduleToCloseTimeout: p.total, HeartbeatTimeout: p.heartbeat,
		RetryPolicy: p.retry(), Summary: summary,
	})
}

// onRecord runs a function of activities.Record: first as a local activity, which
// costs one marker, then as a normal one if the database did not respond within a
// workflow task.
func onRecord(ctx workflow.Context, summary string, fn, in, out any) error {
	err := workflow.ExecuteLocalActivity(local(ctx, summary), fn, in).Get(ctx, out)
	if err == nil || temporal.IsCanceledError(err) || !kindOf(err).Info().Retry {
		return err
	}
	slow := remote(ctx, callRecordSlow, 0, "", summary+" (the database is slow)")
	return workflow.ExecuteActivity(slow, fn, in).Get(ctx, out)
}

// tryRecord is onRecord without the slow path, for a status that the next write
// repeats.
func tryRecord(ctx workflow.Context, summary string, fn, in any) {
	err := workflow.ExecuteLocalActivity(local(ctx, summary), fn, in).Get(ctx, nil)
	if err != nil {
		workflow.GetLogger(ctx).Warn("cannot record progress; the next write repeats it", "kind", string(kindOf(err)))
	}
}

// maxTaskLife bounds an envelope whatever its phase's budget is.
const maxTaskLife = 48 * time.Hour

// taskDeadline is when a task that is enqueued now becomes void.
func taskDeadline(ctx workflow.Context, budget time.Duration) time.Time {
	return workflow.Now(ctx).Add(min(budget, maxTaskLife)).UTC()
}

// kindOf returns the kind of a failed call: that of the application error at
// its root, KindServiceUnavailable for a timeout, KindInternal for the rest.
func kindOf(err error) schema.Kind { return failureOf(err).Kind }
