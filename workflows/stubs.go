package workflows

import "github.com/gpuaas/gpuaas/activities"

// The activities, referenced by method value only: the worker runs the
// registered instances. These are the package's only variables.
var (
	record  *activities.Record
	node    *activities.Task
	machine *activities.Machine
	sweep   *activities.Sweep
)
