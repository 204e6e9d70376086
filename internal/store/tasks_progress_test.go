package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// progress sends a progress under the first lease.
func (e *env) progress(c nodeapi.Caller, taskID string) error {
	_, err := e.Progress(e.t.Context(), c, taskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	return err
}

// The agent sends progress before it begins a destructive task. After the lease ended,
// the task may begin as long as it could also be dispatched again: whether it was
// requeued yet or not, but not once its envelope expired.
func TestDestructiveTaskBeginsLate(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	for step, requeue := range map[string]bool{"leased": false, "requeued": true} {
		row := e.held(c, f, step, task.WorkloadDrain)
		e.stale(row.TaskID)
		if requeue {
			require.Equal(t, activities.ReclaimRequeued, e.reclaim()[row.TaskID])
			require.Empty(t, e.messages(), "its operation does not park")
		}
		e.exec("UPDATE node_tasks SET envelope_expires_at = now() WHERE task_id = $1", row.TaskID)
		requireKind(t, e.progress(c, row.TaskID), schema.KindLeaseLost, "")
		e.exec("UPDATE node_tasks SET envelope_expires_at = now() + interval '1 hour' WHERE task_id = $1", row.TaskID)
		require.NoError(t, e.progress(c, row.TaskID))
		require.Equal(t, task.Running, e.task(row.TaskID).Status)
		require.True(t, e.task(row.TaskID).LeaseUntil.After(time.Now()))
		e.takeNone(c)
	}
}

// A destructive task that did not begin under its first lease is dispatched once more
// without a decision, and only the new lease counts then. If the task does not begin
// under that lease either, it is lost and may no longer begin. The agent's report that
// it did nothing is accepted.
func TestUnbegunDestructiveTaskIsRequeuedOnce(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row := e.held(c, f, "drain", task.WorkloadDrain)
	e.stale()
	require.Equal(t, activities.ReclaimRequeued, e.reclaim()[row.TaskID])
	offer := e.take(c, time.Minute)
	require.Equal(t, row.TaskID, offer.TaskID)
	require.Equal(t, int64(2), offer.Lease.Epoch)
	requireKind(t, e.progress(c, row.TaskID), schema.KindLeaseLost, "")
	nothing := task.Result{LeaseEpoch: 1, Status: task.Canceled, Message: "the lease was lost"}
	_, err := e.Result(ctx, c, row.TaskID, nothing)
	requireKind(t, err, schema.KindLeaseLost, "")
	e.stale()
	require.Equal(t, activities.ReclaimLost, e.reclaim()[row.TaskID])
	_, err = e.Progress(ctx, c, row.TaskID, task.Progress{LeaseEpoch: 2}, time.Minute)
	requireKind(t, err, schema.KindLeaseLost, "")
	require.Equal(t, task.Lost, e.task(row.TaskID).Status)
	nothing.LeaseEpoch = 2
	_, err = e.Result(ctx, c, row.TaskID, nothing)
	require.NoError(t, err)
	require.Equal(t, task.Canceled, e.task(row.TaskID).Status)
}

func TestProgressOfAnotherNode(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	row := e.held(c, f, "drain", task.WorkloadDrain)
	other, _ := e.drain()
	requireKind(t, e.progress(other, row.TaskID), schema.KindNotFound, "")
	requireKind(t, e.progress(c, schema.NewID()), schema.KindNotFound, "")
	require.Equal(t, task.Dispatched, e.task(row.TaskID).Status)
}

func TestProgressOfCanceledTask(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row, voided := e.held(c, f, "drain", task.WorkloadDrain), e.held(c, f, "cordon", task.WorkloadCordon)
	_, err := e.CancelTask(ctx, row.TaskID, "not needed", operator)
	require.NoError(t, err)
	p, err := e.Progress(ctx, c, row.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	require.NoError(t, err)
	require.True(t, p.Response.Cancel)
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: "cancelled"}))
	for _, id := range []string{row.TaskID, voided.TaskID} {
		requireKind(t, e.progress(c, id), schema.KindLeaseLost, "")
		require.Equal(t, task.Canceled, e.task(id).Status)
	}
}

// Progress and the reclaimer reach a task whose lease has ended at the same time. The
// task is running at the end, whether it had begun or not, with a signal if it was lost
// in between.
func TestProgressRacesReclaim(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	for i := range rounds {
		step, begun := string(rune('a'+i%26))+string(rune('a'+i/26)), i%2 == 0
		row := e.held(c, f, step, task.WorkloadDrain)
		if begun {
			require.NoError(t, e.progress(c, row.TaskID))
		}
		e.exec("DELETE FROM outbox")
		e.stale(row.TaskID)
		errs := race(2, func(i int) error {
			if i == 0 {
				return e.progress(c, row.TaskID)
			}
			_, err := e.Reclaim(t.Context(), activities.ReclaimRequest{Limit: 10})
			return err
		})
		require.NoError(t, errs[0])
		require.NoError(t, errs[1])
		v := e.task(row.TaskID)
		require.Equal(t, task.Running, v.Status)
		require.True(t, v.LeaseUntil.After(time.Now()))
		rows := e.audit(c.NodeID)
		reclaimed := count(rows, "tasks.lost failed task_lost") + count(rows, "tasks.requeued succeeded lease_ended")
		require.Equal(t, reclaimed, count(rows, "tasks.returned succeeded"), "each decision was followed by a return")
		for _, m := range e.messages() {
			require.Nil(t, m.Result, "no message says that it is lost")
		}
		e.exec("UPDATE node_tasks SET status = 'cancelled', finished_at = now() WHERE task_id = $1", row.TaskID)
	}
}
