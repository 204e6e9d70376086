package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// The activities, referenced by method value only: the worker runs the
// registered instances.
var (
	record    *activities.Record
	node      *activities.Task
	machine   *activities.Machine
	reclaimer *activities.Reclaim
)

// Entry is one registered workflow.
type Entry struct {
	// Type is the workflow's type name in histories.
	Type string
	// Run is the workflow function.
	Run any
}

// Registry lists every workflow that a worker runs: one for each plan, and the
// reclaimer.
func Registry() []Entry {
	entries := []Entry{{lifecycle.WorkflowReclaim, ReclaimStaleDispatch}}
	for _, p := range lifecycle.Operations() {
		entries = append(entries, Entry{p.Workflow, func(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
			return run(ctx, p.Action, in)
		}})
	}
	return entries
}

// ReclaimStaleDispatch is one run of the reclaimer. A schedule starts it every
// lifecycle.RoundInterval. It requeues stale tasks, marks them lost or voids
// them. It keeps no state between runs: after a failed run, the next one does the
// same work.
func ReclaimStaleDispatch(ctx workflow.Context) (activities.ReclaimSummary, error) {
	var summary activities.ReclaimSummary
	err := workflow.ExecuteActivity(
		remote(ctx, callReclaim, 0, "Reclaim stale tasks"), reclaimer.ReclaimTasks).Get(ctx, &summary)
	return summary, err
}
