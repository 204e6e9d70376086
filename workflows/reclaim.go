package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
)

// ReclaimStaleDispatch is one sweep of the reclaimer, run by a schedule every
// lifecycle.ReclaimInterval: what nobody holds any more is offered again, given up or
// voided. It keeps nothing between two runs, so one that fails costs the time to
// the next.
func ReclaimStaleDispatch(ctx workflow.Context) (activities.Swept, error) {
	var swept activities.Swept
	err := workflow.ExecuteActivity(
		remote(ctx, callSweep, 0, "", "Reclaim the tasks that nobody holds any more"), sweep.ReclaimTasks).Get(ctx, &swept)
	return swept, err
}
