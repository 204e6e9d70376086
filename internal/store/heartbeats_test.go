package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// A heartbeat of a caller whose node has begun another incarnation since it was
// authenticated records nothing.
func TestHeartbeatOfOlderIncarnation(t *testing.T) {
	e := setup(t)
	m := e.machine()
	old := m.caller
	e.reissue(m, m.k(2))
	requireKind(t, e.Heartbeat(t.Context(), old, wire.Heartbeat{AgentVersion: "old"}), schema.KindInvalidNodeIdentity, schema.ReasonIdentityMismatch)
	require.NotEqual(t, "old", e.node(old.NodeID).AgentVersion)
}

// Text that the database cannot store is cleaned, and a heartbeat with an unusable
// workload is refused as a whole.
func TestHeartbeatWithUnusableText(t *testing.T) {
	e := setup(t)
	c, _, _ := e.enroll()
	require.NoError(t, e.heartbeat(c, wire.Heartbeat{AgentVersion: "v1", BootID: "\x00\xff"}))
	bad := wire.Heartbeat{AgentVersion: "v2", Workloads: []task.Workload{{Name: "a\x00"}}}
	requireKind(t, e.heartbeat(c, bad), schema.KindInvalidRequest, "")
	require.Equal(t, "v1", e.node(c.NodeID).AgentVersion)
}

// A heartbeat updates the node's row in place and writes no index.
func TestHeartbeatWritesNoIndex(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	conn, err := e.raw.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(ctx))
	inPlace := func() (n int) {
		require.NoError(t, tx.QueryRow(ctx, "SELECT n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'nodes'").Scan(&n))
		return n
	}
	before := inPlace()
	_, err = sqlc.New(tx).Heartbeat(ctx, sqlc.HeartbeatParams{NodeID: c.NodeID, Incarnation: c.Incarnation,
		Workloads: []task.Workload{{Name: "a"}}, At: time.Now()})
	require.NoError(t, err)
	require.Equal(t, before+1, inPlace())
}

// An idle caller has no task to dispatch.
func TestIdleNodeGetsNoTask(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.machine()
	f := e.claim(m.caller.NodeID, lifecycle.ActionDrain).Fence
	number := int64(0)
	poll := func(why string, idle, offered bool, have ...string) (offer *nodeapi.Dispatch) {
		t.Helper()
		m.use()
		number++
		offer, err := e.NextTask(ctx, m.caller, wire.PollRequest{AgentSession: "boot-1", PollSeq: number, HeldTasks: have}, task.LeaseDuration, nil)
		require.NoError(t, err)
		require.Equal(t, idle, m.caller.Idle, why)
		require.Equal(t, offered, offer != nil, why)
		return offer
	}
	poll("no task", true, false)
	row := e.dispatch(f, "cordon", task.WorkloadCordon)
	poll("a task waits", false, true)
	offer := poll("the answer was lost", false, true)
	poll("it is in the journal", false, false, row.TaskID)
	_, err := e.Progress(ctx, m.caller, row.TaskID, task.Progress{LeaseEpoch: offer.Lease.Epoch}, task.LeaseDuration)
	require.NoError(t, err)
	poll("it runs", true, false, row.TaskID)
	poll("it runs, and the journal is lost", true, false)
	e.exec("UPDATE node_tasks SET lease_until = now() - interval '1 second' WHERE task_id = $1", row.TaskID)
	offer = poll("the lease is over", false, true)
	_, err = e.Result(ctx, m.caller, row.TaskID, succeeded(offer.Lease.Epoch, task.CordonResult{}))
	require.NoError(t, err)
	poll("it is done", true, false)
}

// The last heartbeat decides which workload driver the node has and whether it works. A fault
// of the driver does not keep tasks from the node.
func TestHeartbeatNamesTheDriver(t *testing.T) {
	e := setup(t)
	c, _, _ := e.enroll()
	require.NoError(t, e.heartbeat(c, wire.Heartbeat{Driver: "docker", DriverFault: "Cannot connect to the Docker daemon"}))
	n := e.node(c.NodeID)
	require.Equal(t, "docker", n.Driver)
	require.Equal(t, "Cannot connect to the Docker daemon", n.DriverFault)
	row := e.dispatch(e.claim(c.NodeID, lifecycle.ActionProvision).Fence, "facts", task.FactsCollect)
	require.Equal(t, row.TaskID, e.take(c, time.Minute).TaskID)
	require.NoError(t, e.heartbeat(c, wire.Heartbeat{}))
	require.Empty(t, e.node(c.NodeID).Driver+e.node(c.NodeID).DriverFault)
}

// While an agent reports a fault, it gets no task, and operators see the fault.
func TestAgentWithFaultGetsNoTask(t *testing.T) {
	e := setup(t)
	c, _, _ := e.enroll()
	row := e.dispatch(e.claim(c.NodeID, lifecycle.ActionProvision).Fence, "facts", task.FactsCollect)
	require.NoError(t, e.heartbeat(c, wire.Heartbeat{Fault: "journal: no space left on device"}))
	e.takeNone(c)
	require.Equal(t, "journal: no space left on device", e.node(c.NodeID).AgentFault)
	require.NoError(t, e.heartbeat(c, wire.Heartbeat{}))
	require.Empty(t, e.node(c.NodeID).AgentFault)
	require.Equal(t, row.TaskID, e.take(c, time.Minute).TaskID)
}
