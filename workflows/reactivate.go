package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
)

// Reactivate brings a retired or drained node back into service: health probe
// first, then the cordon is lifted. A failed probe parks; force accepts it.
func Reactivate(ctx workflow.Context, in schema.OperationInput) (schema.OperationStatus, error) {
	return run(ctx, in, action{
		steps: map[string]step{schema.PhaseProbe: probe, schema.PhaseUncordon: uncordon},
		decisions: map[string][]schema.Decision{
			schema.PhaseProbe:    {schema.DecisionForce, schema.DecisionSkip},
			schema.PhaseUncordon: {schema.DecisionSkip},
		},
		finish: func(*operation) schema.Finish {
			return schema.Finish{Status: schema.OperationCompleted, Node: schema.NodeActive, Outcome: "active"}
		},
	})
}
