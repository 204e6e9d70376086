package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

func out(f recovery.Fleet) map[recovery.Scope]int {
	n := map[recovery.Scope]int{}
	for _, s := range f.Sizes {
		n[s.Scope] += s.Out
	}
	return n
}

// TestNodesOut: a node that a repair of health recovery left quarantined counts as out of service until a person
// takes it. One that a person quarantined does not count.
func TestNodesOut(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	c, err := e.Claim(t.Context(), claimOf(in))
	require.NoError(t, err)
	by := e.inState(lifecycle.NodeActive)
	person := e.claim(by.ID, lifecycle.ActionQuarantine)
	quarantined := activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeQuarantined}
	require.NoError(t, e.Finish(t.Context(), person.Fence, quarantined))
	var f recovery.Fleet
	e.round(reboots(&f))
	require.Equal(t, map[recovery.Scope]int{"fleet": 0, "rack": 0, "region": 0, "sku": 0}, out(f), "it runs")

	require.NoError(t, e.Finish(t.Context(), c.Fence, quarantined))
	e.round(reboots(&f))
	require.Equal(t, map[recovery.Scope]int{"fleet": 1, "rack": 1, "region": 1, "sku": 1}, out(f))
	require.Equal(t, map[recovery.Scope]int{"fleet": 0, "rack": 0, "region": 0, "sku": 0}, busy(f))
	st, err := e.Recovery.RecoveryStatus(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, st.Budgets[0].Out)

	released := e.claim(n.ID, lifecycle.ActionRelease)
	require.NoError(t, e.Finish(t.Context(), released.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))
	require.NoError(t, e.Finish(t.Context(), e.claim(n.ID, lifecycle.ActionQuarantine).Fence, quarantined))
	e.round(reboots(&f))
	require.Zero(t, out(f)["fleet"], "a person released it, and quarantined it later")
}

// TestNodeOutOnce: a node that a repair cured before, and that is repaired again, uses a budget and is not permanently out of
// service. A canceled repair of a node that is out changes nothing, nor does one that was abandoned.
func TestNodeOutOnce(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	var f recovery.Fleet
	sizes := func() (used, gone int) {
		t.Helper()
		e.round(reboots(&f))
		return busy(f)[recovery.ScopeFleet], out(f)[recovery.ScopeFleet]
	}
	repair := func(end activities.Finish) activities.ClaimRequest {
		t.Helper()
		r := claimOf(e.round(reboots(nil)).Starts[0])
		c, err := e.Claim(t.Context(), r)
		require.NoError(t, err)
		if end.Status != "" {
			require.NoError(t, e.Finish(t.Context(), c.Fence, end))
		}
		return r
	}
	repair(activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive})
	r := repair(activities.Finish{})
	used, gone := sizes()
	require.Equal(t, []int{1, 0}, []int{used, gone}, "the second repair runs")

	require.NoError(t, e.Abandon(t.Context(), r.OperationID, r.RunID, lifecycle.RunTerminated))
	used, gone = sizes()
	require.Equal(t, []int{0, 1}, []int{used, gone}, "it was abandoned")
	_, err := e.AcceptAbandoned(t.Context(), n.ID, "x", rehydrator)
	require.NoError(t, err)
	byHand := e.claim(n.ID, lifecycle.ActionRecover)
	require.NoError(t, e.Finish(t.Context(), byHand.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeQuarantined}))
	used, gone = sizes()
	require.Equal(t, []int{0, 1}, []int{used, gone}, "a person began a repair, and canceled it")
	faults, err := e.Faults(t.Context())
	require.NoError(t, err)
	require.Equal(t, "not_repaired", faults[0].Reason)
}
