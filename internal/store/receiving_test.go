package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// An outage of every replica of the node API makes no node offline and no task lost: not
// while it lasts, and not before agents had the time to report. After that, a node that
// stays silent is offline and its destructive task lost, as without an outage.
func TestOutageOfTheNodeAPI(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, f := e.drain()
	drain := e.held(caller, f, "drain", task.WorkloadDrain)
	_, err := e.Progress(ctx, caller, drain.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	require.NoError(t, err)
	idle, _, _ := e.enroll()
	e.exec("UPDATE nodes SET state = 'active' WHERE node_id = $1", idle.NodeID)
	require.NoError(t, e.heartbeat(idle, wire.Heartbeat{}))
	require.NoError(t, e.RecordReceiving(ctx, schema.NewID(), ""))
	e.exec("UPDATE node_api SET receiving_since = now() - interval '1 day'")
	e.exec("UPDATE nodes SET last_heartbeat_at = now() - interval '10 minutes', state_since = now() - interval '1 day'")
	e.stale(drain.TaskID)
	results := func() (silent []string, lost map[string]activities.ReclaimResult) {
		t.Helper()
		silent, err := e.MarkSilent(ctx)
		require.NoError(t, err)
		return silent, e.reclaim()
	}

	e.exec("UPDATE node_api SET seen_at = now() - interval '10 minutes'")
	silent, lost := results()
	require.Empty(t, silent, "during the outage")
	require.Empty(t, lost)

	require.NoError(t, e.RecordReceiving(ctx, schema.NewID(), ""))
	silent, lost = results()
	require.Empty(t, silent, "right after it")
	require.Empty(t, lost)
	require.NoError(t, e.RecordReceiving(ctx, schema.NewID(), ""), "a second replica, or the next record, does not start the time again")
	e.exec("UPDATE node_api SET receiving_since = now() - make_interval(secs => $1)", task.ReturnTime.Seconds()+1)
	require.NoError(t, e.RecordReceiving(ctx, schema.NewID(), ""))
	silent, lost = results()
	require.Empty(t, silent)
	require.Equal(t, map[string]activities.ReclaimResult{drain.TaskID: activities.ReclaimLost}, lost)

	e.exec("UPDATE node_api SET receiving_since = now() - make_interval(secs => $1)", lifecycle.SilentAfter.Seconds()+1)
	silent, _ = results()
	require.Equal(t, []string{idle.NodeID}, silent)
}

// A fleet that returns at once is moved in a few transactions.
func TestReturnOfManyNodes(t *testing.T) {
	e := setup(t)
	const nodes = 60
	callers := make([]func() error, nodes)
	for i := range callers {
		c, _, _ := e.enroll()
		callers[i] = func() error { return e.heartbeat(c, wire.Heartbeat{}) }
	}
	e.exec("UPDATE nodes SET state = 'offline'")
	before := e.number("SELECT count(DISTINCT xmin::text) FROM audit_events")
	for _, err := range race(nodes, func(i int) error { return callers[i]() }) {
		require.NoError(t, err)
	}
	require.Equal(t, int64(nodes), e.number("SELECT count(*) FROM nodes WHERE state = 'active'"))
	require.Equal(t, int64(nodes), e.number("SELECT count(*) FROM audit_events WHERE action = 'nodes.heartbeat-back'"))
	transactions := e.number("SELECT count(DISTINCT xmin::text) FROM audit_events") - before
	t.Logf("%d nodes returned in %d transactions", nodes, transactions)
	require.Less(t, transactions, int64(nodes/2))
}
