package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestForceEndsWithItsPhase: a forced phase does not make the later phases forced.
func TestForceEndsWithItsPhase(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeRetired)
	w.on[task.NodeProbe] = func(activities.TaskSpec) (task.Result, error) {
		return succeeded(inventory.ProbeReport{Checks: []inventory.ProbeCheck{{Name: "disk", Detail: "3 MiB free"}}}), nil
	}
	b := setup(t, lifecycle.ActionReactivate, w)
	b.decideAt(time.Hour, lifecycle.DecisionForce)
	phases := b.run().Operation.Phases
	require.Equal(t, lifecycle.PhaseForced, phases[0].State)
	require.Equal(t, lifecycle.PhaseCompleted, phases[1].State)
}
