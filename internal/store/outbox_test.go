package store_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// outbox is the store's outbox on a listener that does not run.
func (e *env) outbox() *store.Outbox {
	e.t.Helper()
	l, err := store.NewListener(e.url, slog.New(slog.DiscardHandler))
	require.NoError(e.t, err)
	return e.Outbox(l)
}

// results puts the results of n tasks into an empty outbox.
func (e *env) results(n int) {
	e.t.Helper()
	c, f := e.drain()
	for i := range n {
		row := e.held(c, f, fmt.Sprint("facts-", i), task.FactsCollect)
		_, err := e.Result(e.t.Context(), c, row.TaskID, succeeded(1, inventory.Facts{}))
		require.NoError(e.t, err)
	}
}

func TestOutbox(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	o := e.outbox()
	caller, _, _ := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	e.dispatch(f, "facts", task.FactsCollect)
	offer := e.take(caller, time.Minute)
	result := succeeded(1, inventory.Facts{CPUs: 2})
	_, err := e.Result(ctx, caller, offer.TaskID, result)
	require.NoError(t, err)
	take := func(limit int, delivered ...relay.Message) []relay.Message {
		messages, err := o.Take(ctx, limit, delivered)
		require.NoError(t, err)
		return messages
	}
	due := func() { e.exec("UPDATE outbox SET next_try_at = now()") }

	first := take(3)
	require.Len(t, first, 3)
	require.True(t, slices.IsSortedFunc(first, func(a, b relay.Message) int { return int(a.ID - b.ID) }))
	last := take(10)
	require.Len(t, last, 1, "what was taken is not taken again")
	require.Equal(t, taskOwner("facts"), last[0].Owner)
	require.Equal(t, task.Reference{TaskID: offer.TaskID, Status: task.Succeeded}, *last[0].Result, "the output stays in the database")
	require.Nil(t, last[0].Event)
	require.Empty(t, take(10))
	require.NoError(t, o.Release(ctx, first))
	again := take(10)
	require.Len(t, again, len(first), "a release makes them due at once")
	for i, m := range again {
		require.True(t, m.ReservedUntil.After(first[i].ReservedUntil))
		m.ReservedUntil = first[i].ReservedUntil
		require.Equal(t, first[i], m, "it counts no attempt")
	}

	due()
	require.Len(t, take(10), 4, "a relay that died delays them only")
	require.Empty(t, take(0, last...))
	require.Empty(t, take(0, last...), "a second removal is a no-op")
	require.NoError(t, o.MarkOrphaned(ctx, first[0].ID, "no such workflow"))
	age := func() float64 {
		seconds, err := e.OutboxAge(ctx)
		require.NoError(t, err)
		return seconds
	}
	e.exec("UPDATE outbox SET created_at = now() - interval '1 hour', attempts = 1 WHERE id = $1", first[0].ID)
	require.Zero(t, age(), "no delivery failed but that of an orphan")
	e.exec("UPDATE outbox SET created_at = now() - interval '1 minute' WHERE id = $1", first[1].ID)
	require.NoError(t, o.MarkFailed(ctx, first[1].ID, "unreachable\x00"))
	require.InDelta(t, 60, age(), 30)
	require.NoError(t, o.MarkFailed(ctx, first[1].ID, "unreachable"))
	wait := e.number("SELECT extract(epoch FROM next_try_at - now())::int FROM outbox WHERE id = $1", first[1].ID)
	require.LessOrEqual(t, wait, int64(2))
	due()
	rest := take(10)
	require.Len(t, rest, 2)
	require.Equal(t, 2, rest[0].Attempts)
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM outbox WHERE orphaned_at IS NOT NULL AND last_error = 'no such workflow'"))
	e.exec("UPDATE outbox SET attempts = 1000 WHERE id = $1", first[1].ID)
	require.NoError(t, o.MarkFailed(ctx, first[1].ID, "unreachable"))
	require.Equal(t, int64(60), e.number("SELECT round(extract(epoch FROM next_try_at - now()))::int FROM outbox WHERE id = $1", first[1].ID))
}

func TestResultGoesToCurrentOwner(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	e.exec("DELETE FROM outbox")
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	e.dispatch(f, "facts", task.FactsCollect)
	offer := e.take(caller, time.Minute)
	reset := task.Owner{WorkflowID: "wf", RunID: "run after a reset", ActivityID: "facts"}
	_, err := e.Prepare(ctx, spec(f, "facts", task.FactsCollect), reset)
	require.NoError(t, err)
	_, err = e.Result(ctx, caller, offer.TaskID, succeeded(1, inventory.Facts{}))
	require.NoError(t, err)
	messages, err := e.outbox().Take(ctx, 10, nil)
	require.NoError(t, err)
	require.Len(t, messages, 1)
	require.Equal(t, reset, messages[0].Owner)
}

// A message that is rewritten while its previous version is delivered stays.
func TestRewrittenMessageIsKept(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	e.dispatch(f, "drain", task.NodeProbe)
	offer := e.take(c, time.Minute)
	_, err := e.Result(ctx, c, offer.TaskID, succeeded(1, inventory.ProbeReport{}))
	require.NoError(t, err)
	o := e.outbox()
	older, err := o.Take(ctx, 100, nil)
	require.NoError(t, err)
	e.exec("UPDATE outbox SET created_at = clock_timestamp(), next_try_at = now() WHERE task_id = $1", offer.TaskID)
	newer, err := o.Take(ctx, 100, older)
	require.NoError(t, err)
	require.Len(t, newer, 1, "it is due")
	require.Equal(t, older[len(older)-1].ID, newer[0].ID)
	rest, err := o.Take(ctx, 100, newer)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.Zero(t, e.number("SELECT count(*) FROM outbox"))
}

// A release after the reservation ended changes no message that another relay took or
// failed to deliver meanwhile.
func TestReleaseAfterTheReservationEnded(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	e.results(3)
	o := e.outbox()
	mine, err := o.Take(ctx, 10, nil)
	require.NoError(t, err)
	require.Len(t, mine, 3)
	e.exec("UPDATE outbox SET next_try_at = now() WHERE id < $1", mine[2].ID) // the reservation ended
	others, err := o.Take(ctx, 10, nil)
	require.NoError(t, err)
	require.Len(t, others, 2)
	require.NoError(t, o.MarkFailed(ctx, others[1].ID, "unreachable"))
	require.NoError(t, o.Release(ctx, mine))
	free, err := o.Take(ctx, 10, nil)
	require.NoError(t, err)
	require.Len(t, free, 1)
	require.Equal(t, mine[2].ID, free[0].ID)
}

// A message whose task is missing, as after a partial restore, delays no other one.
func TestMessageWithoutTask(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row := e.held(c, f, "facts", task.FactsCollect)
	_, err := e.Result(ctx, c, row.TaskID, succeeded(1, inventory.Facts{}))
	require.NoError(t, err)
	e.exec("DELETE FROM node_tasks")
	messages, err := e.outbox().Take(ctx, 10, nil)
	require.NoError(t, err)
	require.Len(t, messages, 1)
	require.Nil(t, messages[0].Result)
	require.Nil(t, messages[0].Event)
	require.Equal(t, "wf", messages[0].WorkflowID)
}

func TestRacingRelaysTakeEachMessageOnce(t *testing.T) {
	e := setup(t)
	e.results(10)
	o := e.outbox()
	taken := make([][]relay.Message, 10)
	for _, err := range race(len(taken), func(i int) (err error) {
		taken[i], err = o.Take(t.Context(), 2, nil)
		return err
	}) {
		require.NoError(t, err)
	}
	seen := map[int64]bool{}
	for _, messages := range taken {
		for _, m := range messages {
			require.False(t, seen[m.ID])
			seen[m.ID] = true
		}
	}
	require.NotEmpty(t, seen)
}

// The commit of a Take does not wait for the disk, whether it takes or deletes: a lost
// one only repeats deliveries.
func TestTakeCommitsAsynchronously(t *testing.T) {
	e := setup(t)
	e.results(1)
	tx, err := e.raw.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	due, err := sqlc.New(tx).TakeOutbox(t.Context(), sqlc.TakeOutboxParams{MaxRows: 1, HoldSeconds: 60})
	require.NoError(t, err)
	require.Len(t, due, 1)
	var mode string
	require.NoError(t, tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&mode))
	require.Equal(t, "off", mode)
	_, err = tx.Exec(t.Context(), "SET LOCAL synchronous_commit = on")
	require.NoError(t, err)
	_, err = sqlc.New(tx).TakeOutbox(t.Context(), sqlc.TakeOutboxParams{DeliveredIds: []int64{due[0].ID}, DeliveredCreated: []time.Time{due[0].CreatedAt}})
	require.NoError(t, err)
	require.NoError(t, tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&mode))
	require.Equal(t, "off", mode)
}

// A result that no operation accepted stays in the outbox, and its task is listed.
func TestOrphanedResultsAreListed(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	e.results(2)
	messages, err := e.outbox().Take(ctx, 10, nil)
	require.NoError(t, err)
	require.Len(t, messages, 2)
	orphaned := func() []wire.TaskView {
		tasks, _, err := e.Tasks.ListTasks(ctx, adminapi.TaskQuery{Page: adminapi.Page{Limit: 5}, Orphaned: true})
		require.NoError(t, err)
		return tasks
	}
	require.Empty(t, orphaned())
	require.NoError(t, e.outbox().MarkOrphaned(ctx, messages[0].ID, "the run was terminated"))
	found := orphaned()
	require.Len(t, found, 1)
	require.Equal(t, messages[0].Result.TaskID, found[0].TaskID)
}
