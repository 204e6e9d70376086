package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Heartbeats that come together are each answered for themselves, whatever
// becomes of the others.
func TestBatchedHeartbeatsAreAnsweredForThemselves(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	good, superseded, locked, removed, pending, offline, reissued := e.machine(), e.machine(), e.machine(), e.machine(), e.machine(), e.machine(), e.machine()
	stale := superseded.held()
	superseded.adopt(superseded.renewed(superseded.k(2)))
	superseded.use()
	e.exec("UPDATE nodes SET identity_locked_at = now(), identity_lock_reason = 'x' WHERE node_id = $1", locked.id.NodeID)
	e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", removed.id.NodeID)
	e.exec("UPDATE nodes SET state = 'offline' WHERE node_id = $1", offline.id.NodeID)
	fresh := pending.renewed(pending.k(2))
	old := reissued.held()
	e.reissue(reissued, reissued.k(2))
	cases := []struct {
		answer
		reason string // "" for a heartbeat that is taken
	}{
		{good.held(), ""},
		{stale, schema.ReasonSerialSuperseded},
		{locked.held(), schema.ReasonNodeLocked},
		{removed.held(), schema.ReasonNodeRemoved},
		{fresh, ""},
		{offline.held(), ""},
		{old, schema.ReasonIdentityMismatch},
		{answer{id: trust.Identity{NodeID: schema.NewID(), Incarnation: 1}, cert: good.cert}, schema.ReasonIdentityMismatch},
		{answer{id: trust.Identity{NodeID: "nonsense"}, cert: good.cert}, schema.ReasonIdentityMismatch},
	}
	for i, err := range race(len(cases), func(i int) error {
		return e.Heartbeat(ctx, cases[i].id, cases[i].cert, wire.HeartbeatRequest{AgentVersion: "together"})
	}) {
		if cases[i].reason != "" {
			requireKind(t, err, schema.KindInvalidNodeIdentity, cases[i].reason)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, "together", e.node(cases[i].id.NodeID).AgentVersion)
	}
	require.Equal(t, 1, count(e.audit(pending.id.NodeID), "nodes.certificate_promoted succeeded")-1, "the first use promotes")
	require.Equal(t, lifecycle.NodeActive, e.node(offline.id.NodeID).State)
	require.Equal(t, 1, count(e.audit(offline.id.NodeID), "nodes.heartbeat-back succeeded"))
	require.Equal(t, 1, count(e.audit(superseded.id.NodeID), "nodes.identity_refused refused serial_superseded"))

	e.pass()
	requireKind(t, e.Heartbeat(ctx, stale.id, stale.cert, wire.HeartbeatRequest{}), schema.KindInvalidNodeIdentity, schema.ReasonNodeLocked)
	require.True(t, e.locked(superseded.id.NodeID), "a clone is found out by its heartbeat")
}

// A locked row delays its own node's heartbeat and no other.
func TestLockedRowDelaysNoOtherHeartbeat(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	stuck, _, _ := e.enroll()
	free := make([]nodeapi.Caller, 4)
	for i := range free {
		free[i], _, _ = e.enroll()
	}
	tx, err := e.raw.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(ctx))
	_, err = tx.Exec(ctx, "SELECT 1 FROM nodes WHERE node_id = $1 FOR UPDATE", stuck.NodeID)
	require.NoError(t, err)
	late := make(chan error, 1)
	go func() { late <- e.heartbeat(stuck, wire.HeartbeatRequest{AgentVersion: "late"}) }()
	for _, err := range race(len(free), func(i int) error { return e.heartbeat(free[i], wire.HeartbeatRequest{}) }) {
		require.NoError(t, err)
	}
	select {
	case err := <-late:
		t.Fatalf("answered before it was stored: %v", err)
	default:
	}
	require.NoError(t, tx.Rollback(ctx))
	require.NoError(t, <-late)
	require.Equal(t, "late", e.node(stuck.NodeID).AgentVersion)
}

// Replicas that store heartbeats of the same nodes in all orders never wait for
// each other, and all are answered.
func TestReplicasStoreHeartbeatsOfTheSameNodes(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	other, err := store.Open(ctx, store.Config{URL: e.url})
	require.NoError(t, err)
	defer other.Close()
	nodes := make([]nodeapi.Caller, 12)
	for i := range nodes {
		nodes[i], _, _ = e.enroll()
	}
	for range 3 {
		order := rand.Perm(2 * len(nodes))
		for _, err := range race(len(order), func(i int) error {
			c, replica := nodes[order[i]%len(nodes)], []*store.Store{e.Store, other}[order[i]/len(nodes)]
			return replica.Heartbeat(ctx, trust.Identity{NodeID: c.NodeID, Incarnation: 1}, trust.CertFacts{Serial: c.Serial}, wire.HeartbeatRequest{})
		}) {
			require.NoError(t, err)
		}
	}
}

// Heartbeats of many nodes cost a commit or two.
//
// Not parallel: the server counts for all databases. It writes now and then by
// itself, so that the least of some tries is the heartbeats' own.
func TestHeartbeatsShareACommit(t *testing.T) {
	e := open(t)
	nodes := make([]nodeapi.Caller, 20)
	for i := range nodes {
		nodes[i], _, _ = e.enroll()
	}
	least := int64(len(nodes))
	for i := range 5 {
		before := e.written()
		for _, err := range race(len(nodes), func(n int) error {
			return e.heartbeat(nodes[n], wire.HeartbeatRequest{AgentVersion: fmt.Sprint("v", i)})
		}) {
			require.NoError(t, err)
		}
		least = min(least, e.written()-before)
		for _, n := range nodes {
			require.Equal(t, fmt.Sprint("v", i), e.node(n.NodeID).AgentVersion)
		}
	}
	require.LessOrEqual(t, least, int64(4))
}

// An idle caller has no task to dispatch.
func TestAnIdleNodeIsOfferedNothing(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.machine()
	f := e.claim(m.caller.NodeID, lifecycle.ActionDrain).Fence
	number := int64(0)
	poll := func(why string, idle, offered bool, have ...string) (offer *nodeapi.Dispatch) {
		t.Helper()
		m.use()
		number++
		offer, err := e.NextTask(ctx, m.caller, wire.PollRequest{AgentSession: "boot-1", PollSeq: number, HeldTasks: have}, task.LeaseDuration)
		require.NoError(t, err)
		require.Equal(t, idle, m.caller.Idle, why)
		require.Equal(t, offered, offer != nil, why)
		return offer
	}
	poll("no task", true, false)
	row := e.dispatch(f, "drain", task.WorkloadDrain)
	poll("a task waits", false, true)
	offer := poll("the answer was lost", false, true)
	poll("it is in the journal", false, false, row.TaskID)
	_, err := e.Progress(ctx, m.caller, row.TaskID, task.Progress{LeaseEpoch: offer.Lease.Epoch}, task.LeaseDuration)
	require.NoError(t, err)
	poll("it runs", true, false, row.TaskID)
	poll("it runs, and the journal is lost", true, false)
	e.exec("UPDATE node_tasks SET lease_until = now() - interval '1 second' WHERE task_id = $1", row.TaskID)
	offer = poll("the lease is over", false, true)
	_, err = e.Result(ctx, m.caller, row.TaskID, succeeded(offer.Lease.Epoch, task.DrainResult{}))
	require.NoError(t, err)
	poll("it is done", true, false)
}
