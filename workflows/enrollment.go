package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// awaitEnrollment waits until the enrollment, or the reissue, reaches a point.
// Signals are hints; the database is authoritative. It is read when the budget
// ends, so that a lost signal only costs time. No token passes through here.
func awaitEnrollment(event lifecycle.AgentEventName, reached func(activities.Enrollment) bool) step {
	return func(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
		op.goalReached = func(ctx workflow.Context) bool {
			op.receiveEvents(ctx)
			return op.enrolled.Removed || reached(op.enrolled)
		}
		err := waitFor(ctx, spec.Budget, "Stop waiting for "+string(event), func() bool { return op.goalReached(ctx) })
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

// receiveEvents applies the node API's pending events, including those that
// arrived before the phase.
func (op *operation) receiveEvents(ctx workflow.Context) {
	events := workflow.GetSignalChannel(ctx, lifecycle.SignalAgent)
	for {
		var e lifecycle.AgentEvent
		if !events.ReceiveAsync(&e) {
			return
		}
		op.onEvent(e)
	}
}

// readEnrollment reads the progress of the enrollment from the database.
func (op *operation) readEnrollment(ctx workflow.Context) error {
	var p activities.Enrollment
	if err := onRecord(ctx, "Read the progress of the enrollment", record.ReadEnrollment, op.in.NodeID, &p); err != nil {
		return err
	}
	if !op.plan.Holds {
		p = op.reissueProgress(p)
	}
	op.enrolled = p
	return nil
}

// onEvent applies an event of the identity that the operation started with, or of
// a later one, which a concurrent reissue began. It ignores events of older
// identities. A later event implies the earlier ones.
func (op *operation) onEvent(e lifecycle.AgentEvent) {
	switch {
	case e.Event == lifecycle.EventTaskReturned:
		if e.OperationID == op.in.OperationID {
			op.returned[e.Step] = true
		}
		return
	case e.NodeID != op.in.NodeID:
		return
	case e.Event == lifecycle.EventNodeRemoved:
		op.enrolled.Removed = true
	}
	if e.Incarnation < op.claim.Incarnation || !op.plan.Holds && !op.isReissueEvent(e) {
		return
	}
	p := &op.enrolled
	switch e.Event {
	case lifecycle.EventFirstPoll:
		p.BundleIssued, p.TokenClaimed, p.Polled = true, true, true
	case lifecycle.EventTokenClaimed:
		p.BundleIssued, p.TokenClaimed = true, true
	case lifecycle.EventBundleIssued:
		p.BundleIssued = true
	}
}

// isReissueEvent reports whether an event belongs to this reissue: its bundle is
// issued in the incarnation at the start, its claim begins the next one. The
// node's old identity may poll until the claim and must not end the reissue.
func (op *operation) isReissueEvent(e lifecycle.AgentEvent) bool {
	if e.Event == lifecycle.EventBundleIssued {
		return e.Incarnation >= op.claim.Incarnation
	}
	return e.Incarnation > op.claim.Incarnation
}

// reissueProgress derives the progress of this reissue from the node's record.
func (op *operation) reissueProgress(p activities.Enrollment) activities.Enrollment {
	if p.Incarnation <= op.claim.Incarnation {
		return activities.Enrollment{BundleIssued: p.ReissueIssued, Removed: p.Removed}
	}
	return activities.Enrollment{BundleIssued: true, TokenClaimed: true, Polled: p.Polled, Removed: p.Removed}
}

// waitFor waits until the condition holds or the budget ends, which is a timeout.
func waitFor(ctx workflow.Context, budget time.Duration, summary string, condition func() bool) error {
	ok, err := workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{
		Timeout: budget, TimerOptions: workflow.TimerOptions{Summary: summary},
	}, condition)
	if err != nil {
		return err
	}
	if !ok {
		return schema.NewError(schema.KindAgentSilent, "no event within %s", budget).WithReason(reasonTimeout)
	}
	return nil
}
