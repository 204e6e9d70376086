package store_test

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// stale lets the leases of the tasks, or else every lease, be over for longer than the
// grace.
func (e *env) stale(taskIDs ...string) {
	e.t.Helper()
	e.exec("UPDATE node_tasks SET lease_until = now() - make_interval(secs => $1) WHERE task_id = ANY ($2) OR $2 IS NULL",
		task.StaleGrace.Seconds()+1, taskIDs)
}

// reclaim runs one sweep and returns its decisions by task.
func (e *env) reclaim() map[string]activities.ReclaimResult {
	e.t.Helper()
	out := map[string]activities.ReclaimResult{}
	var r activities.ReclaimRequest
	for {
		r.Limit = 2
		report, err := e.Reclaim(e.t.Context(), r)
		require.NoError(e.t, err)
		for _, d := range report.Decisions {
			require.Empty(e.t, out[d.TaskID], "decided twice")
			out[d.TaskID] = d.Result
		}
		if report.Next == "" {
			return out
		}
		require.Greater(e.t, report.Next, r.After)
		r.After = report.Next
	}
}

// held enqueues a task of the type and dispatches it to the node.
func (e *env) held(c nodeapi.Caller, f activities.Fence, step string, kind task.Type) activities.TaskRow {
	e.t.Helper()
	row := e.dispatch(f, step, kind)
	require.Equal(e.t, row.TaskID, e.take(c, time.Minute).TaskID)
	return row
}

func (e *env) task(id string) wire.TaskView {
	e.t.Helper()
	v, err := e.Task(e.t.Context(), id)
	require.NoError(e.t, err)
	return v
}

// messages takes what the outbox holds, due or not, and leaves it there.
func (e *env) messages() []relay.Message {
	e.t.Helper()
	e.exec("UPDATE outbox SET next_try_at = now()")
	m, err := e.outbox().Take(e.t.Context(), 100, nil)
	require.NoError(e.t, err)
	return m
}

// drain is an operation on a fresh node, with an empty outbox.
func (e *env) drain() (nodeapi.Caller, activities.Fence) {
	e.t.Helper()
	caller, _, _ := e.enroll()
	e.exec("DELETE FROM outbox")
	return caller, e.claim(caller.NodeID, lifecycle.ActionDrain).Fence
}

func TestReclaim(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	read := e.held(c, f, "read", task.FactsCollect)
	idempotent := e.held(c, f, "idempotent", task.WorkloadCordon)
	unbegun := e.held(c, f, "unbegun", task.WorkloadDrain)
	destructive := e.begun(c, f, "destructive")
	stopped := e.held(c, f, "stopped", task.NodeProbe)
	_, err := e.CancelTask(t.Context(), stopped.TaskID, "not needed", operator)
	require.NoError(t, err)
	unbegunStopped := e.held(c, f, "unbegun and stopped", task.WorkloadDrain)
	_, err = e.CancelTask(t.Context(), unbegunStopped.TaskID, "not needed", operator)
	require.NoError(t, err)
	waiting := e.dispatch(f, "waiting", task.NodeProbe)
	require.Empty(t, e.reclaim(), "every lease is good")
	e.exec("UPDATE node_tasks SET lease_until = now() - interval '1 second'")
	require.Empty(t, e.reclaim(), "a lease may be renewed for a while after its end")

	e.stale()
	other, otherFence := e.drain()
	foreign := e.held(other, otherFence, "read", task.FactsCollect)
	rows := e.changes(c.NodeID, func() {
		require.Equal(t, map[string]activities.ReclaimResult{read.TaskID: activities.ReclaimRequeued, idempotent.TaskID: activities.ReclaimRequeued,
			unbegun.TaskID: activities.ReclaimRequeued, destructive.TaskID: activities.ReclaimLost,
			stopped.TaskID: activities.ReclaimVoided, unbegunStopped.TaskID: activities.ReclaimVoided}, e.reclaim())
	})
	require.ElementsMatch(t, []string{"tasks.requeued succeeded lease_ended", "tasks.requeued succeeded lease_ended",
		"tasks.requeued succeeded lease_ended", "tasks.lost failed task_lost",
		"tasks.finished " + audit.Canceled + " not needed", "tasks.finished " + audit.Canceled + " not needed"}, rows)
	require.Empty(t, e.reclaim(), "a second sweep decides nothing")
	require.Equal(t, task.Dispatched, e.task(foreign.TaskID).Status)
	require.Equal(t, task.Pending, e.task(waiting.TaskID).Status)
	leases, err := e.TaskLeases(t.Context())
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(leases, func(n metrics.TaskCount) bool { return n.Status == task.Lost && n.Tasks == 1 }))

	results := map[string]task.Status{}
	for _, m := range e.messages() {
		results[m.Owner.ActivityID] = m.Result.Status
	}
	require.Equal(t, map[string]task.Status{"destructive": task.Lost, "stopped": task.Canceled, "unbegun and stopped": task.Canceled}, results)

	// The requeued ones are offered again, unless the journal has them and continues
	// under the lease that they had; the lost one is not.
	for _, want := range []activities.TaskRow{idempotent, unbegun, waiting} {
		require.Equal(t, want.TaskID, e.take(c, time.Minute, read.TaskID).TaskID)
	}
	e.takeNone(c, read.TaskID)
	require.Equal(t, read.TaskID, e.take(c, time.Minute).TaskID)
	e.takeNone(c)
}

func TestReclaimersRace(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	e.begun(c, f, "destructive")
	e.stale()
	decided := make([]int, 10)
	for _, err := range race(len(decided), func(i int) error {
		r, err := e.Reclaim(t.Context(), activities.ReclaimRequest{Limit: 10})
		decided[i] = len(r.Decisions)
		return err
	}) {
		require.NoError(t, err)
	}
	sum := 0
	for _, n := range decided {
		sum += n
	}
	require.Equal(t, 1, sum)
	require.Equal(t, 1, count(e.audit(c.NodeID), "tasks.lost failed task_lost"))
}

// A row that does not read keeps no other task from being reclaimed.
func TestReclaimGoesRoundABrokenRow(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	for _, step := range []string{"a", "b", "c"} {
		e.held(c, f, step, task.NodeProbe)
	}
	e.stale()
	broken := lifecycle.TaskID(f.OperationID, "b")
	e.exec(`UPDATE node_tasks SET result = '{"lease_epoch": "one"}' WHERE task_id = $1`, broken)
	report, err := e.Reclaim(t.Context(), activities.ReclaimRequest{Limit: 10})
	requireKind(t, err, schema.KindInternal, "")
	require.Len(t, report.Decisions, 2)
	for _, d := range report.Decisions {
		require.NotEqual(t, broken, d.TaskID)
	}
}

func TestTasksOfAnEndedOperationAreVoided(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	held := e.held(c, f, "held", task.WorkloadDrain)
	lost := e.held(c, f, "lost", task.WorkloadDrain)
	e.exec("UPDATE node_tasks SET status = 'lost' WHERE task_id = $1", lost.TaskID)
	// What no path of the store leaves behind, an older version may have.
	e.exec("UPDATE operations SET status = 'failed', ended_at = now() WHERE operation_id = $1", f.OperationID)
	require.Equal(t, map[string]activities.ReclaimResult{held.TaskID: activities.ReclaimVoided, lost.TaskID: activities.ReclaimVoided}, e.reclaim())
	require.Empty(t, e.reclaim())
	require.Equal(t, task.Canceled, e.task(lost.TaskID).Status)
}

func TestAnUndeliveredResultIsRedelivered(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	row := e.held(c, f, "facts", task.FactsCollect)
	_, err := e.Result(t.Context(), c, row.TaskID, succeeded(1, inventory.Facts{}))
	require.NoError(t, err)
	require.Empty(t, e.reclaim(), "it has time")
	e.exec("UPDATE outbox SET created_at = now() - interval '1 hour', next_try_at = now() + interval '1 hour', attempts = 9")
	rows := e.changes(c.NodeID, func() {
		require.Equal(t, map[string]activities.ReclaimResult{row.TaskID: activities.ReclaimRedelivered}, e.reclaim())
		require.Empty(t, e.reclaim(), "once in a while")
	})
	require.Equal(t, []string{"tasks.redelivered succeeded not_delivered"}, rows)
	messages, err := e.outbox().Take(t.Context(), 10, nil)
	require.NoError(t, err)
	require.Len(t, messages, 1, "due at once")
	e.exec("UPDATE outbox SET orphaned_at = now(), redelivered_at = NULL")
	require.Empty(t, e.reclaim(), "an operator inspects an orphan")
}

// A task whose operation is missing, as after a partial restore, is voided too.
func TestTaskWithoutOperationIsVoided(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	row := e.held(c, f, "drain", task.WorkloadDrain)
	e.exec("UPDATE node_tasks SET operation_id = $2 WHERE task_id = $1", row.TaskID, schema.NewID())
	require.Equal(t, map[string]activities.ReclaimResult{row.TaskID: activities.ReclaimVoided}, e.reclaim())
	require.Empty(t, e.reclaim())
	require.Equal(t, task.Canceled, e.task(row.TaskID).Status)
}

// begun is a destructive task that began under its first lease.
func (e *env) begun(c nodeapi.Caller, f activities.Fence, step string) activities.TaskRow {
	e.t.Helper()
	row := e.held(c, f, step, task.WorkloadDrain)
	require.NoError(e.t, e.progress(c, row.TaskID))
	return row
}

// lostTask is a destructive task that had begun and was lost.
func (e *env) lostTask() (nodeapi.Caller, activities.Fence, activities.TaskRow) {
	e.t.Helper()
	c, f := e.drain()
	row := e.begun(c, f, "drain")
	e.stale()
	require.Equal(e.t, activities.ReclaimLost, e.reclaim()[row.TaskID])
	require.NotNil(e.t, e.task(row.TaskID).FinishedAt)
	return c, f, row
}

func backEvent(c nodeapi.Caller, f activities.Fence, step string) *lifecycle.AgentEvent {
	return &lifecycle.AgentEvent{Event: lifecycle.EventTaskReturned, NodeID: c.NodeID, Incarnation: 1, Step: step, OperationID: f.OperationID}
}

func TestLostTaskReturnsByProgress(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f, row := e.lostTask()
	e.takeNone(c)
	for _, epoch := range []int64{0, 2} {
		_, err := e.Progress(ctx, c, row.TaskID, task.Progress{LeaseEpoch: epoch}, time.Minute)
		requireKind(t, err, schema.KindLeaseLost, "")
	}
	newer := c
	newer.Incarnation = 2
	_, err := e.Progress(ctx, newer, row.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	requireKind(t, err, schema.KindLeaseLost, "")
	rows := e.changes(c.NodeID, func() {
		for range 3 {
			_, err := e.Progress(ctx, c, row.TaskID, task.Progress{LeaseEpoch: 1, Message: "still at it"}, time.Minute)
			require.NoError(t, err)
		}
	})
	require.Equal(t, []string{"tasks.returned succeeded"}, rows)
	v := e.task(row.TaskID)
	require.Equal(t, task.Running, v.Status)
	require.Nil(t, v.FinishedAt)
	require.Equal(t, "still at it", v.Progress)
	messages := e.messages()
	require.Len(t, messages, 1, "no message says that it is lost")
	require.Equal(t, backEvent(c, f, "drain"), messages[0].Event)
	require.Equal(t, "wf", messages[0].WorkflowID)
	found, err := e.Prepare(ctx, spec(f, "drain", task.WorkloadDrain), taskOwner("drain"))
	require.NoError(t, err)
	require.Nil(t, found.Result, "the same step waits for it again")
	require.Empty(t, e.reclaim())
}

func TestLostTaskReturnsByResult(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f, row := e.lostTask()
	found, err := e.Prepare(ctx, spec(f, "drain", task.WorkloadDrain), taskOwner("drain"))
	require.NoError(t, err)
	require.Equal(t, lifecycle.ReasonTaskLost, found.Result.Failure().Reason)
	_, err = e.Result(ctx, c, row.TaskID, succeeded(0, task.DrainResult{}))
	requireKind(t, err, schema.KindLeaseLost, "")
	result := succeeded(1, task.DrainResult{Stopped: []string{"a"}})
	for range 2 {
		_, err = e.Result(ctx, c, row.TaskID, result)
		require.NoError(t, err)
	}
	var events, results int
	for _, m := range e.messages() {
		if m.Event != nil {
			events++
			require.Equal(t, backEvent(c, f, "drain"), m.Event)
			continue
		}
		results++
		require.Equal(t, task.Succeeded, m.Result.Status, "the message says what is true when it is delivered")
	}
	require.Equal(t, 1, events)
	require.Equal(t, 1, results)
	found, err = e.Prepare(ctx, spec(f, "drain", task.WorkloadDrain), taskOwner("drain"))
	require.NoError(t, err)
	require.Equal(t, task.Succeeded, found.Result.Status)
}

// A task that was requeued and not dispatched since is still its holder's.
func TestRequeuedTaskContinues(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	first, second := e.held(c, f, "first", task.WorkloadCordon), e.held(c, f, "second", task.NodeProbe)
	e.stale()
	require.Len(t, e.reclaim(), 2)
	_, err := e.Progress(ctx, c, first.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	require.NoError(t, err)
	_, err = e.Result(ctx, c, second.TaskID, succeeded(1, inventory.ProbeReport{}))
	require.NoError(t, err)
	e.takeNone(c)
	for _, m := range e.messages() {
		require.Nil(t, m.Event, "its operation never knew")
	}
	never := e.dispatch(f, "never", task.NodeProbe)
	_, err = e.Progress(ctx, c, never.TaskID, task.Progress{}, time.Minute)
	requireKind(t, err, schema.KindLeaseLost, "")
	_, err = e.Result(ctx, c, never.TaskID, succeeded(0, inventory.ProbeReport{}))
	requireKind(t, err, schema.KindLeaseLost, "")
}

func TestVoidedLostTaskStaysVoided(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f, row := e.lostTask()
	require.NoError(t, e.Void(ctx, f))
	require.Equal(t, task.Canceled, e.task(row.TaskID).Status)
	_, err := e.Progress(ctx, c, row.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	requireKind(t, err, schema.KindLeaseLost, "")
	rows := e.changes(c.NodeID, func() {
		_, err = e.Result(ctx, c, row.TaskID, succeeded(1, task.DrainResult{}))
		requireKind(t, err, schema.KindLeaseLost, "")
	})
	require.Equal(t, []string{"tasks.late_result refused lease_lost"}, rows)
	_, err = e.ResumeTask(ctx, row.TaskID, "again", operator)
	requireKind(t, err, schema.KindTaskStatus, "task_not_lost")
	for _, m := range e.messages() {
		require.Equal(t, task.Canceled, m.Result.Status, "its message has the current status")
	}
}

func TestResume(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f, row := e.lostTask()
	_, err := e.ResumeTask(ctx, row.TaskID, "  ", operator)
	requireKind(t, err, schema.KindInvalidRequest, "reason_missing")
	_, err = e.ResumeTask(ctx, schema.NewID(), "why", operator)
	requireKind(t, err, schema.KindNotFound, "")
	rows := e.changes(c.NodeID, func() {
		v, err := e.ResumeTask(ctx, row.TaskID, "looked at the node: it never began", operator)
		require.NoError(t, err)
		require.Equal(t, task.Pending, v.Status)
	})
	require.Equal(t, []string{"tasks.resume accepted looked at the node: it never began"}, rows)
	last := e.chain(c.NodeID)[len(e.chain(c.NodeID))-1]
	require.Equal(t, operator.Actor, last.Actor)
	require.Equal(t, row.TaskID, last.Target)
	messages := e.messages()
	require.Len(t, messages, 1)
	require.Equal(t, backEvent(c, f, "drain"), messages[0].Event)
	e.takeNone(c, row.TaskID) // the journal continues it under lease 1
	offer := e.take(c, time.Minute)
	require.Equal(t, row.TaskID, offer.TaskID)
	require.Equal(t, int64(2), offer.Lease.Epoch)
	_, err = e.ResumeTask(ctx, row.TaskID, "again", operator)
	requireKind(t, err, schema.KindTaskStatus, "task_not_lost")

	_, _, late := e.lostTask()
	e.exec("UPDATE node_tasks SET envelope_expires_at = now() WHERE task_id = $1", late.TaskID)
	_, err = e.ResumeTask(ctx, late.TaskID, "why", operator)
	requireKind(t, err, schema.KindTaskStatus, "envelope_expired")
	require.NotEmpty(t, schema.AsError(err).Next)
}

func TestCancelOfATask(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	running := e.held(c, f, "running", task.WorkloadDrain)
	pending := e.dispatch(f, "pending", task.NodeProbe)

	v, err := e.CancelTask(ctx, pending.TaskID, "wrong node", operator)
	require.NoError(t, err)
	require.Equal(t, task.Canceled, v.Status)
	require.Empty(t, v.CancelRequested)
	messages := e.messages()
	require.Len(t, messages, 1)
	require.Equal(t, task.Canceled, messages[0].Result.Status)
	found, err := e.Find(ctx, spec(f, "pending", task.NodeProbe))
	require.NoError(t, err)
	require.True(t, found.CancelRequested)
	require.Equal(t, lifecycle.ReasonTaskCanceled, found.Result.Failure().Reason)
	require.Contains(t, found.Result.Message, "wrong node")
	e.takeNone(c)
	_, err = e.CancelTask(ctx, pending.TaskID, "again", operator)
	requireKind(t, err, schema.KindTaskStatus, "task_over")

	answer, err := e.Progress(ctx, c, running.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	require.NoError(t, err)
	require.False(t, answer.Response.Cancel)
	rows := e.changes(c.NodeID, func() {
		for range 2 {
			v, err = e.CancelTask(ctx, running.TaskID, "owner asks", operator)
			require.NoError(t, err)
			require.Equal(t, "owner asks", v.CancelRequested)
			require.Equal(t, task.Running, v.Status)
		}
	})
	require.Equal(t, []string{"tasks.cancel accepted owner asks"}, rows)
	answer, err = e.Progress(ctx, c, running.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	require.NoError(t, err)
	require.True(t, answer.Response.Cancel)
	e.stale()
	e.takeNone(c) // it is not dispatched again
	_, err = e.Result(ctx, c, running.TaskID, task.Result{LeaseEpoch: 1, Status: task.Canceled})
	require.NoError(t, err)
	require.Equal(t, task.Canceled, e.task(running.TaskID).Status)

	c, f, row := e.lostTask()
	v, err = e.CancelTask(ctx, row.TaskID, "the disk is gone", operator)
	require.NoError(t, err)
	require.Equal(t, task.Canceled, v.Status)
	var signaled bool
	for _, m := range e.messages() {
		signaled = signaled || m.Event != nil && *m.Event == *backEvent(c, f, "drain")
	}
	require.True(t, signaled, "its parked operation is signaled")
}

func TestWhatAHeartbeatAnsweredIsRepeated(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row := e.held(c, f, "drain", task.WorkloadDrain)
	progress := func() nodeapi.ProgressResult {
		p, err := e.Progress(ctx, c, row.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
		require.NoError(t, err)
		return p
	}
	first := progress()
	require.Equal(t, taskOwner("drain"), *first.Owner)
	for range 3 {
		require.Nil(t, progress().Owner, "at most one every HeartbeatInterval, whatever the number of replicas")
	}
	e.exec("UPDATE node_tasks SET beat_at = beat_at - make_interval(secs => $1)", task.HeartbeatInterval.Seconds())
	require.NotNil(t, progress().Owner)

	require.NoError(t, e.SetActivityState(ctx, row.TaskID, nodeapi.ActivityState{Paused: true}))
	require.True(t, progress().Response.Paused)
	require.True(t, e.task(row.TaskID).Paused)
	require.NoError(t, e.SetActivityState(ctx, row.TaskID, nodeapi.ActivityState{}))
	require.False(t, progress().Response.Paused)
	require.NoError(t, e.SetActivityState(ctx, row.TaskID, nodeapi.ActivityState{Cancel: true}))
	require.True(t, progress().Response.Cancel)
	for _, seen := range []nodeapi.ActivityState{{Cancel: true}, {Paused: true}} {
		for _, o := range []task.Owner{taskOwner("drain"), {WorkflowID: "wf", RunID: "after a reset", ActivityID: "drain"}} {
			require.NoError(t, e.SetActivityState(ctx, row.TaskID, seen))
			_, err := e.Prepare(ctx, spec(f, "drain", task.WorkloadDrain), o)
			require.NoError(t, err)
			p := progress().Response
			require.False(t, p.Cancel || p.Paused, "%+v of before this run of the activity", seen)
		}
	}
}

func TestOnlyTheOwnersTasksAreOffered(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	row := e.dispatch(f, "old", task.NodeProbe)
	e.exec("UPDATE nodes SET op_seq = op_seq + 1 WHERE node_id = $1", c.NodeID)
	e.takeNone(c)
	e.exec("UPDATE node_tasks SET op_seq = 0 WHERE task_id = $1", row.TaskID)
	offer, err := e.NextTask(t.Context(), c, wire.PollRequest{AgentSession: "boot-1"}, time.Minute, nil)
	require.NoError(t, err)
	require.Equal(t, f.OpSeq+1, offer.OpSeq, "as of the dispatch")
	require.Equal(t, lifecycle.NodeDraining, offer.NodeState)
	v := e.task(row.TaskID)
	require.Equal(t, "boot-1", v.Holder)
	require.Equal(t, int64(1), v.Attempts)
}

func TestTaskViews(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	first := e.held(c, f, "first", task.FactsCollect)
	second := e.dispatch(f, "second", task.NodeProbe)
	r := succeeded(1, inventory.Facts{CPUs: 2})
	r.OutputTail = strings.Repeat("ü", task.MaxOutputTail) + "end\x00\xff"
	_, err := e.Result(ctx, c, first.TaskID, r)
	require.NoError(t, err)
	_, err = e.Result(ctx, c, first.TaskID, r)
	require.NoError(t, err, "the same result again")

	v := e.task(first.TaskID)
	require.Equal(t, task.Succeeded, v.Status)
	require.LessOrEqual(t, len(v.Result.OutputTail), task.MaxOutputTail)
	require.True(t, utf8.ValidString(v.Result.OutputTail))
	require.True(t, strings.HasSuffix(v.Result.OutputTail, "üend??"), v.Result.OutputTail[len(v.Result.OutputTail)-8:])
	require.Equal(t, "gpu-1", v.Host)
	require.Equal(t, "wf", v.WorkflowID)
	require.Equal(t, f.OperationID, v.OperationID)
	require.NotNil(t, v.DispatchedAt)
	found, err := e.Prepare(ctx, spec(f, "first", task.FactsCollect), taskOwner("first"))
	require.NoError(t, err)
	require.Empty(t, found.Result.OutputTail)

	list := func(nodeID string, open bool) (ids []string) {
		for _, v := range e.tasks(nodeID, open) {
			ids = append(ids, v.TaskID)
			if v.Result != nil {
				require.Empty(t, v.Result.OutputTail)
				require.Empty(t, v.Result.Output)
			}
		}
		return ids
	}
	require.Equal(t, []string{second.TaskID, first.TaskID}, list("", false), "newest first")
	require.Equal(t, []string{second.TaskID}, list(c.NodeID, true))
	require.Empty(t, list(schema.NewID(), false))
	_, err = e.Task(ctx, schema.NewID())
	requireKind(t, err, schema.KindNotFound, "")
	_, err = e.Task(ctx, "nonsense")
	requireKind(t, err, schema.KindNotFound, "")
	_, _, lost := e.lostTask()
	require.Contains(t, list("", true), lost.TaskID, "a lost one is not over")
}
