package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
)

// parkedCordon is a drain that parked in its first phase for hours, and what its run
// passes on.
func parkedCordon(t *testing.T) (w *world, in lifecycle.OperationInput, c *Carried) {
	t.Helper()
	w = newWorld(lifecycle.NodeActive)
	w.silent[task.WorkloadCordon] = true
	b := setup(t, lifecycle.ActionDrain, w)
	b.at(3*time.Hour, func() { b.env.SetCurrentHistoryLength(maxEvents + 1) })
	in, c = b.renewed()
	return w, in, c
}

// parkedUncordon is the same for a canceled drain whose undo is parked.
func parkedUncordon(t *testing.T) (w *world, in lifecycle.OperationInput, c *Carried) {
	t.Helper()
	w = newWorld(lifecycle.NodeActive)
	w.open[task.WorkloadDrain] = true
	w.silent[task.WorkloadUncordon] = true
	b := setup(t, lifecycle.ActionDrain, w)
	b.decideAt(time.Minute, lifecycle.DecisionCancel)
	b.at(3*time.Hour, func() { b.env.SetCurrentHistoryLength(maxEvents + 1) })
	in, c = b.renewed()
	return w, in, c
}

// TestFirstTaskOfARenewal: what arrives in the first workflow task of the run that
// continues a parked operation is taken like later.
func TestFirstTaskOfARenewal(t *testing.T) {
	t.Parallel()
	decide := func(d lifecycle.Decision) func(b *bed) {
		return func(b *bed) {
			b.resolved = append(b.resolved, nil) // the run before may have taken decision-0
			b.decide(d, "because")
		}
	}
	stop := func(b *bed) { b.env.CancelWorkflow() }
	for name, c := range map[string]struct {
		parked func(t *testing.T) (*world, lifecycle.OperationInput, *Carried)
		send   func(b *bed)
		want   lifecycle.OperationState
	}{
		"a cancel of the run":              {parkedCordon, stop, lifecycle.OperationCanceled},
		"a cancel of the operation":        {parkedCordon, decide(lifecycle.DecisionCancel), lifecycle.OperationCanceled},
		"a retry":                          {parkedCordon, decide(lifecycle.DecisionRetry), lifecycle.OperationCompleted},
		"a skip":                           {parkedCordon, decide(lifecycle.DecisionSkip), lifecycle.OperationCompleted},
		"an event":                         {parkedCordon, func(b *bed) { b.env.SignalWorkflow(lifecycle.SignalAgent, lifecycle.AgentEvent{}) }, lifecycle.OperationCompleted},
		"a cancel of the run in an undo":   {parkedUncordon, stop, lifecycle.OperationCanceled},
		"a retry in an undo":               {parkedUncordon, decide(lifecycle.DecisionRetry), lifecycle.OperationCanceled},
		"a skip in an undo":                {parkedUncordon, decide(lifecycle.DecisionSkip), lifecycle.OperationCanceled},
		"a cancel of the operation undone": {parkedUncordon, decide(lifecycle.DecisionCancel), lifecycle.OperationCanceled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, in, carried := c.parked(t)
			w.setSilent(task.WorkloadCordon, false)
			w.setSilent(task.WorkloadUncordon, false)
			b := setup(t, lifecycle.ActionDrain, w)
			b.env.SetStartTime(carried.Status.Operation.Stuck.Since.Add(4 * time.Hour))
			b.at(0, func() { c.send(b) })
			st, err := b.continued(in, carried)
			if c.want == lifecycle.OperationCanceled {
				require.ErrorContains(t, err, "canceled")
				require.Equal(t, lifecycle.NodeActive, w.finished.Node)
			} else {
				require.NoError(t, err)
				require.Equal(t, c.want, st.Operation.Status)
			}
			require.Equal(t, c.want, w.finished.Status)
			for _, err := range b.resolved {
				if name == "a cancel of the operation undone" && err != nil {
					require.Equal(t, "decision_unfit", failureOf(err).Reason)
					continue
				}
				require.NoError(t, err)
			}
		})
	}
}

// TestFirstTaskOfARenewalOnAServer: the same on a real server. No worker runs until the
// first workflow task of the continuing run has a decision or a cancel.
func TestFirstTaskOfARenewalOnAServer(t *testing.T) {
	for name, send := range map[string]func(r *recorder) (answer <-chan error){
		"a cancel of the run": func(r *recorder) <-chan error {
			done := make(chan error, 1)
			done <- r.SDK().CancelWorkflow(r.t.Context(), r.op.WorkflowID, "")
			return done
		},
		"a decision": func(r *recorder) <-chan error { return r.resolveInBackground(lifecycle.DecisionCancel) },
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // one worker on one task queue at a time
			w, in, carried := parkedCordon(t)
			w.setSilent(task.WorkloadUncordon, false)
			r, _ := onServer(t, w)
			r.op.WorkflowID = lifecycle.WorkflowID(in.Action, in.Host, in.NodeID)
			r.op.OperationID = in.OperationID
			ctx, cancel := context.WithTimeout(t.Context(), harness.Timeout)
			defer cancel()
			r.start(in, carried)
			answer := send(r)
			defer r.startWorker()()
			st, err := r.Operations.Result(ctx, r.op.WorkflowID, r.op.RunID)
			require.NoError(t, err)
			require.NoError(t, <-answer)
			require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
			require.Equal(t, lifecycle.NodeActive, w.finished.Node)
			for _, e := range r.keep("").GetEvents() {
				require.Nil(t, e.GetWorkflowTaskFailedEventAttributes(), "a workflow task failed")
			}
		})
	}
}

// TestDecisionAndRenewal: a decision that arrives in the workflow task in which the parked
// operation would continue as a new run is taken by the old run, which completes. One that
// arrives later is taken by the new run.
//
// The server keeps a decision that no worker has accepted in memory. If it loses it, as when a busy
// machine is late with a write, the client sends the decision again, and it arrives later: then the
// attempt shows nothing about the workflow task.
func TestDecisionAndRenewal(t *testing.T) {
	for name, end := range map[string]enumspb.EventType{
		"in its workflow task": enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
		"after it":             enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // one worker on one task queue at a time
			ended := decideAtRenewal(t, end)
			for range 4 {
				if ended == end {
					break
				}
				ended = decideAtRenewal(t, end)
			}
			require.Equal(t, end, ended)
		})
	}
}

// decideAtRenewal sends a decision to a run that continues as a new one in its next workflow task:
// before that task if the run should complete, and otherwise after it. It returns how the run ended.
func decideAtRenewal(t *testing.T, end enumspb.EventType) enumspb.EventType {
	t.Helper()
	w := newWorld(lifecycle.NodeActive)
	fails(task.WorkloadCordon)(w)
	r, _ := onServer(t, w)
	ctx, cancel := context.WithTimeout(t.Context(), 2*harness.Timeout) // thousands of signals
	defer cancel()
	r.growToRenewal(ctx)
	first := r.op.RunID
	require.NotEmpty(t, first)
	last := func() enumspb.EventType {
		r.op.RunID = first
		events := r.keep("").GetEvents()
		require.Greater(t, len(events), maxEvents)
		return events[len(events)-1].GetEventType()
	}
	var answer <-chan error
	if end == enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED {
		answer = r.resolveInBackground(lifecycle.DecisionSkip)
		defer r.startWorker()()
	} else {
		defer r.startWorker()()
		harness.Eventually(t, "the operation continues as a new run", func() bool { return last() == end })
		answer = r.resolveInBackground(lifecycle.DecisionSkip)
	}
	require.NoError(t, <-answer, "a decision that the run leaves in its last workflow task is rejected")
	require.Equal(t, []lifecycle.Decision{lifecycle.DecisionSkip}, w.decisions)
	st, err := r.Operations.Result(ctx, r.op.WorkflowID, "")
	require.NoError(t, err)
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
	return last()
}

// growToRenewal parks a drain, stops its worker, and sends as many signals as a run may have
// events.
func (r *recorder) growToRenewal(ctx context.Context) {
	r.t.Helper()
	stop := r.startWorker()
	r.submit(lifecycle.ActionDrain)
	r.until(lifecycle.OperationParked)
	stop()
	var group errgroup.Group
	group.SetLimit(16)
	for range maxEvents {
		group.Go(func() error { return r.NodeTasks.SignalAgent(ctx, r.op.WorkflowID, lifecycle.AgentEvent{}) })
	}
	require.NoError(r.t, group.Wait())
}
