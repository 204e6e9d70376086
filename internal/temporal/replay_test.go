package temporal

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// waits waits for the signal "end" after a short timer, and differs does another thing
// first.
func waits(ctx workflow.Context) error {
	if err := workflow.Sleep(ctx, time.Millisecond); err != nil {
		return err
	}
	workflow.GetSignalChannel(ctx, "end").Receive(ctx, nil)
	return nil
}

func differs(ctx workflow.Context) error {
	workflow.SideEffect(ctx, func(workflow.Context) any { return 1 })
	return waits(ctx)
}

// TestReplay replays open and ended runs with the same workflows, with a planted
// nondeterminism, and without one of the workflows.
func TestReplay(t *testing.T) {
	t.Parallel()
	c, err := Dial(Config{Address: server.Address(t), Namespace: "t-" + schema.NewID()})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	ctx := t.Context()
	// No schedules: their runs would be open, too.
	require.NoError(t, c.Installation.ensureNamespace(ctx))
	require.NoError(t, c.Installation.ensureAttributes(ctx))
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{})
	for _, name := range []string{"A", "B"} {
		w.RegisterWorkflowWithOptions(waits, workflow.RegisterOptions{Name: name})
	}
	require.NoError(t, w.Start())
	stop := sync.OnceFunc(w.Stop)
	defer stop()
	start := func(name string) client.WorkflowRun {
		run, err := c.sdk.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue}, name)
		require.NoError(t, err)
		return run
	}
	var open []client.WorkflowRun
	for range 3 {
		open = append(open, start("A"))
	}
	b, ended := start("B"), start("A")
	require.NoError(t, c.sdk.SignalWorkflow(ctx, ended.GetID(), "", "end", nil))
	require.NoError(t, ended.Get(ctx, nil))
	same := map[string]any{"A": waits, "B": waits}
	all := ReplayOptions{AllOpen: true, Closed: 10}
	harness.Eventually(t, "all timers fired, and the runs are listed", func() bool {
		for _, run := range append(open, b) {
			d, err := c.sdk.DescribeWorkflowExecution(ctx, run.GetID(), "")
			if err != nil || d.GetWorkflowExecutionInfo().GetHistoryLength() < 8 {
				return false
			}
		}
		r, err := c.Replays.Replay(ctx, same, all)
		require.NoError(t, err)
		require.True(t, r.OK(), "%+v", r)
		return r.Open == 4 && r.Closed == 1
	})

	r, err := c.Replays.Replay(ctx, map[string]any{"A": differs, "B": waits}, all)
	require.NoError(t, err)
	require.False(t, r.OK())
	require.Equal(t, 1, r.Open)
	require.Len(t, r.Differing, 4, "three open runs and the ended one")
	for _, d := range r.Differing {
		require.Equal(t, "A", d.Type)
		require.Contains(t, d.Reason, "TMPRL1100", "the SDK's code of a nondeterminism")
		require.NotContains(t, d.Reason, "\n")
		require.NotEmpty(t, d.WorkflowID)
		require.NotEmpty(t, d.RunID)
	}

	r, err = c.Replays.Replay(ctx, map[string]any{"A": waits}, ReplayOptions{AllOpen: true})
	require.NoError(t, err)
	require.Equal(t, 3, r.Open)
	require.Equal(t, []ReplayedRun{{WorkflowID: b.GetID(), RunID: b.GetRunID(), Type: "B", Open: true,
		Reason: "this version has no workflow B"}}, r.Differing)

	// The sample, one ended run of each type, and a run without a workflow task.
	stop()
	start("A")
	harness.Eventually(t, "the run is listed", func() bool {
		r, err = c.Replays.Replay(ctx, same, ReplayOptions{Closed: 1})
		require.NoError(t, err)
		return r.Open == 5
	})
	require.Equal(t, ReplayReport{Open: 5, Closed: 1, Differing: []ReplayedRun{}, Unchecked: []ReplayedRun{}}, r)
}

// waitsLong waits for a long timer, and waitsLongAfter does another thing in the last task of
// the same history.
func waitsLong(ctx workflow.Context) error { return workflow.Sleep(ctx, time.Hour) }

func waitsLongAfter(ctx workflow.Context) error {
	timer := workflow.NewTimer(ctx, time.Hour)
	workflow.SideEffect(ctx, func(workflow.Context) any { return 1 })
	return timer.Get(ctx, nil)
}

// TestReplayUnfinishedTask replays open runs with events that no workflow task has
// handled, or that one handles right now: only completed tasks are compared.
func TestReplayUnfinishedTask(t *testing.T) {
	c := connect(t)
	ctx := t.Context()
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(waitsLong, workflow.RegisterOptions{Name: "A"})
	require.NoError(t, w.Start())
	stop := sync.OnceFunc(w.Stop)
	defer stop()
	started, err := c.sdk.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue}, "A")
	require.NoError(t, err)
	run := ReplayedRun{WorkflowID: started.GetID(), RunID: started.GetRunID(), Type: "A", Open: true}
	same, err := newReplay(c.connection, map[string]any{"A": waitsLong}, ReplayOptions{})
	require.NoError(t, err)
	other, err := newReplay(c.connection, map[string]any{"A": waitsLongAfter}, ReplayOptions{})
	require.NoError(t, err)
	var h *historypb.History
	last := func() enumspb.EventType { return h.GetEvents()[len(h.GetEvents())-1].GetEventType() }
	compare := func() {
		t.Helper()
		h, err = same.history(ctx, run)
		require.NoError(t, err)
		require.NoError(t, same.replay(run, h))
		require.ErrorContains(t, other.replay(run, h), "TMPRL1100")
	}
	harness.Eventually(t, "the timer runs", func() bool {
		h, err = same.history(ctx, run)
		return err == nil && last() == enumspb.EVENT_TYPE_TIMER_STARTED
	})
	compare()
	stop()
	require.NoError(t, c.sdk.SignalWorkflow(ctx, started.GetID(), "", "end", nil))
	require.NoError(t, c.sdk.CancelWorkflow(ctx, started.GetID(), ""))
	compare()
	for _, next := range []enumspb.EventType{enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED,
		enumspb.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT, enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED} {
		h.Events = append(h.Events, &historypb.HistoryEvent{EventId: int64(len(h.GetEvents()) + 1), EventType: next})
		require.NoError(t, same.replay(run, h), next)
		require.ErrorContains(t, other.replay(run, h), "TMPRL1100", next)
	}
}

// TestReplayWithoutTemporal: histories that cannot be read are reported, and a list that
// cannot be read is an error.
func TestReplayWithoutTemporal(t *testing.T) {
	t.Parallel()
	c, err := Dial(Config{Address: "127.0.0.1:1", Namespace: "none"})
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = c.Replays.Replay(ctx, nil, ReplayOptions{AllOpen: true})
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err), "%v", err)

	r := &replay{connection: c.connection}
	run := ReplayedRun{WorkflowID: "w", RunID: "r", Type: "A", Open: true}
	for range maxUnchecked - 1 {
		require.NoError(t, r.check(ctx, run))
	}
	require.False(t, r.report.OK())
	require.Contains(t, r.report.Unchecked[0].Reason, "Temporal at 127.0.0.1:1 does not respond")
	require.Error(t, r.check(ctx, run), "too many")
}
