package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
)

// TestTrackerGap: a fault lasts over the longest time between two reports, and not over a longer one.
func TestTrackerGap(t *testing.T) {
	t.Parallel()
	for gap, lasted := range map[time.Duration]time.Duration{health.MaxGap: health.MaxGap, health.MaxGap + time.Nanosecond: 0} {
		tr := health.NewTracker(health.Report{})
		tr.Observe(at(0), "", []health.Finding{one("gpu", "", health.Unhealthy, "R")})
		c := find(t, tr.Observe(at(gap), "", []health.Finding{one("gpu", "", health.Unhealthy, "R")}), "gpu", "")
		require.Equal(t, lasted, c.Lasted(at(gap)), gap)
	}
}

// TestTrackerRoundsUnknownTimeUp: a part of a second in which the status was unknown is not part of a fault, and
// a fault never lasts less than no time.
func TestTrackerRoundsUnknownTimeUp(t *testing.T) {
	t.Parallel()
	tr := health.NewTracker(health.Report{})
	for i, s := range []health.Status{health.Unhealthy, health.Unknown, health.Unhealthy} {
		tr.Observe(at(time.Duration(i)*100*time.Millisecond), "", []health.Finding{one("gpu", "", s, "R")})
	}
	c := find(t, tr.Last(), "gpu", "")
	require.EqualValues(t, 1, c.UnknownSeconds)
	require.Zero(t, c.Lasted(at(200*time.Millisecond)))
	require.Equal(t, time.Minute, c.Lasted(at(61*time.Second)))
}

// TestTrackerHidesOnlyFaults: a checker that cannot look makes the faults of components unknown, and no
// condition of a component that had none.
func TestTrackerHidesOnlyFaults(t *testing.T) {
	t.Parallel()
	tr := health.NewTracker(health.Report{})
	found := one("gpu_xid", "GPU-a", health.Unhealthy, "R")
	found.Results = append(found.Results, one("", "GPU-b", health.Healthy, "R").Results...)
	tr.Observe(at(0), "", []health.Finding{found})
	r := tr.Observe(at(time.Minute), "", []health.Finding{one("gpu_xid", "", health.Unknown, "NotRead")})
	require.Len(t, r.Conditions, 2)
	require.Equal(t, health.Unknown, find(t, r, "gpu_xid", "GPU-a").Status)
}
