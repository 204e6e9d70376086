package workflows

import (
	"errors"
	"slices"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// runPhase runs one phase until its goal is reached, an operator skips it, or
// the operation is cancelled. When its budget ends or its work fails for good,
// the operation parks and waits for a decision.
func (op *operation) runPhase(ctx workflow.Context, spec lifecycle.PhaseSpec, do step, extra []lifecycle.Decision) error {
	op.healed = nil
	for {
		op.announce(ctx, spec)
		err := op.attempt(ctx, spec, do)
		if ctx.Err() != nil {
			return errCancelled
		}
		if err == nil && op.decision == nil {
			op.mark(ctx, op.doneState(), "")
			return nil
		}
		if err != nil && (kindOf(err) == schema.KindFenced || errors.Is(err, errNodeRemoved)) {
			return err
		}
		if op.decision == nil {
			again, err := op.park(ctx, spec, err, extra)
			if err != nil {
				return err
			}
			if again {
				op.clear(ctx)
				continue
			}
		}
		if op.decision == nil {
			op.clear(ctx)
			if op.enrolled.Removed {
				return errNodeRemoved
			}
			op.mark(ctx, op.doneState(), "")
			return nil
		}
		if done, err := op.decide(ctx); done || err != nil {
			return err
		}
	}
}

// attempt runs the phase's work on a context that a decision can end.
func (op *operation) attempt(ctx workflow.Context, spec lifecycle.PhaseSpec, do step) error {
	work, cancel := workflow.WithCancel(ctx)
	defer cancel()
	op.interrupt = cancel
	err := do(work, op, spec)
	op.interrupt = nil
	return err
}

func (op *operation) doneState() lifecycle.PhaseState {
	if op.forced {
		op.forced = false
		return lifecycle.PhaseForced
	}
	return lifecycle.PhaseCompleted
}

// announce marks the phase as running, in the status, in the search attributes
// and in the database.
func (op *operation) announce(ctx workflow.Context, spec lifecycle.PhaseSpec) {
	op.begin(ctx, spec)
	op.status.Operation.DeadlineAt = deadline(ctx, spec.Budget)
	op.searchable(ctx,
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrPhase).ValueSet(spec.Name),
		temporal.NewSearchAttributeKeyTime(lifecycle.AttrDeadlineAt).ValueSet(*op.status.Operation.DeadlineAt))
	if op.phase > 0 {
		// The claim recorded the first phase.
		tryRecord(ctx, "Record the phase "+spec.Name, record.RecordProgress,
			op.progress(activities.Advance{Phase: spec.Name}))
	}
}

// begin marks the phase as running and shows it.
func (op *operation) begin(ctx workflow.Context, _ lifecycle.PhaseSpec) {
	now := workflow.Now(ctx).UTC()
	p := &op.status.Operation.Phases[op.phase]
	p.State, p.Reason = lifecycle.PhaseRunning, ""
	p.Attempt++
	if p.StartedAt == nil {
		p.StartedAt = &now
	}
	op.status.Operation.Status = lifecycle.OperationRunning
	op.show(ctx)
}

func (op *operation) mark(ctx workflow.Context, s lifecycle.PhaseState, reason string) {
	now := workflow.Now(ctx).UTC()
	p := &op.status.Operation.Phases[op.phase]
	p.State, p.Reason, p.EndedAt = s, reason, &now
	op.show(ctx)
}

// park waits for an operator's decision, or until the phase's goal is reached
// after all; then there is none. again says that there is none because the task
// that was given up for lost came back: the same step finds it. It returns
// errCancelled when the run is cancelled meanwhile.
func (op *operation) park(ctx workflow.Context, spec lifecycle.PhaseSpec, cause error, extra []lifecycle.Decision) (again bool, _ error) {
	stuck := op.stuck(ctx, spec, cause, extra)
	p := &op.status.Operation.Phases[op.phase]
	p.State, p.Reason = lifecycle.PhaseParked, stuck.Message
	op.status.Operation.Status, op.status.Operation.Stuck = lifecycle.OperationParked, &stuck
	op.status.Operation.DeadlineAt = nil
	op.searchable(ctx,
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrAttention).ValueSet(string(stuck.WaitingOn)),
		temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrStuckReason).ValueSet(stuck.Reason),
		temporal.NewSearchAttributeKeyTime(lifecycle.AttrStuckSince).ValueSet(stuck.Since))
	op.show(ctx)
	tryRecord(ctx, "Record why it does not go on", record.RecordProgress,
		op.progress(activities.Advance{Phase: spec.Name, Stuck: &stuck}))
	heals, lost := op.heals(ctx), stuck.Reason == task.ReasonLost
	if err := workflow.Await(ctx, func() bool {
		return op.decision != nil || heals && op.healed(ctx) || lost && op.cameBack(ctx)
	}); err != nil {
		return false, errCancelled
	}
	if !lost || op.decision != nil {
		return false, nil
	}
	delete(op.back, op.asked)
	return true, nil
}

// cameBack reports whether the task that the phase waits for is lost no more. It
// may have been told before the phase heard that it was lost.
func (op *operation) cameBack(ctx workflow.Context) bool {
	op.listen(ctx)
	return op.back[op.asked]
}

// heals reports whether the parked phase ends by itself when what it waited for
// comes late. Enrolments recorded before that was so wait for a decision.
func (op *operation) heals(ctx workflow.Context) bool {
	if op.healed == nil {
		return false
	}
	return !op.holds() || workflow.GetVersion(ctx, "parked-enrolment-heals", workflow.DefaultVersion, 1) == 1
}

// decide takes up the waiting decision. done says that the phase is over.
func (op *operation) decide(ctx workflow.Context) (done bool, err error) {
	d := *op.decision
	op.unpark(ctx, d)
	switch d.Decision {
	case lifecycle.DecisionCancel:
		return true, errCancelled
	case lifecycle.DecisionSkip:
		op.mark(ctx, lifecycle.PhaseSkipped, d.Reason)
		return true, nil
	}
	op.forced = d.Decision == lifecycle.DecisionForce
	// Retry, force and extend give the node a new task; the old one must not
	// run beside it.
	op.try++
	if !op.holds() {
		return false, nil
	}
	return false, onRecord(ctx, "Void the phase's open tasks", node.VoidTasks, op.claim.Fence, nil)
}

// unpark clears what park set, records the decision and lets its caller go.
func (op *operation) unpark(ctx workflow.Context, d lifecycle.ResolveRequest) {
	op.clear(ctx)
	tryRecord(ctx, "Record the decision to "+string(d.Decision), record.RecordProgress,
		op.progress(activities.Advance{Phase: op.status.Operation.Phases[op.phase].Name, Decision: &d}))
	op.decision = nil
}

// clear takes back that the operation is parked.
func (op *operation) clear(ctx workflow.Context) {
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

// undo runs an action's compensation as a phase of its own: it parks too when
// it cannot go on, and may be retried or skipped.
func (op *operation) undo(ctx workflow.Context, do step) error {
	spec := undoSpec()
	op.status.Operation.Phases = append(op.status.Operation.Phases,
		lifecycle.Phase{Name: spec.Name, Title: spec.Title, State: lifecycle.PhasePending})
	op.phase = len(op.status.Operation.Phases) - 1
	op.decision = nil
	return op.runPhase(ctx, spec, do, []lifecycle.Decision{lifecycle.DecisionSkip})
}

// progress numbers an advance, so that a late repeat of it cannot undo a newer
// one.
func (op *operation) progress(a activities.Advance) activities.AdvanceInput {
	op.advances++
	a.Step = op.advances
	return activities.AdvanceInput{Fence: op.claim.Fence, Advance: a}
}

// searchable upserts search attributes. It fails only on a key without a name.
func (op *operation) searchable(ctx workflow.Context, updates ...temporal.SearchAttributeUpdate) {
	if err := workflow.UpsertTypedSearchAttributes(ctx, updates...); err != nil {
		workflow.GetLogger(ctx).Error("search attributes not set", "error", err.Error())
	}
}

// may reports whether a decision fits the operation now.
func (op *operation) may(d lifecycle.Decision, extra []lifecycle.Decision) bool {
	parked := op.status.Operation.Stuck != nil
	switch d {
	case lifecycle.DecisionCancel:
		return true
	case lifecycle.DecisionRetry, lifecycle.DecisionExtend:
		return parked
	case lifecycle.DecisionForce, lifecycle.DecisionSkip:
		return slices.Contains(extra, d)
	}
	return false
}
