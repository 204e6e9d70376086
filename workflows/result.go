package workflows

import (
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// maxWaits is how often a step waits for its task after the activity ended although the
// database has no result, and how often a read is repeated while the database is slow.
const maxWaits = 3

// taskOutcome waits for the activity of an enqueued task and reads the task's result from
// the database. The end of the activity is only a hint: everyone who can write to
// Temporal can complete or fail it by ID. Without a stored result the step waits again,
// and after maxWaits it fails with ReasonResultMissing. If the activity failed, a local
// activity, whose error comes from a worker, first asks whether the task can be awaited.
//
// A timeout and a failure that may pass are reported as such, unless the result is
// stored.
func taskOutcome(ctx workflow.Context, op *operation, spec activities.TaskSpec, summary string) (got task.Outcome, err error) {
	o := callTask
	o.ActivityID = spec.Step
	for range maxWaits {
		ended := op.call(ctx, o, summary, node.RunNodeTask, spec)
		if ctx.Err() != nil {
			return got, ctx.Err()
		}
		err := fromRecord(ctx, "Read the result of the task "+spec.Step, &got, node.ReadTaskResult, spec)
		if err != nil || got.Done {
			return got, err
		}
		if timeIsUp(ended) {
			return got, ended
		}
		if ended != nil {
			again := activities.EnqueueInput{Fence: op.claim.Fence, Task: spec}
			if err := local(ctx, "Find the task "+spec.Step, nil, node.EnqueueNodeTask, again); err != nil {
				return got, err
			}
		}
	}
	return got, resultMissing("Temporal reports the end of task %s, but the database has no result of it", spec.Step)
}

// resultMissing is the failure of a step whose activity ended without the effect that the
// database would show.
func resultMissing(format string, args ...any) error {
	return schema.NewError(schema.KindTaskFailed, format, args...).WithReason(lifecycle.ReasonResultMissing).
		WithNext("find in the Temporal history who completed the activity, then retry")
}

// fromRecord reads the database, like onRecord, but only a few times.
func fromRecord(ctx workflow.Context, summary string, out, fn any, in ...any) error {
	return confirmed(func() error { return local(ctx, summary, out, fn, in...) },
		func() error { return slowRecord(ctx, summary+slowly, fn, in...).Get(ctx, nil) })
}

// withinBudget makes a short call of a service within the phase's budget. If no worker responds
// in time, the failure is that of the control plane, not of the party for which the phase waits.
func withinBudget(ctx workflow.Context, op *operation, summary string, fn, in any) error {
	err := confirmed(func() error { return local(ctx, summary, nil, fn, in) },
		func() error { return op.call(ctx, callShort, summary, fn, in) })
	if temporal.IsTimeoutError(err) && activities.Typed(err) == nil {
		return schema.NewError(schema.KindServiceUnavailable, "no worker ended a short call in time")
	}
	return err
}

// confirmed makes a call as a local activity, whose result comes from a worker. While a
// service does not respond, a normal activity waits for it. Its result, which everyone who
// can write to Temporal can replace, is not used: only that time is up.
func confirmed(call, wait func() error) (err error) {
	for range maxWaits {
		if err = call(); !retryable(err) {
			return err
		}
		if waited := wait(); temporal.IsCanceledError(waited) || timeIsUp(waited) {
			return waited
		}
	}
	return err
}

// timeIsUp reports whether an activity ended because its time for all tries did. If it ends
// before the next try, its failure is that of the last one.
func timeIsUp(err error) bool {
	e := activities.Typed(err)
	return temporal.IsTimeoutError(err) || e != nil && e.Kind.Info().Retry
}

// onMachine runs an activity of a provider until the node's ledger shows its effect, which
// reached reports for the open entries. The end of the activity is only a hint, as that of a
// task (see taskOutcome).
func onMachine(ctx workflow.Context, op *operation, summary string, fn, in any, reached func(open []activities.Resource) bool) error {
	for range maxWaits {
		ended := op.call(ctx, callProvider, summary, fn, in)
		if ctx.Err() != nil || timeIsUp(ended) {
			return ended
		}
		open, err := readLedger(ctx, op)
		switch {
		case err != nil:
			return err
		case reached(open):
			return nil
		case ended != nil && kindOf(ended) != schema.KindFenced: // the ledger is fenced itself
			return ended
		}
	}
	return resultMissing("Temporal reports the end of a call of the provider, but the node's ledger does not show it")
}

func readLedger(ctx workflow.Context, op *operation) ([]activities.Resource, error) {
	var ledger activities.OpenLedger
	err := fromRecord(ctx, "Read the node's ledger", &ledger, machine.ReadLedger, op.claim.Fence)
	return ledger.Open, err
}
