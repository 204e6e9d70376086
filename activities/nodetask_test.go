package activities_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// queue is a task queue with one row.
type queue struct {
	row      activities.TaskRow
	enqueued [][]byte
	fail     error
	least    int64 // verifier set
	leastErr error
}

func (q *queue) Prepare(context.Context, activities.TaskSpec, task.Owner) (activities.TaskRow, error) {
	return q.row, nil
}

func (q *queue) Enqueue(_ context.Context, _ activities.TaskSpec, _ task.Owner, row activities.TaskRow, envelope []byte) error {
	if q.fail != nil {
		return q.fail
	}
	q.enqueued = append(q.enqueued, envelope)
	row.Stored = true
	q.row = row
	return nil
}

func (q *queue) Void(context.Context, activities.Fence) error { return nil }

func (q *queue) VoidUndispatched(context.Context, activities.Fence, string) (bool, error) {
	return false, nil
}

// Sign "signs" by answering the payload.
func (q *queue) Sign(_ context.Context, payload []byte) ([]byte, error) { return payload, nil }

func (q *queue) MinVerifierSet(context.Context) (int64, error) { return q.least, q.leastErr }

// Find returns the stored row.
func (q *queue) Find(context.Context, activities.TaskSpec) (activities.TaskRow, error) {
	if !q.row.Stored {
		return activities.TaskRow{}, schema.NewError(schema.KindNotFound, "no such task")
	}
	return q.row, q.fail
}

// First returns the stored row.
func (q *queue) First(ctx context.Context, _ activities.Fence, _ task.Type) (activities.TaskRow, error) {
	return q.Find(ctx, activities.TaskSpec{})
}

func execute[T any](t *testing.T, q *queue, which func(*activities.Task) any, spec activities.TaskSpec) (out T, err error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	a := &activities.Task{Tasks: q, NewTasks: activities.TaskSigner{Signer: q, Sets: q, Env: "test"}}
	env.RegisterActivity(a)
	v, err := env.ExecuteActivity(which(a), spec)
	if err != nil {
		return out, err
	}
	require.NoError(t, v.Get(&out))
	return out, nil
}

func run(t *testing.T, q *queue, spec activities.TaskSpec) (task.Reference, error) {
	t.Helper()
	return execute[task.Reference](t, q, func(a *activities.Task) any { return a.RunNodeTask }, spec)
}

func read(t *testing.T, q *queue, spec activities.TaskSpec) (task.Outcome, error) {
	t.Helper()
	return execute[task.Outcome](t, q, func(a *activities.Task) any { return a.ReadTaskResult }, spec)
}

func fresh() *queue {
	return &queue{row: activities.TaskRow{TaskID: "t", NodeID: "n", Incarnation: 2, Type: task.WorkloadDrain,
		Effect: task.EffectDestructive, Seq: 5, Status: task.Pending}}
}

// TestSecondRunFindsItsRow: a second run, for example after a heartbeat timeout,
// finds its row in every state. Temporal receives a reference, the workflow reads the
// outcome.
func TestSecondRunFindsItsRow(t *testing.T) {
	t.Parallel()
	done := task.Result{Status: task.Succeeded, Output: json.RawMessage(`{"stopped":["a"],"blocked":[{"workload":"b","reason":"busy"}]}`)}
	refused := task.Result{Status: task.Failed, Code: schema.KindServiceUnavailable, Message: "no"}
	invented := task.Result{Status: task.Failed, Code: "my_own_code", Message: "no"}
	canceled := task.Result{Status: task.Canceled, Message: "canceled: wrong node"}
	wrong := task.Result{Status: task.Succeeded, Output: json.RawMessage(`"yes"`)}
	gone := task.NoReport(task.Lost, 1)
	for name, tc := range map[string]struct {
		status    task.Status
		result    *task.Result
		requested bool
		kind      schema.Kind
		reason    string
	}{
		"pending again":        {status: task.Pending},
		"running":              {status: task.Running},
		"succeeded":            {status: task.Succeeded, result: &done},
		"failed":               {task.Failed, &refused, false, schema.KindTaskFailed, ""},
		"failed by its own":    {task.Failed, &invented, false, schema.KindTaskFailed, ""},
		"of another form":      {task.Succeeded, &wrong, false, schema.KindTaskFailed, ""},
		"canceled":             {task.Canceled, &canceled, true, schema.KindTaskFailed, lifecycle.ReasonTaskCanceled},
		"canceled by the node": {task.Canceled, &canceled, false, schema.KindTaskFailed, ""},
		"lost":                 {task.Lost, &gone, false, schema.KindTaskFailed, lifecycle.ReasonTaskLost},
		"succeeded after lost": {status: task.Succeeded, result: &done},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := fresh()
			q.row.Stored, q.row.Status, q.row.Result, q.row.CancelRequested = true, tc.status, tc.result, tc.requested
			spec := activities.TaskSpec{Type: task.WorkloadDrain}
			ref, err := run(t, q, spec)
			require.Empty(t, q.enqueued)
			if tc.result == nil {
				require.ErrorIs(t, err, activity.ErrResultPending)
			} else {
				require.NoError(t, err)
				require.Equal(t, task.Reference{TaskID: "t", Status: tc.status}, ref)
			}
			outcome, err := read(t, q, spec)
			if tc.kind == "" {
				require.NoError(t, err)
				require.Equal(t, tc.result != nil, outcome.Done)
				require.Equal(t, tc.result == nil, outcome.Open)
				if outcome.Done {
					require.JSONEq(t, `{"stopped":null,"blocked":[{"workload":"b","reason":"`+"`busy`"+`"}]}`, string(outcome.Output))
				}
				return
			}
			var app *temporal.ApplicationError
			require.ErrorAs(t, err, &app)
			require.Equal(t, string(tc.kind), app.Type())
			require.True(t, app.NonRetryable(), "the row does not change")
			require.Equal(t, tc.reason, activities.Typed(err).Reason)
		})
	}
}

func TestReadTaskResultWithoutATask(t *testing.T) {
	t.Parallel()
	outcome, err := read(t, fresh(), activities.TaskSpec{})
	require.NoError(t, err)
	require.Equal(t, task.Outcome{}, outcome)
	q := fresh()
	q.row.Stored, q.fail = true, schema.NewError(schema.KindServiceUnavailable, "no database")
	_, err = read(t, q, activities.TaskSpec{})
	require.Equal(t, schema.KindServiceUnavailable, activities.Typed(err).Kind)
}

// TestReadTaskResultOfALockedNode: an open task of a node whose identity is locked does not end
// until the lock does, and a lost one has the next step of the lock.
func TestReadTaskResultOfALockedNode(t *testing.T) {
	t.Parallel()
	q := fresh()
	q.row.Stored = true
	q.row.Locked = lifecycle.IdentityLocked("gpu-17", trust.IdentityLock{Reason: trust.LockedByOperator, By: "alice", Note: "key leaked"})
	_, err := read(t, q, activities.TaskSpec{})
	require.Equal(t, schema.ReasonNodeLocked, activities.Typed(err).Reason)
	require.Contains(t, activities.Typed(err).Message, "key leaked")

	lost := task.NoReport(task.Lost, 1)
	q.row.Status, q.row.Result = task.Lost, &lost
	_, err = read(t, q, activities.TaskSpec{})
	require.Equal(t, lifecycle.ReasonTaskLost, activities.Typed(err).Reason)
	require.Equal(t, q.row.Locked.Next, activities.Typed(err).Next)
	require.Contains(t, activities.Typed(err).Message, "key leaked")
}

// TestReadFirstTask: the output is that of a success, and any other task exists only.
func TestReadFirstTask(t *testing.T) {
	t.Parallel()
	unavailable := schema.NewError(schema.KindServiceUnavailable, "no database")
	was := &task.Result{Status: task.Succeeded, Output: json.RawMessage(`{"cordoned":true,"was":true,"workloads":[{"name":"a"}]}`)}
	for name, tc := range map[string]struct {
		stored bool
		status task.Status
		result *task.Result
		fail   error
		want   activities.FirstTask
	}{
		"none":      {},
		"pending":   {stored: true, status: task.Pending, want: activities.FirstTask{Exists: true}},
		"failed":    {stored: true, status: task.Failed, result: &task.Result{Status: task.Failed}, want: activities.FirstTask{Exists: true}},
		"voided":    {stored: true, status: task.Canceled, result: was, want: activities.FirstTask{Exists: true}},
		"succeeded": {stored: true, status: task.Succeeded, result: was, want: activities.FirstTask{Exists: true, Output: json.RawMessage(`{"cordoned":true,"was":true,"workloads":[{"name":"` + "`a`" + `","kind":"","since":"0001-01-01T00:00:00Z"}]}`)}},
		"unknown":   {stored: true, fail: unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := fresh()
			q.row.Stored, q.row.Status, q.row.Result, q.fail = tc.stored, tc.status, tc.result, tc.fail
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestActivityEnvironment()
			a := &activities.Task{Tasks: q}
			env.RegisterActivity(a)
			v, err := env.ExecuteActivity(a.ReadFirstTask, activities.Fence{}, task.WorkloadCordon)
			if tc.fail != nil {
				require.Equal(t, schema.KindServiceUnavailable, activities.Typed(err).Kind)
				return
			}
			require.NoError(t, err)
			var got activities.FirstTask
			require.NoError(t, v.Get(&got))
			require.Equal(t, tc.want, got)
		})
	}
}

func TestFirstRunSignsAndStores(t *testing.T) {
	t.Parallel()
	q := fresh()
	deadline := time.Now().Add(time.Hour).UTC()
	_, err := run(t, q, activities.TaskSpec{OperationID: "op", OpSeq: 9, Attempt: 3, Deadline: deadline,
		Expect: task.Expectation{NodeState: lifecycle.NodeDraining}, CorrelationID: "c"})
	require.ErrorIs(t, err, activity.ErrResultPending)
	require.Len(t, q.enqueued, 1)
	var p task.Payload
	require.NoError(t, json.Unmarshal(q.enqueued[0], &p))
	require.Equal(t, int64(5), p.Seq)
	require.Equal(t, int64(2), p.Incarnation)
	require.Equal(t, int64(3), p.Attempt)
	require.Equal(t, task.Expectation{NodeState: lifecycle.NodeDraining, OpSeq: 9}, p.Expect)
	require.True(t, deadline.Equal(p.ExpiresAt))
	require.Zero(t, p.MinSetVersion)

	q = fresh()
	q.least = 4
	_, err = run(t, q, activities.TaskSpec{})
	require.ErrorIs(t, err, activity.ErrResultPending)
	require.NoError(t, json.Unmarshal(q.enqueued[0], &p))
	require.Equal(t, int64(4), p.MinSetVersion)

	q = fresh()
	q.leastErr = schema.NewError(schema.KindServiceUnavailable, "no set was read yet")
	_, err = run(t, q, activities.TaskSpec{})
	require.ErrorContains(t, err, "no set was read yet")
	require.Empty(t, q.enqueued, "nothing is signed that says too little")

	q = fresh()
	q.fail = schema.NewError(schema.KindServiceUnavailable, "taken").WithReason("seq_taken")
	_, err = run(t, q, activities.TaskSpec{})
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.False(t, app.NonRetryable(), "the next try plans again")
}

// batches is a reclaimer with three batches; fail is the call that fails.
type batches struct {
	asked []string
	fail  int
	// broken is a batch with a task that cannot be decided.
	broken int
}

func (h *batches) Reclaim(_ context.Context, r activities.ReclaimRequest) (activities.ReclaimReport, error) {
	h.asked = append(h.asked, r.After)
	report := activities.ReclaimReport{Decisions: []activities.ReclaimDecision{{TaskID: r.After, Type: task.NodeProbe, Result: activities.ReclaimRequeued}}}
	if len(h.asked) == h.fail {
		return report, schema.NewError(schema.KindServiceUnavailable, "unavailable")
	}
	report.Next = map[string]string{"": "a", "a": "b", "b": ""}[r.After]
	if len(h.asked) == h.broken {
		return report, schema.NewError(schema.KindInternal, "cannot parse its row")
	}
	return report, nil
}

func TestReclaimSkipsUndecidable(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	h := &batches{broken: 2}
	a := &activities.Reclaim{Reclaimer: h}
	env.RegisterActivity(a)
	_, err := env.ExecuteActivity(a.ReclaimTasks)
	require.Equal(t, []string{"", "a", "b"}, h.asked)
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.True(t, app.NonRetryable(), "the run fails visibly")
}

func TestReclaimContinuesAfterLastBatch(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	h, observed := &batches{fail: 3}, 0
	a := &activities.Reclaim{Reclaimer: h, OnDecision: func(task.Type, activities.ReclaimResult) { observed++ }}
	env.RegisterActivity(a)
	_, err := env.ExecuteActivity(a.ReclaimTasks)
	require.Error(t, err)
	require.Equal(t, []string{"", "a", "b"}, h.asked)

	env.SetHeartbeatDetails(activities.ReclaimSummary{After: "b", Counts: map[activities.ReclaimResult]int{activities.ReclaimRequeued: 2}})
	v, err := env.ExecuteActivity(a.ReclaimTasks)
	require.NoError(t, err)
	var summary activities.ReclaimSummary
	require.NoError(t, v.Get(&summary))
	require.Equal(t, "b", h.asked[3])
	require.Len(t, h.asked, 4)
	require.Equal(t, 3, summary.Counts[activities.ReclaimRequeued])
	require.Equal(t, 4, observed, "a decision is counted where it is made")
}

// progress is a database that takes an operation's progress, or fails.
type progress struct {
	activities.Records
	advanced int
	fail     error
}

func (p *progress) Advance(context.Context, activities.Fence, string, activities.Advance) error {
	p.advanced++
	return p.fail
}

// TestEnqueueRecordsProgress: progress is recorded before its task is enqueued. What
// the next write repeats does not stop the task.
func TestEnqueueRecordsProgress(t *testing.T) {
	t.Parallel()
	unavailable := schema.NewError(schema.KindServiceUnavailable, "the database is slow")
	status := activities.Advance{Phase: "drain", Step: 2}
	change := activities.Advance{Phase: "facts", Step: 2, Instance: lifecycle.InstanceBootstrapping}
	for name, tc := range map[string]struct {
		advance  *activities.Advance
		fail     error
		advanced int
		kind     schema.Kind
	}{
		"no progress":               {nil, nil, 0, ""},
		"progress":                  {&status, nil, 1, ""},
		"a status that can wait":    {&status, unavailable, 1, ""},
		"a change of the node":      {&change, unavailable, 1, schema.KindServiceUnavailable},
		"an operation without node": {&status, schema.NewError(schema.KindFenced, "op_seq 8 holds the node"), 1, schema.KindFenced},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestActivityEnvironment()
			q, p := fresh(), &progress{fail: tc.fail}
			a := &activities.Task{Records: p, Tasks: q, NewTasks: activities.TaskSigner{Signer: q, Sets: q, Env: "test"}}
			env.RegisterActivity(a)
			for range 2 { // the second run finds the task
				_, err := env.ExecuteActivity(a.EnqueueNodeTask, activities.EnqueueInput{Progress: tc.advance, Task: activities.TaskSpec{Step: "s"}})
				if tc.kind == "" {
					require.NoError(t, err)
					require.Len(t, q.enqueued, 1)
					continue
				}
				require.Equal(t, tc.kind, activities.Typed(err).Kind)
				require.Empty(t, q.enqueued)
			}
			require.Equal(t, 2*tc.advanced, p.advanced)
		})
	}
}
