package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// TestLostRepairsAreOut: a repair of health recovery that was abandoned or failed uses no budget, and the node that it
// left quarantined counts as out of service until a person takes it.
func TestLostRepairsAreOut(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	_, err := e.Claim(t.Context(), claimOf(in))
	require.NoError(t, err)
	outNow := func() int {
		var f recovery.Fleet
		e.round(reboots(&f))
		require.Equal(t, out(f)["fleet"], out(f)["sku"])
		return out(f)["fleet"]
	}
	require.Zero(t, outNow(), "it runs")
	require.NoError(t, e.Abandon(t.Context(), in.OperationID, e.text("SELECT run_id FROM operations"), lifecycle.RunTerminated))
	st, err := e.Recovery.RecoveryStatus(t.Context())
	require.NoError(t, err)
	require.Zero(t, st.Budgets[0].Busy, "also before the next round")
	require.Empty(t, st.Budgets[0].Operations)
	require.Equal(t, 1, outNow(), "it is abandoned")

	_, err = e.AcceptAbandoned(t.Context(), n.ID, "terminated by mistake", rehydrator)
	require.NoError(t, err)
	require.Equal(t, "quarantined failed", e.text("SELECT n.state || ' ' || o.status FROM nodes n JOIN operations o USING (node_id)"))
	require.Equal(t, 1, outNow(), "its end is on record")
	released := e.claim(n.ID, lifecycle.ActionRelease)
	require.NoError(t, e.Finish(t.Context(), released.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))
	e.exec("UPDATE nodes SET state = 'quarantined' WHERE node_id = $1", n.ID)
	require.Zero(t, outNow(), "a person released it")
}

// TestFaultOfAnEarlierEnrollment: what was reported before the node enrolled again is no reason for a repair, although
// the report is fresh.
func TestFaultOfAnEarlierEnrollment(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	e.exec("UPDATE nodes SET incarnation = incarnation + 1 WHERE node_id = $1", n.ID)
	var f recovery.Fleet
	e.round(reboots(&f))
	require.Empty(t, f.Nodes)

	e.exec("UPDATE nodes SET silent_at = now() WHERE node_id = $1", n.ID)
	e.round(reboots(&f))
	require.Equal(t, map[string]health.Status{"gpu_xid": health.Unknown, health.CheckerHeartbeat: health.Unhealthy}, statuses(f.Nodes[0]))
}

func statuses(n recovery.Node) map[string]health.Status {
	all := map[string]health.Status{}
	for _, c := range n.Conditions {
		all[c.Checker] = c.Status
	}
	return all
}
