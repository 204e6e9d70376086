package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
)

// TestSilence: node_silent of the database has the rule of lifecycle.Silent, to the microsecond, in
// each state, with and without a heartbeat, whichever of the heartbeat and the state is newer.
func TestSilence(t *testing.T) {
	e := setup(t)
	at := time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)
	ages := []time.Duration{0, lifecycle.SilentAfter - time.Microsecond, lifecycle.SilentAfter, lifecycle.SilentAfter + time.Microsecond, 24 * time.Hour}
	seen := map[bool]int{}
	for _, s := range lifecycle.NodeStates() {
		for _, since := range ages {
			for _, age := range append([]time.Duration{-1}, ages...) {
				heartbeat, stored := time.Time{}, (*time.Time)(nil)
				if age >= 0 {
					heartbeat = at.Add(-age)
					stored = &heartbeat
				}
				var got bool
				require.NoError(t, e.raw.QueryRow(t.Context(), "SELECT node_silent($1, $2, $3, $4, $5)", s, at.Add(-since), stored, at,
					lifecycle.SilentAfter.Seconds()).Scan(&got))
				require.Equal(t, lifecycle.Silent(s, at.Add(-since), heartbeat, at), got, "%s since %s, heartbeat %s ago", s, since, age)
				seen[got]++
			}
		}
	}
	require.Greater(t, min(seen[true], seen[false]), 50)
}

// TestSilenceReaders: the signal, the state offline, the stuck table with its gauge, the probable cause and the
// capacity agree about which nodes are silent.
func TestSilenceReaders(t *testing.T) {
	e := setup(t)
	e.exec("UPDATE node_api SET receiving_since = now() - interval '1 hour'")
	heartbeat := func(age time.Duration) string {
		return fmt.Sprintf("last_heartbeat_at = now() - make_interval(secs => %f), ", age.Seconds())
	}
	recent, old := heartbeat(lifecycle.SilentAfter-time.Minute), heartbeat(lifecycle.SilentAfter+time.Second)
	withNodes(e, map[string]string{
		"active": recent + "state = 'active'", "active-silent": old + "state = 'active'", "active-back": old + "state = 'active', state_since = now()",
		"offline-silent": old + "state = 'offline'", "draining": recent + "state = 'draining', state_since = now()",
		"draining-silent": old + "state = 'draining', state_since = now()", "quarantined": recent + "state = 'quarantined'",
		"quarantined-silent": old + "state = 'quarantined', state_since = now()", "quarantined-never": "last_heartbeat_at = NULL, state = 'quarantined'"})
	want := map[string]bool{"active": false, "active-silent": true, "active-back": false, "offline-silent": true, "draining": false,
		"draining-silent": true, "quarantined": false, "quarantined-silent": true, "quarantined-never": false}

	inTable, explained, signaled := map[string]bool{}, map[string]bool{}, map[string]bool{}
	rows := e.stuckNodes(adminapi.OperationQuery{})
	for host := range want {
		evidence, err := e.Evidence(t.Context(), e.nodeOf(host), cause.Lookback)
		require.NoError(t, err)
		inTable[host], explained[host] = rows[host].Row == stuck.RowSilent, evidence.Silent()
		require.Equal(t, 4, evidence.Around.RegionSilent, host)
	}
	require.Equal(t, want, inTable)
	require.Equal(t, want, explained)
	counts, err := e.StuckNodeCounts(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, counts[0].Nodes)
	capacity, err := e.Capacity(t.Context(), "", "")
	require.NoError(t, err)
	require.Equal(t, 2, capacity[0].Free, "the active nodes that are not silent")

	_, err = e.MarkSilent(t.Context())
	require.NoError(t, err)
	for host := range want {
		signaled[host] = len(e.signalsOf(e.nodeOf(host))) > 0
	}
	require.Equal(t, want, signaled)
	require.Equal(t, lifecycle.NodeOffline, e.node(e.nodeOf("active-silent")).State)
}

// TestNoCompilation: the database compiles no statement of the store. The list of nodes that need
// attention took 5 s with 10,000 nodes, of which all but 0.1 s was the compilation.
func TestNoCompilation(t *testing.T) {
	e := setup(t)
	var jit string
	require.NoError(t, e.Pools()[store.PoolShared].Pool().QueryRow(t.Context(), "SHOW jit").Scan(&jit))
	require.Equal(t, "off", jit)
}
