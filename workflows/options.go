package workflows

import (
	"cmp"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Every timeout and retry policy. StartToClose bounds one try, ScheduleToClose all
// tries; where one is not set, the phase's budget applies.
//
//nolint:gochecknoglobals // read-only table
var (
	// callRecord is a short database call as a local activity. Its total stays well
	// below the 10 s of a workflow task.
	callRecord = workflow.LocalActivityOptions{
		StartToCloseTimeout: 2 * time.Second, ScheduleToCloseTimeout: 5 * time.Second,
		RetryPolicy: retries(100*time.Millisecond, time.Second, 3),
	}
	// callRecordSlow is the same function as a normal activity, for a database that
	// did not respond in time. It has no total time limit.
	callRecordSlow = workflow.ActivityOptions{
		StartToCloseTimeout: 10 * time.Second,
		RetryPolicy:         retries(time.Second, 30*time.Second, 0),
	}
	// callShort is a short call that is repeated until it succeeds. A cancel waits for
	// the current try: its write must not follow what the decision writes.
	callShort = workflow.ActivityOptions{
		StartToCloseTimeout: 10 * time.Second, RetryPolicy: retries(5*time.Second, 5*time.Second, 0),
		WaitForCancellation: true,
	}
	// callProvider is one call of a provider. A cancel waits for the current try: what it
	// creates must be in the ledger before the undo reads the ledger.
	callProvider = workflow.ActivityOptions{
		StartToCloseTimeout: activities.ProviderTimeout, HeartbeatTimeout: activities.ProviderHeartbeat,
		RetryPolicy: retries(2*time.Second, time.Minute, 0), WaitForCancellation: true,
	}
	// once replaces the retries of a call that a person forced.
	once = retries(time.Second, time.Second, 1)
	// callTask is a task on a node, which is enqueued before. The activity stays open
	// until the relay completes it. A cancel does not wait for the node: the operation
	// voids the task, and the agent stops when the API rejects its lease. Waiting would
	// delay every decision about a silent node by the heartbeat timeout.
	callTask = workflow.ActivityOptions{
		HeartbeatTimeout: task.HeartbeatTimeout, RetryPolicy: retries(time.Second, 30*time.Second, 0),
	}
	// callRound is one round of a scheduled workflow.
	callRound = workflow.ActivityOptions{
		StartToCloseTimeout: lifecycle.RoundTry, ScheduleToCloseTimeout: lifecycle.RoundTimeout, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retries(time.Second, 10*time.Second, 3),
	}
	// callSweep is the only round of a run: that of SweepMachines, which sends heartbeats while a provider
	// is called, or of ScanDrift.
	callSweep = workflow.ActivityOptions{
		StartToCloseTimeout: lifecycle.SweepTry, ScheduleToCloseTimeout: lifecycle.SweepTimeout, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retries(time.Second, 10*time.Second, 3), WaitForCancellation: true,
	}
)

// retries waits first before the second try and doubles the wait up to most. tries
// bounds the tries; 0 means no bound within the total time.
func retries(first, most time.Duration, tries int32) *temporal.RetryPolicy {
	return &temporal.RetryPolicy{InitialInterval: first, BackoffCoefficient: 2, MaximumInterval: most, MaximumAttempts: tries}
}

// remote returns ctx with the options of a normal activity. budget bounds all of
// its tries where the options do not; 0 means no bound.
func remote(ctx workflow.Context, o workflow.ActivityOptions, budget time.Duration, summary string) workflow.Context {
	o.Summary = summary
	o.ScheduleToCloseTimeout = cmp.Or(o.ScheduleToCloseTimeout, budget)
	if total := o.ScheduleToCloseTimeout; total > 0 {
		o.StartToCloseTimeout = min(cmp.Or(o.StartToCloseTimeout, total), total)
	}
	return workflow.WithActivityOptions(ctx, o)
}

// local runs an activity as a local one, which costs one marker. If its worker ends
// meanwhile, it runs again after the timeout of a workflow task (10 s).
func local(ctx workflow.Context, summary string, out, fn any, in ...any) error {
	o := callRecord
	o.Summary = summary
	return workflow.ExecuteLocalActivity(workflow.WithLocalActivityOptions(ctx, o), fn, in...).Get(ctx, out)
}

func retryable(err error) bool {
	return err != nil && !temporal.IsCanceledError(err) && kindOf(err).Info().Retry
}

// maxTaskLife bounds the validity of an envelope independently of its phase's budget.
const maxTaskLife = 48 * time.Hour

// taskDeadline is when a task that is enqueued now becomes void.
func taskDeadline(ctx workflow.Context, budget time.Duration) time.Time {
	return now(ctx).Add(min(budget, maxTaskLife))
}
