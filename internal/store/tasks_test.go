package store_test

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestTaskLifecycle(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence

	facts := spec(f, "facts", task.FactsCollect)
	row, err := e.Prepare(ctx, facts, taskOwner("facts"))
	require.NoError(t, err)
	require.Equal(t, activities.TaskRow{TaskID: lifecycle.TaskID(f.OperationID, "facts"), NodeID: caller.NodeID, Incarnation: 1,
		Type: task.FactsCollect, Effect: task.EffectRead, Params: facts.Params, Seq: 1, Status: task.Pending}, row)
	again, err := e.Prepare(ctx, facts, taskOwner("facts"))
	require.NoError(t, err)
	require.Equal(t, row, again, "nothing is stored yet")
	_, err = e.Prepare(ctx, spec(f, "x", "rm.rf"), taskOwner("x"))
	requireKind(t, err, schema.KindInvalidRequest, "")

	e.takeNone(caller)
	envelope := []byte(`{"payloadType":"x",  "payload":"y"}`)
	require.NoError(t, e.Enqueue(ctx, facts, taskOwner("facts"), row, envelope))
	require.NoError(t, e.Enqueue(ctx, facts, taskOwner("facts"), row, []byte("another")), "the first envelope stays")
	_, err = e.Prepare(ctx, spec(f, "facts", task.NodeProbe), taskOwner("facts"))
	requireKind(t, err, schema.KindInvalidRequest, "")
	taken, err := e.Prepare(ctx, spec(f, "late", task.FactsCollect), taskOwner("late"))
	require.NoError(t, err)
	second := e.dispatch(f, "probe", task.NodeProbe)
	require.Equal(t, row.Seq+1, second.Seq)
	requireKind(t, e.Enqueue(ctx, spec(f, "late", task.FactsCollect), taskOwner("late"), taken, envelope),
		schema.KindServiceUnavailable, "seq_taken")

	offer := e.take(caller, time.Minute)
	require.Equal(t, row.TaskID, offer.TaskID, "in the order of seq")
	require.Equal(t, string(envelope), string(offer.Envelope), "byte for byte")
	require.Equal(t, task.FactsCollect, offer.Type)
	require.Equal(t, lifecycle.NodeActive, offer.NodeState)
	require.Equal(t, f.OpSeq, offer.OpSeq)
	require.Equal(t, int64(1), offer.Lease.Epoch)
	require.WithinDuration(t, offer.ServerTime.Add(time.Minute), offer.Lease.ExpiresAt, time.Millisecond)
	require.Equal(t, second.TaskID, e.take(caller, time.Minute).TaskID)
	e.takeNone(caller)

	answer, err := e.Progress(ctx, caller, row.TaskID, task.Progress{LeaseEpoch: 1, Message: "half"}, time.Hour)
	require.NoError(t, err)
	require.Greater(t, answer.Response.Lease.ExpiresAt, time.Now().Add(50*time.Minute))
	leases, err := e.TaskLeases(ctx)
	require.NoError(t, err)
	for i := range leases {
		require.InDelta(t, 0, leases[i].OldestSeconds, time.Minute.Seconds())
		leases[i].OldestSeconds = 0
	}
	require.Equal(t, []metrics.TaskCount{{Status: task.Dispatched, Tasks: 1}, {Status: task.Running, Tasks: 1}}, leases)

	result := succeeded(1, inventory.Facts{CPUs: 2})
	kind, err := e.Result(ctx, caller, row.TaskID, result)
	require.NoError(t, err)
	require.Equal(t, task.FactsCollect, kind)
	var stored atomic.Int64
	for _, err := range race(10, func(int) error {
		kind, err := e.Result(ctx, caller, row.TaskID, result)
		if kind != "" {
			stored.Add(1)
		}
		return err
	}) {
		require.NoError(t, err)
	}
	require.Zero(t, stored.Load(), "the same result again is stored once")

	found, err := e.Prepare(ctx, spec(f, "facts", task.FactsCollect), taskOwner("facts"))
	require.NoError(t, err)
	require.Equal(t, task.Succeeded, found.Status)
	require.JSONEq(t, string(result.Output), string(found.Result.Output))
	require.Equal(t, []string{"tasks.created succeeded", "tasks.created succeeded", "tasks.dispatched succeeded",
		"tasks.dispatched succeeded", "tasks.finished succeeded"}, e.audit(caller.NodeID)[8:])
}

func TestConcurrentResultsStoreOne(t *testing.T) {
	e := setup(t)
	caller, _, _ := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	row := e.dispatch(f, "facts", task.FactsCollect)
	e.take(caller, time.Minute)
	stored := 0
	for _, err := range race(20, func(i int) error {
		_, err := e.Result(t.Context(), caller, row.TaskID, succeeded(1, inventory.Facts{CPUs: i}))
		return err
	}) {
		if err == nil {
			stored++
			continue
		}
		requireKind(t, err, schema.KindLeaseLost, "")
	}
	require.Equal(t, 1, stored)
	rows := e.audit(caller.NodeID)
	require.Equal(t, 1, count(rows, "tasks.finished succeeded"))
	require.Equal(t, 1, count(rows, "tasks.late_result refused lease_lost"), "refusals of one task are audited once a minute")
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM outbox WHERE task_id IS NOT NULL"))
}

func TestTaskIsDispatchedOnce(t *testing.T) {
	e := setup(t)
	caller, _, _ := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	const tasks = 10
	for i := range tasks {
		e.dispatch(f, fmt.Sprint("facts-", i), task.FactsCollect)
	}
	offers := make([]*nodeapi.Dispatch, 3*tasks)
	for _, err := range race(len(offers), func(i int) (err error) {
		offers[i], err = e.NextTask(t.Context(), caller, wire.PollRequest{}, time.Minute, nil)
		return err
	}) {
		require.NoError(t, err)
	}
	seen := map[string]bool{}
	for _, o := range offers {
		if o != nil {
			require.False(t, seen[o.TaskID])
			require.Equal(t, int64(1), o.Lease.Epoch)
			seen[o.TaskID] = true
		}
	}
	for len(seen) < tasks { // a poll that met a locked row may come back with nothing
		seen[e.take(caller, time.Minute).TaskID] = true
	}
	e.takeNone(caller)
	require.Equal(t, tasks, count(e.audit(caller.NodeID), "tasks.dispatched succeeded"))
}

func TestExpiredLease(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	row := e.dispatch(f, "facts", task.FactsCollect)
	require.Equal(t, int64(1), e.take(caller, -time.Second).Lease.Epoch)

	e.takeNone(caller, row.TaskID) // the agent has it in its journal
	again := e.take(caller, time.Minute, schema.NewID(), "nonsense")
	require.Equal(t, row.TaskID, again.TaskID)
	require.Equal(t, int64(2), again.Lease.Epoch)
	e.takeNone(caller)
	require.Equal(t, 2, count(e.audit(caller.NodeID), "tasks.dispatched succeeded"), "each dispatch is on record")

	_, err := e.Progress(ctx, caller, row.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	requireKind(t, err, schema.KindLeaseLost, "")
	_, err = e.Result(ctx, caller, row.TaskID, succeeded(1, inventory.Facts{}))
	requireKind(t, err, schema.KindLeaseLost, "")
	_, err = e.Result(ctx, caller, row.TaskID, succeeded(2, inventory.Facts{}))
	require.NoError(t, err)
	_, err = e.Progress(ctx, caller, row.TaskID, task.Progress{LeaseEpoch: 2}, time.Minute)
	requireKind(t, err, schema.KindLeaseLost, "")

	late := e.dispatch(f, "probe", task.NodeProbe)
	e.take(caller, -time.Second)
	_, err = e.Progress(ctx, caller, late.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	require.NoError(t, err, "a lease that no one else got can be resumed")
	_, err = e.Result(ctx, caller, late.TaskID, succeeded(1, inventory.ProbeReport{}))
	require.NoError(t, err)
}

func TestTasksOfOthersAreUnknown(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	other, _, _ := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	row := e.dispatch(f, "facts", task.FactsCollect)
	e.takeNone(other)
	e.take(caller, time.Minute)
	for _, id := range []string{row.TaskID, schema.NewID(), "nonsense"} {
		_, err := e.Result(ctx, other, id, succeeded(1, inventory.Facts{}))
		requireKind(t, err, schema.KindNotFound, "")
		_, err = e.Progress(ctx, other, id, task.Progress{LeaseEpoch: 1}, time.Minute)
		requireKind(t, err, schema.KindNotFound, "")
	}
	newer := caller
	newer.Incarnation = 2
	e.takeNone(newer)
	_, err := e.Result(ctx, newer, row.TaskID, succeeded(1, inventory.Facts{}))
	requireKind(t, err, schema.KindLeaseLost, "")
}

func TestExpiredAndVoidedTasksAreNotDispatched(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence

	expired := spec(f, "expired", task.FactsCollect)
	expired.Deadline = time.Now().Add(-time.Second)
	e.enqueue(expired)
	e.takeNone(caller)

	dispatched := spec(f, "dispatched", task.FactsCollect)
	stored := e.enqueue(dispatched)
	require.Equal(t, stored.TaskID, e.take(caller, time.Minute).TaskID)
	held := e.dispatch(f, "held", task.FactsCollect)
	e.take(caller, time.Minute)
	e.dispatch(f, "waiting", task.FactsCollect)
	rows := e.changes(caller.NodeID, func() {
		require.NoError(t, e.Void(ctx, f))
		require.NoError(t, e.Void(ctx, f))
	})
	require.Equal(t, 4, count(rows, "tasks.finished "+audit.Canceled+" voided"))
	require.Len(t, rows, 4)
	e.takeNone(caller)
	requireKind(t, e.Enqueue(ctx, dispatched, taskOwner("dispatched"), stored, []byte("{}")), schema.KindFenced, "task_voided")
	_, err := e.Progress(ctx, caller, held.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	requireKind(t, err, schema.KindLeaseLost, "")
	rows = e.changes(caller.NodeID, func() {
		_, err = e.Result(ctx, caller, held.TaskID, succeeded(1, inventory.Facts{}))
		requireKind(t, err, schema.KindLeaseLost, "")
	})
	require.Equal(t, []string{"tasks.late_result refused lease_lost"}, rows)
	require.Zero(t, e.number("SELECT count(*) FROM outbox WHERE task_id IS NOT NULL"))
}

func TestResultsUpdateNodeWork(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionDrain).Fence
	work := []task.Workload{{Name: "a", Kind: "process"}, {Name: "b", Kind: "process"}}
	run := func(step string, kind task.Type, r task.Result) error {
		e.dispatch(f, step, kind)
		offer := e.take(caller, time.Minute)
		_, err := e.Result(ctx, caller, offer.TaskID, r)
		return err
	}
	names := func() (out []string) {
		for _, w := range e.node(caller.NodeID).Workloads {
			out = append(out, w.Name)
		}
		return out
	}

	overtaken := wire.Heartbeat{At: time.Now().Add(-time.Second), AgentVersion: "v2"}
	require.NoError(t, run("cordon", task.WorkloadCordon, succeeded(1, task.CordonResult{Cordoned: true, Workloads: work})))
	require.True(t, e.node(caller.NodeID).Cordoned)
	require.Equal(t, []string{"a", "b"}, names())

	require.NoError(t, e.heartbeat(caller, overtaken))
	require.Equal(t, []string{"a", "b"}, names(), "a heartbeat of before the result does not undo it")
	require.Equal(t, "v2", e.node(caller.NodeID).AgentVersion)

	require.NoError(t, run("drain", task.WorkloadDrain, succeeded(1, task.DrainResult{Stopped: []string{"a"},
		Blocked: []task.Blocker{{Workload: "b", Reason: "would not stop"}}})))
	require.Equal(t, []string{"b"}, names())
	require.True(t, e.node(caller.NodeID).Cordoned)

	ignored := task.DrainResult{Ignored: []task.Blocker{{Workload: "pid 7 python3", Kind: task.KindGPUProcess}}}
	require.NoError(t, run("forced", task.WorkloadDrain, succeeded(1, ignored)))
	require.Equal(t, []string{"b"}, names(), "what a forced drain ignores is still there")
	failed := task.Result{LeaseEpoch: 1, Status: task.Failed, Code: schema.KindTaskFailed, Message: "no"}
	require.NoError(t, run("failed", task.WorkloadDrain, failed))
	require.Equal(t, []string{"b"}, names())
	require.Contains(t, e.audit(caller.NodeID), "tasks.finished failed task_failed")

	for _, kind := range []task.Type{task.WorkloadDrain, task.WorkloadUncordon} {
		garbage := task.Result{LeaseEpoch: 1, Status: task.Succeeded, Output: json.RawMessage(`"yes"`)}
		require.NoError(t, run("garbage"+string(kind), kind, garbage), "its operation parks with it")
		found, err := e.Find(ctx, spec(f, "garbage"+string(kind), kind))
		require.NoError(t, err)
		require.Equal(t, task.Failed, found.Status)
		require.Equal(t, schema.KindTaskFailed, found.Result.Failure().Kind)
		require.Contains(t, found.Result.Failure().Message, "does not have the form of "+string(kind))
		require.Equal(t, []string{"b"}, names(), "and changes nothing of the node")
		_, err = e.Result(ctx, caller, found.TaskID, garbage)
		require.NoError(t, err, "the same report again")
	}
	require.NoError(t, run("uncordon", task.WorkloadUncordon, succeeded(1, task.CordonResult{})))
	require.False(t, e.node(caller.NodeID).Cordoned)
	require.Equal(t, []task.Workload{}, e.node(caller.NodeID).Workloads)

	reset := wire.Heartbeat{At: time.Now().Add(-24 * time.Hour), Workloads: work}
	require.NoError(t, e.heartbeat(caller, reset))
	require.Equal(t, []string{"a", "b"}, names(), "a clock that was set back does not silence the node")

	_, err := e.Result(ctx, caller, schema.NewID(), task.Result{Status: task.Lost})
	requireKind(t, err, schema.KindInvalidRequest, "")
	nul := task.Result{LeaseEpoch: 1, Status: task.Succeeded, Output: json.RawMessage(`{"os":"\u0000"}`)}
	requireKind(t, run("nul", task.FactsCollect, nul), schema.KindInvalidRequest, "")
}

// TestFindBelongsToItsStep: a result is read for its own operation, step, node and type
// only, and never by an operation that lost its node.
func TestFindBelongsToItsStep(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	want := spec(f, "facts", task.FactsCollect)
	_, err := e.Find(ctx, want)
	requireKind(t, err, schema.KindNotFound, "")
	e.dispatch(f, "facts", task.FactsCollect)
	found, err := e.Find(ctx, want)
	require.NoError(t, err)
	require.Nil(t, found.Result)
	offer := e.take(caller, time.Minute)
	_, err = e.Result(ctx, caller, offer.TaskID, succeeded(1, inventory.Facts{CPUs: 3, Kernel: "6.1", NICs: make([]inventory.NIC, 10_000)}))
	require.NoError(t, err)
	found, err = e.Find(ctx, want)
	require.NoError(t, err)
	require.Equal(t, offer.TaskID, found.TaskID)
	require.Equal(t, task.Succeeded, found.Status)
	for name, change := range map[string]func(*activities.TaskSpec){
		"operation": func(s *activities.TaskSpec) { s.OperationID = schema.NewID() },
		"no id":     func(s *activities.TaskSpec) { s.OperationID = "nonsense" },
		"step":      func(s *activities.TaskSpec) { s.Step = "facts#2" },
		"node":      func(s *activities.TaskSpec) { s.NodeID = schema.NewID() },
		"type":      func(s *activities.TaskSpec) { s.Type = task.NodeProbe },
	} {
		other := want
		change(&other)
		_, err := e.Find(ctx, other)
		require.Equal(t, schema.KindNotFound, schema.KindOf(err), name)
	}
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "probe", Step: 1, FactsTask: "facts"}))
	require.Equal(t, 3, e.node(caller.NodeID).Facts.CPUs)
	require.Equal(t, "6.1", e.node(caller.NodeID).Facts.Kernel)
	require.Equal(t, 2500, len(e.node(caller.NodeID).Facts.NICs), "at most 64 KiB") //nolint:testifylint // Len prints all
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "probe", Step: 2, FactsTask: "absent"}))
	require.Equal(t, 3, e.node(caller.NodeID).Facts.CPUs)

	e.dispatch(f, "probe", task.NodeProbe)
	e.claim(caller.NodeID, lifecycle.ActionDrain)
	_, err = e.Find(ctx, spec(f, "probe", task.NodeProbe))
	requireKind(t, err, schema.KindFenced, "")
}
