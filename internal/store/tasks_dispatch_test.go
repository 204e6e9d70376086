package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// ask is a poll of an agent's process.
func (e *env) ask(c nodeapi.Caller, holder string, number int64, have ...string) *nodeapi.Dispatch {
	e.t.Helper()
	offer, err := e.NextTask(e.t.Context(), c, wire.PollRequest{HeldTasks: have, AgentSession: holder, PollSeq: number}, time.Minute, nil)
	require.NoError(e.t, err)
	return offer
}

// A later poll of the same process that does not have a task shows that the
// response was lost: the task is dispatched again at once, a destructive one
// included, and only the newest lease counts.
func TestLostResponseIsDispatchedAgain(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row := e.dispatch(f, "drain", task.WorkloadDrain)
	require.Equal(t, int64(1), e.ask(c, "one", 7).Lease.Epoch)
	var again *nodeapi.Dispatch
	rows := e.changes(c.NodeID, func() { again = e.ask(c, "one", 8) })
	require.Equal(t, row.TaskID, again.TaskID)
	require.Equal(t, int64(2), again.Lease.Epoch)
	require.Equal(t, []string{"tasks.dispatched succeeded response_lost"}, rows)
	require.Nil(t, e.ask(c, "one", 9, row.TaskID), "it took it")
	require.Nil(t, e.ask(c, "one", 8), "the same poll, sent twice")

	_, err := e.Result(ctx, c, row.TaskID, succeeded(1, task.DrainResult{}))
	requireKind(t, err, schema.KindLeaseLost, "")
	_, err = e.Result(ctx, c, row.TaskID, succeeded(2, task.DrainResult{}))
	require.NoError(t, err)
	require.Nil(t, e.ask(c, "one", 10))
}

// A poll that an agent abandoned may be processed after later ones. It proves
// nothing, even when the lease has ended.
func TestLatePollGetsNoNewerTask(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	row := e.dispatch(f, "drain", task.WorkloadDrain)
	require.NotNil(t, e.ask(c, "one", 8))
	require.Nil(t, e.ask(c, "one", 7))
	require.NoError(t, e.progress(c, row.TaskID))
	e.stale()
	require.Nil(t, e.ask(c, "one", 7), "the work continues under the lease it has")
	require.Equal(t, activities.ReclaimLost, e.reclaim()[row.TaskID])

	probe := e.dispatch(f, "probe", task.NodeProbe)
	require.Equal(t, probe.TaskID, e.ask(c, "one", 7).TaskID, "a task that was not dispatched may be dispatched")
	require.Equal(t, probe.TaskID, e.ask(c, "one", 9).TaskID, "its response was lost")
}

// What is not proof that a task was not begun does not hand it over again.
func TestPollsThatProveNoLostResponse(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row := e.dispatch(f, "drain", task.WorkloadDrain)
	require.NotNil(t, e.ask(c, "one", 7))
	require.Nil(t, e.ask(c, "two", 8), "another process")
	require.Nil(t, e.ask(c, "one", 0), "one that does not count")
	_, err := e.Progress(ctx, c, row.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	require.NoError(t, err)
	require.Nil(t, e.ask(c, "one", 8), "it was begun")

	probe := e.dispatch(f, "probe", task.NodeProbe)
	require.Equal(t, probe.TaskID, e.ask(c, "one", 0).TaskID)
	require.Nil(t, e.ask(c, "one", 9), "dispatched to a poll that did not count")
}

// A destructive task that began under an expired lease is not dispatched, even to an
// agent that does not have it: its journal may be damaged. One that did not begin, and
// one that is safe to repeat, are dispatched again before the reclaimer runs.
func TestBegunDestructiveTaskIsNotDispatchedAgain(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	row := e.begun(c, f, "begun")
	cordon := e.held(c, f, "cordon", task.WorkloadCordon)
	require.NoError(t, e.progress(c, cordon.TaskID))
	unbegun := e.held(c, f, "unbegun", task.WorkloadDrain)
	e.exec("UPDATE node_tasks SET lease_until = now() - interval '1 second'")
	require.Equal(t, cordon.TaskID, e.ask(c, "two", 1).TaskID)
	again := e.ask(c, "two", 2, cordon.TaskID)
	require.Equal(t, unbegun.TaskID, again.TaskID)
	requireKind(t, e.progress(c, unbegun.TaskID), schema.KindLeaseLost, "")
	require.Nil(t, e.ask(c, "two", 3, cordon.TaskID, unbegun.TaskID))
	e.stale()
	require.Equal(t, activities.ReclaimLost, e.reclaim()[row.TaskID])
	require.Nil(t, e.ask(c, "two", 4, cordon.TaskID, unbegun.TaskID))
}

// A node that gets a task repeatedly and does not take it delays the task's
// expiry only briefly.
func TestLostResponsesAreBounded(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	row := e.dispatch(f, "drain", task.WorkloadDrain)
	for n := range int64(4) {
		require.NotNil(t, e.ask(c, "one", n+1))
	}
	require.Nil(t, e.ask(c, "one", 5))
	e.stale()
	require.Equal(t, activities.ReclaimLost, e.reclaim()[row.TaskID])
}

// TestVoidUndispatched: a task is voided only if it was never dispatched. A repeated call
// gives the same answer.
func TestVoidUndispatched(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	void := func(step string) bool {
		t.Helper()
		voided, err := e.VoidUndispatched(ctx, f, step)
		require.NoError(t, err)
		return voided
	}
	require.False(t, void("unknown"))

	expired := spec(f, "expired", task.WorkloadDrain)
	expired.Deadline = time.Now().Add(-time.Second)
	e.enqueue(expired)
	rows := e.changes(c.NodeID, func() {
		require.True(t, void("expired"))
		require.True(t, void("expired"))
	})
	require.Equal(t, []string{"tasks.finished " + audit.Canceled + " not_dispatched"}, rows)
	e.takeNone(c)

	stopped := e.dispatch(f, "stopped", task.WorkloadDrain)
	_, err := e.CancelTask(ctx, stopped.TaskID, "not needed", operator)
	require.NoError(t, err)
	require.False(t, void("stopped"), "an operator ended it")

	held := e.held(c, f, "held", task.WorkloadDrain)
	require.False(t, void("held"))
	e.stale()
	require.Equal(t, activities.ReclaimRequeued, e.reclaim()[held.TaskID])
	require.False(t, void("held"), "it was dispatched once")
	require.Equal(t, held.TaskID, e.take(c, time.Minute).TaskID)
	_, err = e.Result(ctx, c, held.TaskID, succeeded(2, task.DrainResult{}))
	require.NoError(t, err)
	require.False(t, void("held"), "it ended")

	other := f
	other.OpSeq++
	_, err = e.VoidUndispatched(ctx, other, "held")
	requireKind(t, err, schema.KindFenced, "")
}

// TestVoidUndispatchedRaces: of a dispatch and a void at the same time exactly one has the
// task.
func TestVoidUndispatchedRaces(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	for i := range 30 {
		step := fmt.Sprintf("drain#%d", i)
		row := e.dispatch(f, step, task.WorkloadDrain)
		var voided bool
		var offer *nodeapi.Dispatch
		for _, err := range race(2, func(i int) (err error) {
			if i == 0 {
				voided, err = e.VoidUndispatched(t.Context(), f, step)
				return err
			}
			offer, err = e.NextTask(t.Context(), c, wire.PollRequest{}, time.Minute, nil)
			return err
		}) {
			require.NoError(t, err)
		}
		require.Equal(t, voided, offer == nil)
		if offer != nil {
			_, err := e.Result(t.Context(), c, row.TaskID, succeeded(1, task.DrainResult{}))
			require.NoError(t, err)
		}
	}
}
