package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// TestReservationEnds: a reservation counts one node in each scope until its operation ends, however it
// ends and whatever action it has, without a call of its owner. Its row is deleted by the next round.
func TestReservationEnds(t *testing.T) {
	e := setup(t)
	e.setPolicy(func(*recovery.Policy) {}) // in monitor mode
	for _, action := range []lifecycle.Action{lifecycle.ActionRecover, lifecycle.ActionDrain} {
		for _, ended := range []lifecycle.OperationState{lifecycle.OperationCompleted, lifecycle.OperationFailed, lifecycle.OperationCanceled} {
			n := e.faulty()
			c := e.claim(n.ID, action)
			e.exec(`INSERT INTO budget_reservations (operation_id, purpose, node_id, sku, rack, region, input)
				VALUES ($1, 'rollout', $2, 'cpu-dev', 'r1', 'region-1', '{}') ON CONFLICT DO NOTHING`, c.Fence.OperationID, n.ID)
			require.Equal(t, []string{c.Fence.OperationID}, e.reserved(), "%s", action)
			require.NoError(t, e.Finish(t.Context(), c.Fence, activities.Finish{Status: ended, Node: lifecycle.NodeActive}))
			require.Empty(t, e.reserved(), "%s %s", action, ended)
			e.round(stored)
			require.EqualValues(t, 0, e.number("SELECT count(*) FROM budget_reservations"), "%s %s", action, ended)
		}
	}
}

// reserved returns the operations that use the budget of the fleet, which are those of each other scope.
func (e *env) reserved() []string {
	e.t.Helper()
	st, err := e.Recovery.RecoveryStatus(e.t.Context())
	require.NoError(e.t, err)
	for _, b := range st.Budgets {
		require.Equal(e.t, st.Budgets[0].Operations, b.Operations, b.Scope)
		require.Equal(e.t, len(b.Operations), b.Busy, b.Scope)
	}
	return st.Budgets[0].Operations
}

// TestReservedTwice: to reserve again for an operation, from a round that runs twice or from its claim,
// counts once.
func TestReservedTwice(t *testing.T) {
	e := setup(t)
	e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	e.round(reboots(nil))
	r := claimOf(in)
	c, err := e.Claim(t.Context(), r)
	require.NoError(t, err)
	again, err := e.Claim(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, c.Fence, again.Fence)
	require.Equal(t, []string{in.OperationID}, e.reserved())
	require.EqualValues(t, 1, e.number("SELECT count(*) FROM budget_reservations"))
}

// TestReservedScopes: a reservation keeps the scopes of its node, also if the node changes them.
func TestReservedScopes(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	e.claims(e.round(reboots(nil)).Starts[0])
	e.exec(`UPDATE nodes SET labels = '{"rack": "r2"}' WHERE node_id = $1`, n.ID)
	var f recovery.Fleet
	e.round(reboots(&f))
	got := map[string]int{}
	for _, s := range f.Sizes {
		got[string(s.Scope)+" "+s.Key] = s.Busy
	}
	require.Equal(t, map[string]int{"fleet ": 1, "rack r1": 1, "rack r2": 0, "region region-1": 1, "sku cpu-dev": 1}, got)
}
