package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Drain takes a node out of service: cordon, then end the work before a
// deadline. What does not end is reported by name and parks the operation;
// force kills it, extend gives it the time once more, cancel lifts the cordon
// and restores the state at entry. With CordonOnly it stops after the cordon
// and leaves the node's state as it was.
func Drain(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
	return run(ctx, in, action{
		steps:     drainSteps(),
		decisions: drainDecisions(),
		undo:      uncordonIfCordoned,
		finish: func(op *operation) activities.Finish {
			if in.Options.CordonOnly {
				return activities.Finish{Status: lifecycle.OperationCompleted, Node: op.claim.Prior, Outcome: "cordoned; its work goes on"}
			}
			return activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeDrained, Outcome: "drained"}
		},
	})
}

func drainSteps() map[string]step {
	return map[string]step{lifecycle.PhaseCordon: cordon, lifecycle.PhaseDrain: endWork}
}

// drainDecisions: a node that is dead can be passed over, work that does not
// end can be killed.
func drainDecisions() map[string][]lifecycle.Decision {
	return map[string][]lifecycle.Decision{
		lifecycle.PhaseCordon: {lifecycle.DecisionSkip},
		lifecycle.PhaseDrain:  {lifecycle.DecisionForce, lifecycle.DecisionSkip},
	}
}
