package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// written counts the transactions of the server that wrote something: only those
// get an id, and asking takes none.
func (e *env) written() int64 {
	return e.number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
}

// A step of a node costs three commits: to enqueue, to dispatch and to finish its
// task. Each progress costs one more, and a poll that finds nothing none. The
// notifications are left out: one statement sends those of many commits.
//
// Not parallel: the server counts for all databases, and its background processes
// write too, so the test takes the minimum of several tries.
func TestStepCostsThreeCommits(t *testing.T) {
	e := open(t)
	ctx := t.Context()
	c, f := e.drain()
	e.DropNotifications()
	least := map[string]int64{}
	costs := func(what string, fn func()) {
		before := e.written()
		fn()
		cost := e.written() - before
		if now, ok := least[what]; !ok || cost < now {
			least[what] = cost
		}
	}
	for i := range 5 {
		step := fmt.Sprint("facts-", i)
		var offer *nodeapi.Dispatch
		costs("empty poll", func() { e.takeNone(c) })
		costs("enqueue", func() { e.dispatch(f, step, task.FactsCollect) })
		costs("claim", func() { offer = e.take(c, time.Minute) })
		costs("progress", func() {
			_, err := e.Progress(ctx, c, offer.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
			require.NoError(t, err)
		})
		costs("complete", func() {
			_, err := e.Result(ctx, c, offer.TaskID, succeeded(1, inventory.Facts{}))
			require.NoError(t, err)
		})
	}
	require.Equal(t, map[string]int64{"empty poll": 0, "enqueue": 1, "claim": 1, "progress": 1, "complete": 1}, least)
}

// Progress and heartbeats send no notification, so 10,000 busy nodes wake no
// replica.
func TestProgressAndHeartbeatsAreQuiet(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row := e.held(c, f, "drain", task.WorkloadDrain)
	conn, err := pgx.Connect(ctx, e.url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	for _, channel := range []string{"gpuaas_node", "gpuaas_outbox", "gpuaas_sets"} {
		_, err = conn.Exec(ctx, "LISTEN "+channel)
		require.NoError(t, err)
	}
	received := func(until string) (n int) {
		for ; ; n++ {
			got, err := conn.WaitForNotification(ctx)
			require.NoError(t, err)
			if got.Payload == until {
				return n
			}
		}
	}
	e.Store.Notify(postgres.Notification{Channel: "gpuaas_node", Payload: "the start"})
	received("the start") // and the notifications of what was done before
	for range 4 {
		_, err := e.Progress(ctx, c, row.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
		require.NoError(t, err)
		require.NoError(t, e.SetActivityState(ctx, row.TaskID, nodeapi.ActivityState{Paused: true}))
		require.NoError(t, e.heartbeat(c, wire.Heartbeat{}))
		require.NoError(t, e.RecordPoll(ctx, c, wire.PollRequest{VerifierSet: 1}))
		e.takeNone(c, row.TaskID)
	}
	e.Store.Notify(postgres.Notification{Channel: "gpuaas_node", Payload: "the end"})
	before := received("the end")
	e.exec("SELECT pg_notify('gpuaas_node', 'after the end')") // which was one of several in its statement
	require.Zero(t, before+received("after the end"))
}

// A dispatch and a progress rewrite the task's row in place: no index is written.
func TestDispatchAndProgressWriteNoIndex(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row := e.held(c, f, "drain", task.WorkloadDrain)
	_, err := e.Progress(ctx, c, row.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	require.NoError(t, err)
	conn, err := e.raw.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(ctx))
	inPlace := func() (n int64) {
		require.NoError(t, tx.QueryRow(ctx, "SELECT n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'node_tasks'").Scan(&n))
		return n
	}
	before := inPlace()
	_, err = tx.Exec(ctx, "UPDATE node_tasks SET status = 'running', progress = 'x', lease_until = now() + interval '1 minute', beat_at = now() WHERE task_id = $1", row.TaskID)
	require.NoError(t, err)
	require.Equal(t, before+1, inPlace())
	_, err = tx.Exec(ctx, `UPDATE node_tasks SET status = 'dispatched', lease_epoch = lease_epoch + 1, holder = 'two', poll_number = 7, beat_at = NULL,
		lease_until = now() + interval '1 minute', dispatched_at = now() WHERE task_id = $1`, row.TaskID)
	require.NoError(t, err)
	require.Equal(t, before+2, inPlace())
}
