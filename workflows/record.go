package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
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
// time. It fails only if the operation may no longer write.
func (st *state) tryRecord(ctx workflow.Context, summary string, a activities.Advance) error {
	err := local(ctx, summary, nil, record.RecordProgress, st.claim.Fence, a)
	if st.noteFence(err); st.fence == nil && err != nil {
		workflow.GetLogger(ctx).Warn("cannot record progress; the next write repeats it", "kind", string(kindOf(err)))
	}
	return st.fence
}

// confirmPause is how often an operation that only waits repeats its record. The write shows
// whether the operation has ended meanwhile.
const confirmPause = time.Hour

// confirm repeats what is on record, unless the operation made a write within confirmPause.
// A write in the background that is not stored yet shows a fence itself, and a newer one
// would replace it.
func (st *state) confirm(ctx workflow.Context, summary string, a activities.Advance) {
	if st.unwritten > 0 || workflow.Now(ctx).UnixMicro()-st.lastStep < confirmPause.Microseconds() {
		return
	}
	// A failure is not needed: the wait ends with the fence.
	_ = st.tryRecord(ctx, summary, st.progress(ctx, a))
}

// noteFence keeps the error of a write that shows that the operation has ended or that
// another one holds the node. The run then ends.
func (st *state) noteFence(err error) {
	if err != nil && kindOf(err) == schema.KindFenced {
		st.fence = err
	}
}

// recordLater writes progress that no later write repeats. If the database does not
// respond in time, it repeats the write in the background until it is stored, while the
// operation continues. stored is set if it was stored at once, and rejected if the
// database rejects it. A write in the background that is fenced interrupts the phase. An operation ends
// after its last write in the background.
func recordLater(ctx workflow.Context, op *operation, summary string, a activities.Advance) (stored bool, rejected error) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	err := local(free, summary, nil, record.RecordProgress, op.claim.Fence, a)
	if !retryable(err) {
		cancel()
		op.noteFence(err)
		return err == nil, err
	}
	op.unwritten++
	a.Applied = a.Decision != nil
	workflow.Go(free, func(ctx workflow.Context) {
		defer cancel()
		for retryable(err) {
			// The end of this activity is only a hint, as in onRecord.
			_ = slowRecord(ctx, summary+slowly, record.RecordProgress, op.claim.Fence, a).Get(ctx, nil)
			err = local(ctx, summary, nil, record.RecordProgress, op.claim.Fence, a)
		}
		op.unwritten--
		if noteRejected(ctx, op.state, err); op.fence != nil && op.interrupt != nil {
			op.interrupt()
		}
	})
	return false, nil
}

// noteRejected notes a fence, and logs another rejection of a write that nothing waits for.
func noteRejected(ctx workflow.Context, st *state, err error) {
	if st.noteFence(err); err != nil && st.fence == nil {
		workflow.GetLogger(ctx).Error("the database rejects the progress", "kind", string(kindOf(err)))
	}
}

// awaitWritten waits until every write in the background is stored.
func (st *state) awaitWritten(ctx workflow.Context) error {
	if st.unwritten == 0 {
		return nil
	}
	defer st.showUnrecorded(ctx, func() bool { return st.unwritten == 0 })()
	return workflow.Await(ctx, func() bool { return st.unwritten == 0 })
}

// onRecord runs a function of activities.Record until the database responds. Only a local
// activity's result counts, because it comes from a worker. While the database is slow, a
// normal activity waits for it: everyone who can write to Temporal can end that one. The
// operation shows that it waits if that takes long.
func (st *state) onRecord(ctx workflow.Context, summary string, out, fn any, in ...any) error {
	err := local(ctx, summary, out, fn, in...)
	if !retryable(err) {
		return err
	}
	hide := func() {}
	defer func() { hide() }()
	for shown := false; retryable(err); shown = st.status.Operation.Stuck != nil {
		waits := slowRecord(ctx, summary+slowly, fn, in...)
		if !shown {
			hide = st.showUnrecorded(ctx, waits.IsReady)
		}
		_ = waits.Get(ctx, nil) // a hint
		err = local(ctx, summary, out, fn, in...)
	}
	return err
}

// slowly ends the summary of a normal activity whose local one failed.
const slowly = " (the database is slow)"

// awaitRecord runs a write as a normal activity until it ends, and shows it if that takes
// long. Its end is only a hint.
func (st *state) awaitRecord(ctx workflow.Context, summary string, fn any, in ...any) {
	call := slowRecord(ctx, summary, fn, in...)
	defer st.showUnrecorded(ctx, call.IsReady)()
	_ = call.Get(ctx, nil)
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
			Does:    "End the operation before it claims the node",
			Command: stuck.Command(lifecycle.DecisionCancel, st.in.Action, st.name(), st.in.OperationID)}}
	}
	st.setStuck(ctx, &stuck)
	return func() { st.setStuck(ctx, nil) }
}

const causeRecord = "the database is down, or the worker cannot reach it; the write is repeated until it succeeds"
