package workflows

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
)

// maxTimerSummary is how many bytes the summary of a timer may have: Temporal's limit
// (limit.userMetadataSummarySize). A row of the Web UI's timeline shows about 75 of them.
const maxTimerSummary = 400

// maxReturns bounds how often a lost task that returned is awaited again before only a
// person continues the phase.
const maxReturns = 5

// park is an operation that waits in a phase which failed.
type park struct{ *operation }

// wait waits for a decision, for the phase's goal, or for a lost task to return. again
// is set when the lost task returned, because the same step then finds it, and when the
// phase of a repair must run again after an outage. While it waits for a party that did
// not respond, it retries the phase in the background; the operation continues when that
// succeeds. wait returns errCanceled if the run is canceled
// meanwhile, errRenew if the operation must continue as a new run, and the error of a write
// that is fenced.
func (op park) wait(ctx workflow.Context, cause error) (again bool, err error) {
	if errors.Is(cause, errResumed) {
		if ended, again, err := op.resume(ctx); ended || err != nil {
			return again, err
		}
	} else {
		op.enter(ctx, op.stuck(op.silence(ctx, cause), now(ctx)))
	}
	for pause := lifecycle.RetryPause; op.fence == nil; pause = min(2*pause, lifecycle.MaxRetryPause) {
		if err := op.pause(ctx, pause); err != nil {
			return false, errCanceled
		}
		switch {
		case op.fence != nil:
			return false, op.fence
		case op.decision != nil || op.reachedGoal(ctx):
			return false, nil
		case op.lostTaskReturned(ctx):
			delete(op.returned, op.currentStep)
			op.returns++
			return true, nil
		case op.renewDue(ctx):
			return false, errRenew
		}
		if ended, again, err := op.retry(ctx); ended || err != nil {
			return again, err
		}
	}
	return false, op.fence
}

// enter shows and records why the operation is parked.
func (op park) enter(ctx workflow.Context, stuck lifecycle.Stuck) {
	p := &op.status.Operation.Phases[op.phase]
	p.State, p.Reason = lifecycle.PhaseParked, stuck.Message
	op.status.Operation.Status = lifecycle.OperationParked
	op.status.Operation.DeadlineAt = nil
	op.published = true // a retry in the background does not publish the phase as running
	op.setStuck(ctx, &stuck, temporal.NewSearchAttributeKeyTime(lifecycle.AttrDeadlineAt).ValueUnset())
	a := op.unrecorded
	op.parks++
	a.Phase, a.Stuck, a.ParkID = stuck.Phase, &stuck, fmt.Sprintf("%s/%d", op.status.Operation.RunID, op.parks)
	stored, err := recordLater(ctx, op.operation, "Record that the operation is parked", op.progress(ctx, a))
	if noteRejected(ctx, op.state, err); stored {
		op.unrecorded = activities.Advance{}
	}
}

// pause waits for an event that ends the park or the run. If the phase is retried, it
// does not wait longer than until the next retry. Its timer shows in the Web UI's timeline
// why the operation is parked and what to do.
func (op park) pause(ctx workflow.Context, pause time.Duration) error {
	stuck := *op.status.Operation.Stuck
	if stuck.Retrying != nil {
		at := now(ctx).Add(pause)
		op.setRetrying(ctx, &at)
		_, err := op.awaitParked(ctx, pause, "retried after this pause")
		return err
	}
	for {
		ended, err := op.awaitParked(ctx, confirmPause, "waits for a decision")
		if ended || err != nil {
			return err
		}
		op.confirmPark(ctx)
		op.readLostTask(ctx)
	}
}

// confirmPark records again that the operation is parked. While it waits for a person, that
// adds six or seven events an hour, and the operation continues as a new run after two weeks.
func (op park) confirmPark(ctx workflow.Context) {
	stuck := *op.status.Operation.Stuck
	op.confirm(ctx, "Confirm that the operation is parked", activities.Advance{Phase: stuck.Phase, Stuck: &stuck, Continued: true})
}

// awaitParked waits for at most d until an event ends the park, which ended reports. It
// cancels its timer, so that no timer of a park stays open after the park.
func (op park) awaitParked(ctx workflow.Context, d time.Duration, todo string) (ended bool, err error) {
	timed, cancel := workflow.WithCancel(ctx)
	defer cancel()
	summary := text.Line(op.status.Operation.Stuck.Reason+", "+todo+": "+lifecycle.OpCommand("show", op.in.Action, op.name()), maxTimerSummary)
	return workflow.AwaitWithOptions(timed, workflow.AwaitOptions{Timeout: d, TimerOptions: workflow.TimerOptions{Summary: summary}},
		func() bool {
			return op.fence != nil || op.decision != nil || op.reachedGoal(ctx) || op.lostTaskReturned(ctx) || op.renewDue(ctx)
		})
}

// retry runs the phase's work while the operation stays parked. ended is set when
// the work succeeded or a decision interrupted it, and together with again when the
// phase must run outside of the park. A new reason is shown and recorded; the time since
// which the operation is parked stays.
func (op park) retry(ctx workflow.Context) (ended, again bool, err error) {
	before := *op.status.Operation.Stuck
	if before.Retrying != nil {
		op.setRetrying(ctx, nil)
	}
	if op.confirmPark(ctx); op.fence != nil {
		return false, false, op.fence
	}
	failure := op.attempt(ctx)
	switch {
	case op.fence != nil:
		return false, false, op.fence
	case ctx.Err() != nil:
		return false, false, errCanceled
	case failure == nil || op.decision != nil:
		return true, false, nil
	case kindOf(failure) == schema.KindFenced || errors.Is(failure, errNodeRemoved):
		return false, false, failure
	case undoLocked(op.operation, failure):
		return true, false, nil
	}
	stuck := op.stuck(op.silence(ctx, failure), before.Since)
	op.noteFailure(ctx, stuck.Message)
	if stuck.Reason == before.Reason {
		return false, false, nil
	}
	if ladder(op).outageEnded(ctx, before.Reason, failure) {
		return true, true, nil
	}
	op.enter(ctx, stuck)
	return false, false, nil
}

// silence returns why the task of a destructive phase, which waits for workloads, is not done
// in time: its agent sends no heartbeats, its identity is locked, or the cause as it is.
func (op park) silence(ctx workflow.Context, cause error) error {
	if !op.spec().Destructive || failureOf(cause).Reason != lifecycle.ReasonTimeout {
		return cause
	}
	if err := local(ctx, "Read the agent's last heartbeat", nil, record.CheckAgent, op.in.NodeID); err != nil && (kindOf(err) == schema.KindAgentSilent || failureOf(err).Reason == schema.ReasonNodeLocked) {
		return err
	}
	return cause
}

// retried reports whether a phase that parked for this reason is retried in the
// background: a party did not respond, the node's identity is locked, or no worker has the provider, and a repeated
// request is harmless. A destructive phase asks about the same task (see renewTask). kind is
// the failure's: a service may be unavailable for a reason of its own, such as vault_sealed.
func retried(kind schema.Kind, reason string) bool {
	return kind == schema.KindServiceUnavailable || slices.Contains([]string{lifecycle.ReasonTimeout, lifecycle.ReasonMachineSilent,
		lifecycle.ReasonProviderSilent, lifecycle.ReasonProviderUnknown, string(schema.KindAgentSilent), schema.ReasonNodeLocked}, reason)
}

// setRetrying shows when the next retry starts; nil means that one runs.
func (op park) setRetrying(ctx workflow.Context, next *time.Time) {
	s := *op.status.Operation.Stuck // a copy: a document that is being written shares the old one
	s.Retrying = &lifecycle.Retrying{Tries: s.Retrying.Tries, NextAt: next}
	if next == nil {
		s.Retrying.Tries++
	}
	op.status.Operation.Stuck = &s
	op.show(ctx)
}

func (op park) reachedGoal(ctx workflow.Context) bool {
	return op.goalReached != nil && op.goalReached(ctx)
}

// lostTaskReturned reports whether the lost task for which the operation is parked
// returned.
func (op park) lostTaskReturned(ctx workflow.Context) bool {
	return op.awaitsLostTask() && op.taskReturned(ctx)
}

// awaitsLostTask reports whether the operation is parked for a lost task and continues when
// the task returns. A task that was lost too often does not count: a person decides.
func (op park) awaitsLostTask() bool {
	s := op.status.Operation.Stuck
	return s != nil && s.Reason == lifecycle.ReasonTaskLost && op.returns < maxReturns
}

// readLostTask reads from the database whether the lost task returned: its event may be
// lost. If the database does not respond, the next confirmation of the park reads it again.
func (op park) readLostTask(ctx workflow.Context) {
	if !op.awaitsLostTask() || op.fence != nil {
		return
	}
	var got task.Outcome
	err := local(ctx, "Read whether the lost task returned", &got, node.ReadTaskResult, currentTask(op.operation))
	op.noteFence(err)
	switch {
	case got.Done || got.Open:
	case err == nil || ctx.Err() != nil || retryable(err) || failureOf(err).Reason == lifecycle.ReasonTaskLost:
		return
	}
	op.returned[op.currentStep] = true // the task runs again, or it ended
}

// unpark clears the parked state.
func (st *state) unpark(ctx workflow.Context) {
	st.status.Operation.Status = lifecycle.OperationRunning
	if st.status.Operation.Stuck == nil {
		return
	}
	p := &st.status.Operation.Phases[st.phase]
	p.State, p.Reason = lifecycle.PhaseRunning, ""
	st.setStuck(ctx, nil)
}

// setStuck shows in the status, the search attributes, the memo and the details why the
// operation waits and who must act, with further attributes; nil means that no one must
// act. The memo keeps the last reason then: its readers compare it with the attributes.
func (st *state) setStuck(ctx workflow.Context, s *lifecycle.Stuck, more ...temporal.SearchAttributeUpdate) {
	st.status.Operation.Stuck = s
	attention := temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrAttention)
	reason := temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrStuckReason)
	since := temporal.NewSearchAttributeKeyTime(lifecycle.AttrStuckSince)
	if s == nil {
		more = append(more, attention.ValueSet(string(lifecycle.AttentionNone)), reason.ValueUnset(), since.ValueUnset())
	} else {
		more = append(more, attention.ValueSet(string(s.WaitingOn)), reason.ValueSet(s.Reason), since.ValueSet(s.Since))
	}
	if s != nil && s.Phase != "" {
		more = append(more, temporal.NewSearchAttributeKeyKeyword(lifecycle.AttrPhase).ValueSet(s.Phase))
	}
	st.searchable(ctx, more...)
	if s != nil {
		st.noteFailure(ctx, s.Message)
		if err := workflow.UpsertMemo(ctx, map[string]any{lifecycle.MemoStuck: s}); err != nil {
			workflow.GetLogger(ctx).Error("cannot set the memo", "error", err.Error())
		}
	}
	st.show(ctx)
}
