package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
)

// Enroll holds the node while its agent gets an identity: the admin API hands
// out the bundle, the agent claims its token, and its first authenticated poll
// ends the operation. The node API tells by signals; the database says the
// truth. No token passes through here.
func Enroll(ctx workflow.Context, in schema.OperationInput) (schema.OperationStatus, error) {
	return run(ctx, in, action{
		steps: map[string]step{
			schema.PhaseBundle: sees(schema.EventBundleIssued, func(e schema.EnrollmentProgress) bool { return e.BundleIssued }),
			schema.PhaseClaim:  sees(schema.EventTokenClaimed, func(e schema.EnrollmentProgress) bool { return e.TokenClaimed }),
			schema.PhasePoll:   sees(schema.EventFirstPoll, func(e schema.EnrollmentProgress) bool { return e.Polled }),
		},
		finish: func(*operation) schema.Finish {
			return schema.Finish{Status: schema.OperationCompleted, Node: schema.NodeActive, Outcome: "enrolled; its agent polls"}
		},
	})
}

// sees waits until the enrolment has come to a point. A signal says when to
// believe it; at the end of the budget the database is asked once more, so a
// lost signal costs time and nothing else.
func sees(event schema.AgentEventName, reached func(schema.EnrollmentProgress) bool) step {
	return func(ctx workflow.Context, op *operation, spec schema.PhaseSpec) error {
		err := waitFor(ctx, spec.Budget, "Give up waiting for "+string(event), func() bool {
			op.listen(ctx)
			return reached(op.enrolled)
		})
		if err == nil || ctx.Err() != nil {
			return err
		}
		if err := onRecord(ctx, "Read how far the enrolment has come", record.ReadEnrollment, op.in.NodeID, &op.enrolled); err != nil {
			return err
		}
		if reached(op.enrolled) {
			return nil
		}
		return err
	}
}

// listen takes up the node API's events, those that arrived before included. A
// later event implies the earlier ones.
func (op *operation) listen(ctx workflow.Context) {
	events := workflow.GetSignalChannel(ctx, schema.SignalAgent)
	for {
		var e schema.AgentEvent
		if !events.ReceiveAsync(&e) {
			return
		}
		op.heard(e)
	}
}

// heard notes an event of the node's identity: that of the claim, or a newer
// one, since a bundle handed out again may start a new incarnation.
func (op *operation) heard(e schema.AgentEvent) {
	if e.NodeID != op.in.NodeID || e.Incarnation < op.claim.Incarnation {
		return
	}
	p := &op.enrolled
	switch e.Event {
	case schema.EventFirstPoll:
		p.BundleIssued, p.TokenClaimed, p.Polled = true, true, true
	case schema.EventTokenClaimed:
		p.BundleIssued, p.TokenClaimed = true, true
	case schema.EventBundleIssued:
		p.BundleIssued = true
	}
}
