package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// ReissueEnrollment follows a reissue until the node is back: the admin API
// hands out the recovery bundle, the node's agent claims the new token, which
// starts the next incarnation, and polls with the new identity. It runs beside
// whatever operation holds the node and changes no state: while that one drains
// the node the token is not claimed, and when it removes the node this one ends.
// A cancel voids the reissued token. No token passes through here.
func ReissueEnrollment(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
	return run(ctx, in, action{
		steps: enrollmentSteps(),
		finish: func(*operation) activities.Finish {
			return activities.Finish{Status: lifecycle.OperationCompleted, Outcome: "reissued; its agent polls with the new identity"}
		},
	})
}

// heardOfReissue reports whether an event is of this reissue: the bundle of the
// incarnation at entry or later, the rest of a later one only. So the node's old
// identity, which may poll until the claim, never ends a reissue.
func (op *operation) heardOfReissue(e lifecycle.AgentEvent) bool {
	if e.Event == lifecycle.EventBundleIssued {
		return e.Incarnation >= op.claim.Incarnation
	}
	return e.Incarnation > op.claim.Incarnation
}

// progressOfReissue is what the database's record says of this reissue.
func (op *operation) progressOfReissue(p activities.Enrollment) activities.Enrollment {
	if p.Incarnation <= op.claim.Incarnation {
		return activities.Enrollment{BundleIssued: p.ReissueIssued, Removed: p.Removed}
	}
	return activities.Enrollment{BundleIssued: true, TokenClaimed: true, Polled: p.Polled, Removed: p.Removed}
}

// holds reports whether the operation holds its node, and so may have given it
// tasks and changed its state.
func (op *operation) holds() bool {
	move, _ := lifecycle.MoveOf(op.in.Action)
	return move.Operation
}

// cancelled is what a cancel records.
func (op *operation) cancelled() activities.Finish {
	f := activities.Finish{
		Status: lifecycle.OperationCanceled, Node: op.claim.Prior, VoidTokens: op.in.Action == lifecycle.ActionEnroll,
		Outcome: "cancelled; the node is " + string(op.claim.Prior) + " again",
	}
	if op.holds() {
		return f
	}
	f.Node, f.VoidTokens, f.Outcome = "", true, "cancelled; the reissued token is void"
	if op.enrolled.Removed {
		f.Outcome = "cancelled: the node was removed, and the reissued token is void with it"
	} else if op.enrolled.TokenClaimed {
		f.Outcome += "; the node's agent had claimed it, so it needs another: gpuaas node reissue-enrollment " + op.name()
	}
	return f
}
