package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Enroll holds the node while its agent gets an identity: the admin API hands
// out the bundle, the agent claims its token, and its first authenticated poll
// ends the operation. The node API tells by signals; the database says the
// truth. No token passes through here.
func Enroll(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
	return run(ctx, in, action{
		steps: enrollmentSteps(),
		finish: func(*operation) activities.Finish {
			return activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive, Outcome: "enrolled; its agent polls"}
		},
	})
}

// enrollmentSteps wait for what the node API sees of an identity: of a first
// one, and of a reissued one.
func enrollmentSteps() map[string]step {
	return map[string]step{
		lifecycle.PhaseBundle: sees(lifecycle.EventBundleIssued, func(e activities.Enrollment) bool { return e.BundleIssued }),
		lifecycle.PhaseClaim:  sees(lifecycle.EventTokenClaimed, func(e activities.Enrollment) bool { return e.TokenClaimed }),
		lifecycle.PhasePoll:   sees(lifecycle.EventFirstPoll, func(e activities.Enrollment) bool { return e.Polled }),
	}
}

// sees waits until the enrolment has come to a point. A signal says when to
// believe it; at the end of the budget the database is asked once more, so a
// lost signal costs time and nothing else.
func sees(event lifecycle.AgentEventName, reached func(activities.Enrollment) bool) step {
	return func(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
		op.healed = func(ctx workflow.Context) bool {
			op.listen(ctx)
			return op.enrolled.Removed || reached(op.enrolled)
		}
		err := waitFor(ctx, spec.Budget, "Give up waiting for "+string(event), func() bool { return op.healed(ctx) })
		if err != nil && ctx.Err() == nil {
			if err := op.readProgress(ctx); err != nil {
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

// listen takes up the node API's events, those that arrived before included. A
// later event implies the earlier ones.
func (op *operation) listen(ctx workflow.Context) {
	events := workflow.GetSignalChannel(ctx, lifecycle.SignalAgent)
	for {
		var e lifecycle.AgentEvent
		if !events.ReceiveAsync(&e) {
			return
		}
		op.heard(e)
	}
}

// readProgress reads how far the enrolment has come.
func (op *operation) readProgress(ctx workflow.Context) error {
	var p activities.Enrollment
	if err := onRecord(ctx, "Read how far the enrolment has come", record.ReadEnrollment, op.in.NodeID, &p); err != nil {
		return err
	}
	if !op.holds() {
		p = op.progressOfReissue(p)
	}
	op.enrolled = p
	return nil
}

// heard notes an event of the node's identity: of the one the operation
// started with, or of a later one, which a reissue beside it began. An older
// identity's events count for nothing.
func (op *operation) heard(e lifecycle.AgentEvent) {
	if e.Event == lifecycle.EventTaskReturned {
		if e.OperationID == op.in.OperationID {
			op.back[e.Step] = true
		}
		return
	}
	if e.Event == lifecycle.EventNodeRemoved && e.NodeID == op.in.NodeID {
		op.enrolled.Removed = true
	}
	if e.NodeID != op.in.NodeID || e.Incarnation < op.claim.Incarnation || !op.holds() && !op.heardOfReissue(e) {
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
