package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Reactivate brings a retired or drained node back into service: health probe
// first, then the cordon is lifted. A failed probe parks; force accepts it.
func Reactivate(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
	return run(ctx, in, action{
		steps: map[string]step{lifecycle.PhaseProbe: probe, lifecycle.PhaseUncordon: uncordon},
		decisions: map[string][]lifecycle.Decision{
			lifecycle.PhaseProbe:    {lifecycle.DecisionForce, lifecycle.DecisionSkip},
			lifecycle.PhaseUncordon: {lifecycle.DecisionSkip},
		},
		finish: func(*operation) activities.Finish {
			return activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive, Outcome: "active"}
		},
	})
}
