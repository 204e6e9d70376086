package workflows

import (
	"errors"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// runPhase runs the current phase until it reaches its goal, an operator skips
// it, or the operation is canceled. When the phase's budget ends or its work
// fails permanently, the operation parks.
func (op *operation) runPhase(ctx workflow.Context) error {
	op.goalReached = nil
	for {
		op.announce(ctx)
		err := op.attempt(ctx)
		if ctx.Err() != nil {
			return errCanceled
		}
		if err != nil && (kindOf(err) == schema.KindFenced || errors.Is(err, errNodeRemoved)) {
			return err
		}
		if op.decision == nil {
			repeat, err := op.endAttempt(ctx, err)
			if err != nil {
				return err
			}
			if repeat {
				continue
			}
			if op.decision == nil {
				return nil
			}
		}
		if done, err := op.decide(ctx); done || err != nil {
			return err
		}
	}
}

// endAttempt ends an attempt that no decision interrupted. After a failure it parks,
// unless the phase is best effort. repeat means that runPhase must repeat the
// attempt. If a decision is pending afterwards, the phase has not ended.
func (op *operation) endAttempt(ctx workflow.Context, failure error) (repeat bool, err error) {
	if failure == nil {
		op.mark(ctx, op.doneState(), "")
		return false, nil
	}
	if op.spec().BestEffort {
		op.mark(ctx, lifecycle.PhaseSkipped, failureOf(failure).Message)
		return false, nil
	}
	if repeat, err = op.park(ctx, failure); err != nil || op.decision != nil {
		return false, err
	}
	op.unpark(ctx)
	switch {
	case repeat:
		return true, nil
	case op.enrolled.Removed:
		return false, errNodeRemoved
	}
	op.mark(ctx, op.doneState(), "")
	return false, nil
}

// attempt runs the phase's work on a context that a decision cancels. It does
// nothing when a decision is already pending.
func (op *operation) attempt(ctx workflow.Context) error {
	if op.decision != nil {
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
	return body(work, op, op.spec())
}

func (op *operation) doneState() lifecycle.PhaseState {
	if op.forced {
		op.forced = false
		return lifecycle.PhaseForced
	}
	return lifecycle.PhaseCompleted
}

// announce marks the phase as running in the status, in the search attributes and
// in the database.
func (op *operation) announce(ctx workflow.Context) {
	spec := op.spec()
	deadline := workflow.Now(ctx).Add(spec.Budget).UTC()
	op.status.Operation.DeadlineAt = &deadline
	op.begin(ctx)
	op.searchable(ctx,
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrPhase).ValueSet(spec.Name),
		temporal.NewSearchAttributeKeyTime(lifecycle.AttrDeadlineAt).ValueSet(deadline))
	if op.phase > 0 {
		// The claim recorded the first phase.
		tryRecord(ctx, "Record the phase "+spec.Name, record.RecordProgress,
			op.progress(activities.Advance{Phase: spec.Name}))
	}
}

// park waits for a decision, for the phase's goal, or for a lost task to return.
// repeat is set when the lost task returned, because the same step then finds it.
// park returns errCanceled if the run is canceled meanwhile.
func (op *operation) park(ctx workflow.Context, cause error) (repeat bool, _ error) {
	stuck := op.stuck(ctx, cause)
	p := &op.status.Operation.Phases[op.phase]
	p.State, p.Reason = lifecycle.PhaseParked, stuck.Message
	op.status.Operation.Status, op.status.Operation.Stuck = lifecycle.OperationParked, &stuck
	op.status.Operation.DeadlineAt = nil
	op.searchable(ctx,
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrAttention).ValueSet(string(stuck.WaitingOn)),
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrStuckReason).ValueSet(stuck.Reason),
		temporal.NewSearchAttributeKeyTime(lifecycle.AttrStuckSince).ValueSet(stuck.Since))
	op.show(ctx)
	tryRecord(ctx, "Record that the operation is parked", record.RecordProgress,
		op.progress(activities.Advance{Phase: stuck.Phase, Stuck: &stuck}))
	lost := stuck.Reason == task.ReasonLost
	if err := workflow.Await(ctx, func() bool {
		return op.decision != nil || op.goalReached != nil && op.goalReached(ctx) || lost && op.taskReturned(ctx)
	}); err != nil {
		return false, errCanceled
	}
	if !lost || op.decision != nil {
		return false, nil
	}
	delete(op.returned, op.currentStep)
	return true, nil
}

// decide applies the pending decision. done means that the phase ended.
func (op *operation) decide(ctx workflow.Context) (done bool, err error) {
	d := *op.decision
	op.unpark(ctx)
	tryRecord(ctx, "Record the decision to "+string(d.Decision), record.RecordProgress,
		op.progress(activities.Advance{Phase: op.spec().Name, Decision: &d}))
	op.taken, op.decision = op.decision, nil
	switch d.Decision {
	case lifecycle.DecisionCancel:
		return true, errCanceled
	case lifecycle.DecisionSkip:
		op.mark(ctx, lifecycle.PhaseSkipped, d.Reason)
		return true, nil
	}
	op.forced = d.Decision == lifecycle.DecisionForce
	// Retry, force and extend enqueue a new task, which must not run while the old
	// one is open.
	op.tries++
	if !op.plan.Holds {
		return false, nil
	}
	return false, onRecord(ctx, "Void the phase's open tasks", node.VoidTasks, op.claim.Fence, nil)
}

// unpark clears the parked state.
func (op *operation) unpark(ctx workflow.Context) {
	parked := op.status.Operation.Stuck != nil
	op.status.Operation.Stuck = nil
	op.status.Operation.Status = lifecycle.OperationRunning
	if parked {
		op.searchable(ctx,
			temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrAttention).ValueSet(string(lifecycle.AttentionNone)),
			temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrStuckReason).ValueUnset(),
			temporal.NewSearchAttributeKeyTime(lifecycle.AttrStuckSince).ValueUnset())
	}
}

// undo runs the plan's compensation as a phase of its own. It parks like any
// other phase, and may be retried or skipped but not canceled.
func (op *operation) undo(ctx workflow.Context) error {
	op.undoing, op.closed = true, false
	op.status.Operation.Phases = append(op.status.Operation.Phases, op.plan.Undo.Status())
	op.phase = len(op.status.Operation.Phases) - 1
	op.decision = nil
	err := op.runPhase(ctx)
	op.closed = true
	return err
}
