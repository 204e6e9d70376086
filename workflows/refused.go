package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// needsNoDrain reports whether the current phase is a drain before rungs that a person has all refused. What is
// left is the quarantine, which ends no workload.
func (op ladder) needsNoDrain(ctx workflow.Context) bool {
	if op.plan.Action != lifecycle.ActionRecover || op.spec().Name != lifecycle.PhaseDrain {
		return false
	}
	refused := false
	for _, spec := range op.plan.Phases {
		switch {
		case spec.Rung == "" || spec.Rung == recovery.RungQuarantine:
		case !op.rungOver(spec.Rung):
			return false
		default:
			refused = true
		}
	}
	return refused && workflow.GetVersion(ctx, changeRefusedName, workflow.DefaultVersion, 1) > workflow.DefaultVersion
}

// changeRefusedName is the change that made a repair without a rung that ends workloads drain nothing.
const changeRefusedName = "no-drain-after-refusal"
