package lifecycle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// TestObjectives: an operation that stays within the budgets of its phases meets its objective, and the
// objective is a bound of the metric.
func TestObjectives(t *testing.T) {
	t.Parallel()
	for _, p := range lifecycle.Operations() {
		var budget time.Duration
		for _, s := range p.Phases {
			budget += s.Budget
		}
		require.GreaterOrEqual(t, p.Objective(), budget, p.Action)
		require.Contains(t, lifecycle.DurationBounds(), p.Objective().Seconds(), p.Action)
	}
	long := lifecycle.Plan{Phases: []lifecycle.PhaseSpec{{Budget: 72 * time.Hour}}}
	require.Equal(t, 48*time.Hour, long.Objective(), "the largest bound")
}
