package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
)

// Retire takes a node out of the pool, reversibly: polling and renewal go on,
// no work is given. The claim refuses a node that holds work, unless the node
// is to be drained first.
func Retire(ctx workflow.Context, in schema.OperationInput) (schema.OperationStatus, error) {
	return run(ctx, in, action{
		steps:     drainSteps(),
		decisions: drainDecisions(),
		undo:      uncordonIfCordoned,
		finish: func(*operation) schema.Finish {
			return schema.Finish{Status: schema.OperationCompleted, Node: schema.NodeRetired, Outcome: "retired"}
		},
	})
}
