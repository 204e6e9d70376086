package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Retire takes a node out of the pool, reversibly: polling and renewal go on,
// no work is given. The claim refuses a node that holds work, unless the node
// is to be drained first.
func Retire(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
	return run(ctx, in, action{
		steps:     drainSteps(),
		decisions: drainDecisions(),
		undo:      uncordonIfCordoned,
		finish: func(*operation) activities.Finish {
			return activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired, Outcome: "retired"}
		},
	})
}
