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
// and after maxWaits it fails with ReasonResultMissing.
//
// A timeout and a failure that may pass are reported as such, unless the result is
// stored.
func taskOutcome(ctx workflow.Context, op *operation, spec activities.TaskSpec, summary string) (got task.Outcome, err error) {
	o := callTask
	o.ActivityID = spec.Step
	for range maxWaits {
		ended := op.call(ctx, o, summary, node.RunNodeTask, spec, nil)
		if ctx.Err() != nil {
			return got, ctx.Err()
		}
		err := fromRecord(ctx, "Read the result of the task "+spec.Step, &got, node.ReadTaskResult, spec)
		if err != nil || got.Done {
			return got, err
		}
		if e := activities.Typed(ended); temporal.IsTimeoutError(ended) || e != nil && e.Kind.Info().Retry {
			return got, ended
		}
	}
	return got, schema.NewError(schema.KindTaskFailed,
		"Temporal reports the end of task %s, but the database has no result of it", spec.Step).
		WithReason(lifecycle.ReasonResultMissing).
		WithNext("find in the Temporal history who completed the activity, then retry")
}

// fromRecord reads the database, like onRecord, but never trusts what Temporal says about
// the read: a local activity's result comes from a worker. While the database is slow, a
// normal activity waits for it, and its result, which everyone who can write to Temporal
// can replace, is not used.
func fromRecord(ctx workflow.Context, summary string, out, fn any, in ...any) (err error) {
	for range maxWaits {
		if err = local(ctx, summary, out, fn, in...); !retryable(err) {
			return err
		}
		slow := remote(ctx, callRecordSlow, 0, summary+" (the database is slow)")
		if waited := workflow.ExecuteActivity(slow, fn, in...).Get(ctx, nil); temporal.IsCanceledError(waited) {
			return waited
		}
	}
	return err
}
