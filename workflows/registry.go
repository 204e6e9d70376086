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
	watcher   *activities.Watch
	keys      *activities.Trust
	retainer  *activities.Retention
	sweeper   *activities.Sweep
	scanner   *activities.DriftScan
	explainer *activities.Explain
	repairs   *activities.Repair
	decider   *activities.RepairRounds
)

// Entry is one registered workflow.
type Entry struct {
	// Type is the workflow's type name in histories.
	Type string
	// Run is the workflow function.
	Run any
}

// Registry lists every workflow that a worker runs: one for each plan, one for each
// schedule, and that of rotations.
func Registry() []Entry {
	entries := []Entry{{lifecycle.WorkflowReclaim, ReclaimStaleDispatch}, {lifecycle.WorkflowWatch, WatchOperations},
		{lifecycle.WorkflowTrust, MaintainTrust}, {lifecycle.WorkflowDelete, DeleteOldRecords},
		{lifecycle.WorkflowSweep, SweepMachines}, {lifecycle.WorkflowDrift, ScanDrift}, {lifecycle.WorkflowExplain, ExplainParks}, {lifecycle.WorkflowDecide, DecideRepairs}, {lifecycle.WorkflowRotation, RotateKeys}}
	for _, p := range lifecycle.Operations() {
		entries = append(entries, Entry{p.Workflow, func(ctx workflow.Context, in lifecycle.OperationInput, c *Carried) (lifecycle.OperationStatus, error) {
			return run(ctx, p.Action, in, c)
		}})
	}
	return entries
}
