package health_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
)

// start is when the fake clock of these tests starts.
func start() time.Time { return time.Date(2026, 11, 28, 8, 0, 0, 0, time.UTC) }

// at returns a time after the start.
func at(d time.Duration) time.Time { return start().Add(d) }

// one is the finding of a checker about one component.
func one(checker, component string, s health.Status, reason string) health.Finding {
	r := health.Result{Component: component, Status: s, Reason: reason}
	if s == health.Unhealthy {
		r.Repair = health.RepairReboot
	}
	return health.Finding{Checker: checker, Results: []health.Result{r}}
}

// find returns a condition of a report.
func find(t *testing.T, r health.Report, checker, component string) health.Condition {
	t.Helper()
	for _, c := range r.Conditions {
		if c.Checker == checker && c.Component == component {
			return c
		}
	}
	require.Fail(t, "no condition", "%s %s in %v", checker, component, r.Conditions)
	return health.Condition{}
}

func TestTrackerKeepsSinceWhileOnlyTheReasonChanges(t *testing.T) {
	t.Parallel()
	tr := health.NewTracker(health.Report{})
	tr.Observe(at(0), "b1", []health.Finding{one("gpu", "", health.Unhealthy, "GPUCountMismatch")})
	c := find(t, tr.Observe(at(time.Minute), "b1", []health.Finding{one("gpu", "", health.Unhealthy, "NoAllocatableGPU")}), "gpu", "")
	require.Equal(t, at(0), c.Since)
	require.Equal(t, 2, c.Samples)
	require.Equal(t, "NoAllocatableGPU", c.Reason)
	require.Equal(t, time.Minute, c.Lasted(at(time.Minute)))
}

func TestTrackerRestartsSinceAfterHealthy(t *testing.T) {
	t.Parallel()
	tr := health.NewTracker(health.Report{})
	for i, s := range []health.Status{health.Unhealthy, health.Unhealthy, health.Healthy, health.Unhealthy} {
		tr.Observe(at(time.Duration(i)*time.Minute), "b1", []health.Finding{one("gpu", "", s, "R")})
	}
	c := find(t, tr.Last(), "gpu", "")
	require.Equal(t, at(3*time.Minute), c.Since)
	require.Equal(t, 1, c.Samples)
}

// A flap of one checker must not use the age of another one's fault.
func TestTrackerTimesEachCheckerAlone(t *testing.T) {
	t.Parallel()
	thresholds := map[string]time.Duration{"disk_pressure": 30 * time.Minute, "node_ready": 5 * time.Minute}
	tr := health.NewTracker(health.Report{})
	for m := range 21 {
		ready := health.Healthy
		if m == 20 {
			ready = health.Unhealthy
		}
		r := tr.Observe(at(time.Duration(m)*time.Minute), "", []health.Finding{
			one("disk_pressure", "", health.Unhealthy, "KubeletHasDiskPressure"), one("node_ready", "", ready, "R"),
		})
		require.Empty(t, r.Due(thresholds), "minute %d", m)
	}
	require.Len(t, tr.Last().Faults(), 2)
}

func TestTrackerTimesEachComponentAlone(t *testing.T) {
	t.Parallel()
	tr := health.NewTracker(health.Report{})
	both := func(a, b health.Status) []health.Finding {
		return []health.Finding{{Checker: "gpu_xid", Results: append(one("", "GPU-a", a, "R").Results, one("", "GPU-b", b, "R").Results...)}}
	}
	tr.Observe(at(0), "", both(health.Unhealthy, health.Healthy))
	r := tr.Observe(at(time.Minute), "", both(health.Unhealthy, health.Unhealthy))
	require.Equal(t, at(0), find(t, r, "gpu_xid", "GPU-a").Since)
	require.Equal(t, at(time.Minute), find(t, r, "gpu_xid", "GPU-b").Since)
}

func TestTrackerUnknownNeitherHealsNorMatures(t *testing.T) {
	t.Parallel()
	tr := health.NewTracker(health.Report{})
	observe := func(minute int, s health.Status) health.Condition {
		return find(t, tr.Observe(at(time.Duration(minute)*time.Minute), "", []health.Finding{one("gpu", "", s, "R")}), "gpu", "")
	}
	for m := range 3 {
		observe(m, health.Unhealthy)
	}
	for m := 3; m < 60; m++ {
		c := observe(m, health.Unknown)
		require.Equal(t, health.Unknown, c.Status)
		require.Equal(t, at(3*time.Minute), c.Since)
		require.Equal(t, at(0), c.FaultSince)
		require.Equal(t, 3, c.FaultSamples)
		require.Zero(t, c.Lasted(at(time.Hour)))
		require.Empty(t, tr.Last().Due(map[string]time.Duration{"gpu": 0}))
	}
	c := observe(60, health.Unhealthy)
	require.Equal(t, at(0), c.Since)
	require.Equal(t, 4, c.Samples)
	require.Equal(t, 3*time.Minute, c.Lasted(at(time.Hour)), "the hour without a result does not count")
	require.Equal(t, 4*time.Minute, observe(61, health.Unhealthy).Lasted(at(61*time.Minute)))
	c = observe(62, health.Healthy)
	require.Zero(t, c.FaultSince)
	require.Zero(t, c.UnknownSeconds)
}

// An input that hangs gives one unknown result for the node, and must not end the faults of its
// components.
func TestTrackerUnknownNodeKeepsFaultsOfComponents(t *testing.T) {
	t.Parallel()
	tr := health.NewTracker(health.Report{})
	tr.Observe(at(0), "", []health.Finding{one("gpu_ecc", "GPU-a", health.Unhealthy, "R")})
	r := tr.Observe(at(time.Minute), "", []health.Finding{one("gpu_ecc", "", health.Unknown, "NotRead")})
	require.Equal(t, at(0), find(t, r, "gpu_ecc", "GPU-a").FaultSince)
	r = tr.Observe(at(2*time.Minute), "", []health.Finding{one("gpu_ecc", "GPU-a", health.Unhealthy, "R")})
	require.Equal(t, at(0), find(t, r, "gpu_ecc", "GPU-a").Since)
	require.Len(t, r.Conditions, 1)
	r = tr.Observe(at(3*time.Minute), "", []health.Finding{one("gpu_ecc", "", health.Healthy, "R")})
	require.Len(t, r.Conditions, 1)
	require.Empty(t, r.Faults())
}

// Nothing is known about a time in which no report was made.
func TestTrackerGapDoesNotMature(t *testing.T) {
	t.Parallel()
	tr := health.NewTracker(health.Report{})
	fault := []health.Finding{one("gpu", "", health.Unhealthy, "R")}
	tr.Observe(at(0), "", fault)
	tr.Observe(at(time.Minute), "", fault)
	c := find(t, tr.Observe(at(3*time.Hour), "", fault), "gpu", "")
	require.Equal(t, at(0), c.Since)
	require.Equal(t, time.Minute, c.Lasted(at(3*time.Hour)))
}

func TestTrackerContinuesFromStoredReport(t *testing.T) {
	t.Parallel()
	script := []health.Status{health.Unhealthy, health.Unhealthy, health.Unknown, health.Unknown, health.Unhealthy, health.Healthy, health.Unhealthy}
	whole := health.NewTracker(health.Report{})
	var stored []byte
	for i, s := range script {
		found := []health.Finding{one("gpu", "GPU-a", s, "R"), one("node_ready", "", health.Healthy, "KubeletReady")}
		want := whole.Observe(at(time.Duration(i)*time.Minute), "b1", found)
		var last health.Report
		if stored != nil {
			require.NoError(t, json.Unmarshal(stored, &last))
		}
		got := health.NewTracker(last).Observe(at(time.Duration(i)*time.Minute), "b1", found)
		require.Equal(t, want, got, "sample %d", i)
		var err error
		stored, err = json.Marshal(got)
		require.NoError(t, err)
	}
}

func TestTrackerEndsWhatNoLongerApplies(t *testing.T) {
	t.Parallel()
	tr := health.NewTracker(health.Report{})
	tr.Observe(at(0), "b1", []health.Finding{one("gpu_xid", "GPU-a", health.Unhealthy, "R"), one("cilium", "", health.Unhealthy, "R")})
	r := tr.Observe(at(time.Minute), "b2", []health.Finding{one("gpu_xid", "", health.Healthy, "NoXID")})
	require.Len(t, r.Conditions, 1)
	require.Equal(t, "b2", r.BootID)
	require.Empty(t, r.Faults())
}

// A report of the tracker is always valid, whatever checkers return.
func TestTrackerBoundsReports(t *testing.T) {
	t.Parallel()
	var results []health.Result
	for i := range 300 {
		s := health.Healthy
		if i == 299 {
			s = health.Unhealthy
		}
		results = append(results, health.Result{Component: fmt.Sprint(i), Status: s, Reason: "R"})
	}
	results = append(results, health.Result{Component: strings.Repeat("x", 100), Status: health.Unhealthy, Reason: "not a token", Detail: "a\x1b[2J\nb" + strings.Repeat("x", 300)})
	r := health.NewTracker(health.Report{}).Observe(at(0), "", []health.Finding{{Checker: "many", Results: results}})
	require.NoError(t, r.Validate())
	require.Len(t, r.Conditions, health.MaxConditions)
	require.Equal(t, health.RepairObserve, find(t, r, "many", "299").Repair, "faults come first, and have a repair")
}

// TestTrackerProperties checks random scripts: samples grow by one while the status stays, a fault
// continues over unknown results, only a healthy result or a missing one ends it, and it never lasts
// longer than the time since it began.
func TestTrackerProperties(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		tr := health.NewTracker(health.Report{})
		now, open := start(), time.Time{}
		var before health.Condition
		for step := range 60 {
			now = now.Add(time.Duration(1+r.IntN(400)) * time.Second)
			s := []health.Status{health.Healthy, health.Unhealthy, health.Unhealthy, health.Unknown}[r.IntN(4)]
			report := tr.Observe(now, "", []health.Finding{one("gpu", "", s, "R")})
			require.NoError(t, report.Validate())
			c := find(t, report, "gpu", "")
			switch {
			case s == health.Healthy:
				open = time.Time{}
				require.Zero(t, c.FaultSince)
			case s == health.Unhealthy && open.IsZero():
				open = now
			}
			switch s {
			case health.Unhealthy:
				require.Equal(t, open, c.Since, "seed %d step %d", seed, step)
				if before.Status != health.Healthy {
					require.Equal(t, max(before.FaultSamples, samplesOf(before))+1, c.Samples, "seed %d step %d", seed, step)
				}
			case health.Unknown:
				require.Equal(t, open, c.FaultSince, "seed %d step %d", seed, step)
				require.Zero(t, c.Lasted(now))
			}
			require.LessOrEqual(t, c.Lasted(now), now.Sub(start()))
			before = c
		}
	}
}

// samplesOf returns the samples of a fault.
func samplesOf(c health.Condition) int {
	if c.Status == health.Unhealthy {
		return c.Samples
	}
	return 0
}

func TestFaultsLeaveOutWhatNeedsNoRepair(t *testing.T) {
	t.Parallel()
	var r health.Report
	for _, repair := range health.Repairs() {
		r.Conditions = append(r.Conditions, health.Condition{Checker: "gpu_xid", Component: string(repair), Status: health.Unhealthy, Repair: repair})
	}
	r.Conditions = append(r.Conditions, health.Condition{Checker: "gpu_xid", Status: health.Unknown, Repair: health.RepairReboot})
	var got []health.Repair
	for _, c := range r.Faults() {
		got = append(got, c.Repair)
	}
	require.Equal(t, []health.Repair{health.RepairRestart, health.RepairResetGPU, health.RepairReboot, health.RepairReplace, health.RepairRMA}, got)
}
