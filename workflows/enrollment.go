package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// awaitEnrollment waits until the enrollment, or the reissue, reaches a point.
// Signals only shorten the wait: everyone who can write to Temporal can send one. The
// database is authoritative. It is read after an event, when the budget ends and, while
// the operation is parked, at each retry, so a lost signal costs time and nothing else.
// Events contain no tokens. A long wait records its phase again and again: the operation may
// have ended.
func awaitEnrollment(event lifecycle.AgentEventName, reached func(activities.Enrollment) bool) step {
	return func(ctx workflow.Context, op *operation) error {
		if err := op.publish(ctx); err != nil {
			return err
		}
		followRecord(ctx, &op.inbox)
		op.goalReached = func(ctx workflow.Context) bool {
			op.receiveEvents(ctx)
			return op.enrolled.Removed || reached(op.enrolled)
		}
		wait := op.spec().Budget
		if op.parked() {
			wait = 0
		}
		err := waitFor(ctx, op, wait, "waiting for "+string(event))
		if op.fence != nil {
			return op.fence
		}
		if err != nil && ctx.Err() == nil {
			if err := op.readEnrollment(ctx); err != nil {
				return err
			}
		}
		switch {
		case op.enrolled.Removed:
			return errNodeRemoved
		case ctx.Err() != nil:
			return err
		case reached(op.enrolled):
			return nil
		}
		return err
	}
}

// inbox holds the events that the node API reported to the operation.
type inbox struct {
	*state
	// enrolled is the progress of the enrollment in the database. announced is set when
	// an event announced progress that was not read yet. following is set once
	// followRecord runs.
	enrolled             activities.Enrollment
	announced, following bool
	// reads counts the reads that began, and latestRead is the newest one with a result.
	reads, latestRead int
	// currentStep is the step of the newest task. returned holds the steps whose
	// lost task returned.
	currentStep string
	returned    map[string]bool
}

// receiveEvents applies the node API's pending events, including those that
// arrived before the phase.
func (b *inbox) receiveEvents(ctx workflow.Context) {
	events := workflow.GetSignalChannel(ctx, lifecycle.SignalAgent)
	for {
		var e lifecycle.AgentEvent
		if !events.ReceiveAsync(&e) {
			return
		}
		b.onEvent(e)
	}
}

// followRecord reads the progress of the enrollment after each event, until the operation
// ends, also while it is parked. If the database cannot be read for long, the end of the
// phase's budget reads it.
func followRecord(ctx workflow.Context, b *inbox) {
	if b.following {
		return
	}
	b.following = true
	free, _ := workflow.NewDisconnectedContext(ctx)
	workflow.Go(free, func(ctx workflow.Context) {
		for {
			if err := workflow.Await(ctx, func() bool { b.receiveEvents(ctx); return b.announced }); err != nil {
				return
			}
			b.announced = false
			if err := b.readEnrollment(ctx); err != nil {
				workflow.GetLogger(ctx).Warn("cannot read the enrollment after an event", "kind", string(kindOf(err)))
			}
		}
	})
}

// readEnrollment reads the progress of the enrollment from the database. Reads may
// overlap, and the result of one that began earlier does not replace a later one's.
func (b *inbox) readEnrollment(ctx workflow.Context) error {
	b.reads++
	read := b.reads
	var p activities.Enrollment
	if err := fromRecord(ctx, "Read the progress of the enrollment", &p, record.ReadEnrollment, b.in.NodeID); err != nil {
		return err
	}
	if !b.plan.Holds {
		p = b.reissueProgress(p)
	}
	if read > b.latestRead {
		b.latestRead, b.enrolled = read, p
	}
	return nil
}

// onEvent notes an event of the identity that the operation started with, or of a later
// one, which a concurrent reissue began. It ignores events of older identities.
func (b *inbox) onEvent(e lifecycle.AgentEvent) {
	switch {
	case e.Event == lifecycle.EventTaskReturned:
		if e.OperationID == b.in.OperationID {
			b.returned[e.Step] = true
		}
	case e.NodeID != b.in.NodeID:
	case e.Event == lifecycle.EventNodeRemoved, e.Incarnation >= b.claim.Incarnation && (b.plan.Holds || b.isReissueEvent(e)):
		b.announced = true
	}
}

// isReissueEvent reports whether an event belongs to this reissue: its bundle is
// issued in the incarnation at the start, its claim begins the next one. The
// node's old identity may poll until the claim and must not end the reissue.
func (b *inbox) isReissueEvent(e lifecycle.AgentEvent) bool {
	if e.Event == lifecycle.EventBundleIssued {
		return e.Incarnation >= b.claim.Incarnation
	}
	return e.Incarnation > b.claim.Incarnation
}

// reissueProgress derives the progress of this reissue from the node's record.
func (b *inbox) reissueProgress(p activities.Enrollment) activities.Enrollment {
	if p.Incarnation <= b.claim.Incarnation {
		return activities.Enrollment{BundleIssued: p.ReissueIssued, Removed: p.Removed}
	}
	return activities.Enrollment{BundleIssued: true, TokenClaimed: true, Polled: p.Polled, Removed: p.Removed}
}

// taskReturned reports whether the current step's lost task returned. Its event
// may arrive before the activity's failure.
func (b *inbox) taskReturned(ctx workflow.Context) bool {
	b.receiveEvents(ctx)
	return b.returned[b.currentStep]
}

// waitFor waits until the phase reaches its goal, the budget ends, which is a timeout, or a
// write is fenced.
func waitFor(ctx workflow.Context, op *operation, budget time.Duration, doing string) error {
	end := now(ctx).Add(budget)
	for {
		rest, summary := end.Sub(now(ctx)), "Stop "+doing
		if rest > confirmPause {
			rest, summary = confirmPause, "Record that the phase is still "+doing
		}
		reached, err := workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{
			Timeout: rest, TimerOptions: workflow.TimerOptions{Summary: summary},
		}, func() bool { return op.goalReached(ctx) || op.fence != nil })
		switch {
		case reached || err != nil:
			return err
		case !now(ctx).Before(end):
			return schema.NewError(schema.KindAgentSilent, "no event within %s", lifecycle.Span(budget)).WithReason(lifecycle.ReasonTimeout)
		}
		op.confirm(ctx, "Confirm that the phase waits", activities.Advance{Phase: op.spec().Name})
	}
}
