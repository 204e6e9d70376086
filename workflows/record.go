package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Writes to the database have no total time limit: an outage delays an operation and
// never fails it.

// recordSlowAfter is how long a write may wait for the database before the operation
// shows it.
const recordSlowAfter = time.Minute

// tick returns the number of the operation's next write: the workflow's clock in
// microseconds, and more than the number before. The clock continues over a reset, so the
// writes of the new run are newer than those of the run before.
func (st *state) tick(ctx workflow.Context) int64 {
	st.lastStep = max(st.lastStep+1, workflow.Now(ctx).UnixMicro())
	return st.lastStep
}

// progress completes an advance with its number and the whole status.
func (st *state) progress(ctx workflow.Context, a activities.Advance) activities.Advance {
	a.Step, a.Document = st.tick(ctx), st.document()
	return a
}

// tryRecord writes progress that the next write repeats, if the database responds in
// time.
func (st *state) tryRecord(ctx workflow.Context, summary string, a activities.Advance) {
	if err := local(ctx, summary, nil, record.RecordProgress, st.claim.Fence, a); err != nil {
		workflow.GetLogger(ctx).Warn("cannot record progress; the next write repeats it", "kind", string(kindOf(err)))
	}
}

// recordLater writes progress that no later write repeats. If the database does not
// respond in time, it repeats the write in the background until it is stored, while the
// operation continues. stored is set if it was stored at once. An operation ends after its last write in the background.
func (st *state) recordLater(ctx workflow.Context, summary string, a activities.Advance) (stored bool) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	err := local(free, summary, nil, record.RecordProgress, st.claim.Fence, a)
	if !retryable(err) {
		cancel()
		return err == nil
	}
	st.unwritten++
	workflow.Go(free, func(ctx workflow.Context) {
		defer cancel()
		for retryable(err) {
			err = slowRecord(ctx, summary+slowly, record.RecordProgress, st.claim.Fence, a).Get(ctx, nil)
		}
		st.unwritten--
	})
	return false
}

// awaitWritten waits until every write in the background is stored.
func (st *state) awaitWritten(ctx workflow.Context) error {
	if st.unwritten == 0 {
		return nil
	}
	defer st.showUnrecorded(ctx, func() bool { return st.unwritten == 0 })()
	return workflow.Await(ctx, func() bool { return st.unwritten == 0 })
}

// onRecord runs a function of activities.Record: first as a local activity, then, if
// the database did not respond within a workflow task, as a normal one until it does.
func (st *state) onRecord(ctx workflow.Context, summary string, out, fn any, in ...any) error {
	err := local(ctx, summary, out, fn, in...)
	if !retryable(err) {
		return err
	}
	return st.awaitRecord(ctx, summary+slowly, out, fn, in...)
}

// slowly ends the summary of a normal activity whose local one failed.
const slowly = " (the database is slow)"

// awaitRecord runs a write as a normal activity until the database responds, and shows it
// if that takes long.
func (st *state) awaitRecord(ctx workflow.Context, summary string, out, fn any, in ...any) error {
	call := slowRecord(ctx, summary, fn, in...)
	restore := st.showUnrecorded(ctx, call.IsReady)
	err := call.Get(ctx, out)
	for retryable(err) && ctx.Err() == nil {
		err = slowRecord(ctx, summary, fn, in...).Get(ctx, out)
	}
	restore()
	return err
}

func slowRecord(ctx workflow.Context, summary string, fn any, in ...any) workflow.Future {
	return workflow.ExecuteActivity(remote(ctx, callRecordSlow, 0, summary), fn, in...)
}

// showUnrecorded waits for recordSlowAfter until the write is done. If it is not, the
// operation shows that it waits for the database until restore is called. A parked
// operation keeps the reason that it shows.
func (st *state) showUnrecorded(ctx workflow.Context, done func() bool) (restore func()) {
	soon, err := workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{Timeout: recordSlowAfter,
		TimerOptions: workflow.TimerOptions{Summary: "Show that the record waits for the database"}}, done)
	if soon || err != nil || st.status.Operation.Stuck != nil {
		return func() {}
	}
	stuck := lifecycle.Stuck{
		Phase: st.spec().Name, WaitingOn: lifecycle.AttentionOperator, Reason: lifecycle.ReasonRecordUnavailable,
		Message: "the database does not accept the operation's record", Since: now(ctx),
		Cause: causeRecord, Next: lifecycle.OpCommand("show", st.in.Action, st.name()),
	}
	if !st.answered {
		stuck.Options = []lifecycle.Option{{Decision: lifecycle.DecisionCancel, Harm: lifecycle.HarmNone,
			Does: "End the operation before it claims the node", Command: lifecycle.DecisionCommand(
				lifecycle.DecisionCancel, st.in.Action, st.name(), st.in.OperationID)}}
	}
	st.setStuck(ctx, &stuck)
	return func() { st.setStuck(ctx, nil) }
}

const causeRecord = "the database is down, or the worker cannot reach it; the write is repeated until it succeeds"
