package workflows

import (
	"errors"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// runPhase runs the current phase until it reaches its goal, an operator skips
// it, or the operation is canceled. When the phase's budget ends or its work
// fails permanently, the operation parks.
func (op *operation) runPhase(ctx workflow.Context) error {
	resumed := op.resumed
	op.resumed = false
	if !resumed {
		op.goalReached, op.returns = nil, 0
	}
	for again := true; again; resumed = false {
		err := errResumed
		if !resumed {
			op.announce(ctx)
			err = op.attempt(ctx)
		}
		switch {
		case op.fence != nil:
			return op.fence
		case ctx.Err() != nil:
			return op.canceledRun(ctx)
		case err != nil && (kindOf(err) == schema.KindFenced || errors.Is(err, errNodeRemoved)):
			return err
		}
		if again, err = op.endAttempt(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// canceledRun ends the phase of a run that was canceled. A decision to cancel that waits
// is taken: one before the claim is accepted already, and must be in the audit trail.
func (op *operation) canceledRun(ctx workflow.Context) error {
	if op.decision != nil && op.decision.Decision == lifecycle.DecisionCancel {
		_, err := op.decide(ctx)
		return err
	}
	return errCanceled
}

// endAttempt ends an attempt. After a failure it parks, unless the phase is best
// effort. It reports whether runPhase must attempt the phase again.
func (op *operation) endAttempt(ctx workflow.Context, failure error) (again bool, err error) {
	if failure != nil && op.decision == nil {
		if climbed, err := (ladder{op}).climb(ctx, failure); climbed || err != nil {
			return false, err
		}
		if op.spec().BestEffort || undoLocked(op, failure) {
			op.mark(ctx, lifecycle.PhaseSkipped, failureOf(failure).Message)
			return false, nil
		}
		if again, err = (park{op}).wait(ctx, failure); err != nil {
			return false, err
		}
	}
	op.unpark(ctx)
	switch {
	case op.decision != nil:
		return op.decide(ctx)
	case op.leftUndone != "":
		op.mark(ctx, lifecycle.PhaseSkipped, op.leftUndone)
		return false, nil
	case again:
		return true, nil
	case failure != nil && op.enrolled.Removed:
		return false, errNodeRemoved
	}
	op.mark(ctx, op.doneState(), "")
	return false, nil
}

// undoLocked reports whether the undo failed because the identity of its node is locked. It notes
// why the undo is left: a reissue ends the lock, and may have to wait for the end of the operation.
func undoLocked(op *operation, failure error) bool {
	e := failureOf(failure)
	if op.undoing && e.Reason == schema.ReasonNodeLocked {
		op.leftUndone = e.Message
	}
	return op.leftUndone != ""
}

// attempt runs the phase's work on a context that a decision cancels. It does
// nothing when a decision is already pending or the run is canceled.
func (op *operation) attempt(ctx workflow.Context) error {
	op.leftUndone = ""
	if op.decision != nil || ctx.Err() != nil {
		return nil
	}
	work, cancel := workflow.WithCancel(ctx)
	defer cancel()
	op.interrupt = cancel
	defer func() { op.interrupt = nil }()
	body, err := bodyOf(op.spec().Name)
	if err != nil {
		return err
	}
	return body(work, op)
}

func (op *operation) doneState() lifecycle.PhaseState {
	if op.forced {
		op.forced = false
		return lifecycle.PhaseForced
	}
	return lifecycle.PhaseCompleted
}

// announce marks the phase as running in the status.
func (op *operation) announce(ctx workflow.Context) {
	deadline := now(ctx).Add(op.spec().Budget)
	op.status.Operation.DeadlineAt = &deadline
	op.published = false
	op.begin(ctx)
}

// publish writes the running phase to the search attributes and to the database, with
// the progress that is not recorded yet. A phase publishes itself before it waits, so
// that a phase that does not wait adds no events. It fails only if the progress could
// not be recorded or the operation may no longer write.
func (op *operation) publish(ctx workflow.Context) error {
	a := op.unpublished(ctx)
	if a == nil {
		return nil
	}
	summary := "Record the phase " + a.Phase
	if op.unrecorded == (activities.Advance{}) {
		return op.tryRecord(ctx, summary, *a)
	}
	if err := op.onRecord(ctx, summary, nil, record.RecordProgress, op.claim.Fence, *a); err != nil {
		return err
	}
	op.unrecorded = activities.Advance{}
	return nil
}

// unpublished sets the search attributes of a phase that is not published yet and
// returns what the database must record of it, otherwise nil. The start of the
// workflow and the claim published the first phase.
func (op *operation) unpublished(ctx workflow.Context) *activities.Advance {
	if op.published || op.phase == 0 && op.status.Operation.Phases[0].Attempt == 1 {
		return nil
	}
	op.published = true
	op.searchable(ctx,
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrPhase).ValueSet(op.spec().Name),
		temporal.NewSearchAttributeKeyTime(lifecycle.AttrDeadlineAt).ValueSet(*op.status.Operation.DeadlineAt))
	a := op.unrecorded
	a.Phase = op.spec().Name
	a = op.progress(ctx, a)
	return &a
}

// call publishes the phase and runs an activity within its budget.
func (op *operation) call(ctx workflow.Context, o workflow.ActivityOptions, summary string, fn, in any) error {
	if err := op.publish(ctx); err != nil {
		return err
	}
	return workflow.ExecuteActivity(remote(ctx, o, op.spec().Budget, summary), fn, in).Get(ctx, nil)
}

// decide applies the pending decision, and the cancel that replaced or followed it meanwhile.
// It reports whether the phase is attempted again. runPhase starts the next attempt before
// the response is sent, which thus shows the attempt.
func (op *operation) decide(ctx workflow.Context) (again bool, err error) {
	defer func() { op.applied = nil }()
	for op.decision != nil && err == nil {
		again, err = op.apply(ctx, op.decision)
	}
	return again, err
}

// apply records a decision and takes it, unless another one replaces it before. Retry, force
// and extend enqueue a new task, which must not run while the old one is open, so they are
// recorded once the open tasks are void. The same holds for a skip in a repair: the next rung has
// tasks of its own. A decision whose record the database rejects is not taken: the run ends. One
// that is recorded in the background is taken.
func (op *operation) apply(ctx workflow.Context, d *lifecycle.ResolveRequest) (again bool, err error) {
	again = d.Decision != lifecycle.DecisionCancel && d.Decision != lifecycle.DecisionSkip
	replaces := again || d.Decision == lifecycle.DecisionSkip && op.plan.Action == lifecycle.ActionRecover
	if replaces && op.plan.Holds {
		if err := voidTasks(ctx, op, "Void the phase's open tasks"); err != nil || op.decision != d {
			return false, err
		}
	}
	op.accept()
	a := op.progress(ctx, activities.Advance{Phase: op.spec().Name, Decision: d})
	if _, err := recordLater(ctx, op, "Record the decision to "+string(d.Decision), a); err != nil {
		return false, err
	}
	op.take()
	op.returns, op.forced = 0, d.Decision == lifecycle.DecisionForce
	switch {
	case again:
		op.tries++
	case d.Decision == lifecycle.DecisionCancel:
		return false, errCanceled
	default:
		op.mark(ctx, lifecycle.PhaseSkipped, d.Reason)
	}
	return again, nil
}

// beginUndo makes the plan's compensation the current phase. It parks like any other
// phase, and may be retried or skipped but not canceled.
func (op *operation) beginUndo() {
	op.undoing = true
	op.status.Operation.Phases = append(op.status.Operation.Phases, op.plan.Undo.Status())
	op.phase = len(op.status.Operation.Phases) - 1
	op.decision = nil
}

// runUndo runs the compensation and records the cancel. It runs on a disconnected
// context, because the run may be canceled.
func (op *operation) runUndo(ctx workflow.Context) (lifecycle.OperationStatus, error) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	op.closed = false
	err := op.runPhase(free)
	op.closed = true
	switch {
	case errors.Is(err, errRenew):
		return op.status, continueAsNew(free, op)
	case kindOf(err) == schema.KindFenced:
		return op.fenced(free, err)
	case err != nil && !errors.Is(err, errNodeRemoved):
		return op.status, err
	}
	return op.rolledBack(free)
}
