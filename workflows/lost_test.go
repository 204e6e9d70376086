package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// lost is the failure of an activity whose task was lost.
func lost() error {
	e := task.NoReport(task.Lost, 1)
	f := e.Failure()
	return temporal.NewApplicationErrorWithOptions(f.Message, string(f.Kind),
		temporal.ApplicationErrorOptions{NonRetryable: true, Details: []any{schema.ErrorInfo{Reason: f.Reason}}})
}

// lostOnce makes the drain's task lost at its first try, and runs then
// after it.
func lostOnce(w *world, then func(activities.TaskSpec) (task.Result, error)) {
	tries := 0
	w.on[task.WorkloadDrain] = func(spec activities.TaskSpec) (task.Result, error) {
		if tries++; tries == 1 {
			return task.Result{}, lost()
		}
		return then(spec)
	}
}

func drained(activities.TaskSpec) (task.Result, error) {
	return succeeded(task.DrainResult{Stopped: []string{"job-1"}}), nil
}

func (b *bed) returnTask(after time.Duration, operationID, step string) {
	b.env.RegisterDelayedCallback(func() {
		b.env.SignalWorkflow(lifecycle.SignalAgent, lifecycle.AgentEvent{Event: lifecycle.EventTaskReturned, NodeID: testNode,
			Incarnation: 1, OperationID: operationID, Step: step})
	}, after)
}

func TestLostTask(t *testing.T) {
	t.Parallel()

	t.Run("parks for an operator and resumes when the task returns", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		lostOnce(w, drained)
		b := setup(t, lifecycle.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			st := b.status()
			require.Equal(t, lifecycle.OperationParked, st.Operation.Status)
			require.Equal(t, lifecycle.ReasonTaskLost, st.Operation.Stuck.Reason)
			require.Equal(t, lifecycle.AttentionOperator, st.Operation.Stuck.WaitingOn)
			require.Equal(t, "gpuaas task resume "+lifecycle.TaskID("op-1", "workload.drain")+" --reason TEXT", st.Operation.Stuck.Next)
		}, time.Hour)
		b.returnTask(2*time.Hour, "op-1", "workload.cordon")
		b.returnTask(3*time.Hour, "op-0", "workload.drain")
		b.env.RegisterDelayedCallback(func() {
			require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status, "events of other tasks change nothing")
		}, 4*time.Hour)
		b.returnTask(5*time.Hour, "op-1", "workload.drain")
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Equal(t, 2, st.Operation.Phases[1].Attempt)
		require.Equal(t, lifecycle.PhaseCompleted, st.Operation.Phases[1].State)
		require.Equal(t, []string{"claim", "task workload.cordon", "advance drain", "task workload.drain", "park drain", "confirm drain",
			"advance drain", "task workload.drain", "finish completed"}, w.story(), "the same step, nothing voided")
	})

	t.Run("resumes when the task returned before its failure", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		b := setup(t, lifecycle.ActionDrain, w)
		lostOnce(w, drained)
		b.returnTask(0, "op-1", "workload.drain")
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Len(t, w.parks, 1)
	})

	t.Run("may be lost again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		tries := 0
		w.on[task.WorkloadDrain] = func(spec activities.TaskSpec) (task.Result, error) {
			if tries++; tries < 3 {
				return task.Result{}, lost()
			}
			return drained(spec)
		}
		b := setup(t, lifecycle.ActionDrain, w)
		b.returnTask(time.Hour, "op-1", "workload.drain")
		b.env.RegisterDelayedCallback(func() {
			require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status, "an event counts once")
		}, 2*time.Hour)
		b.returnTask(3*time.Hour, "op-1", "workload.drain")
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Len(t, w.parks, 2)
	})

	t.Run("is replaced with a new task by a retry, and by no extend", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		lostOnce(w, drained)
		b := setup(t, lifecycle.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			for _, o := range b.status().Operation.Stuck.Options {
				require.NotEqual(t, lifecycle.DecisionExtend, o.Decision)
			}
			b.decide(lifecycle.DecisionExtend, "it needs more time")
		}, time.Minute)
		b.decideAt(time.Hour, lifecycle.DecisionRetry)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, "decision_unfit", failureOf(b.resolved[0]).Reason)
		require.NoError(t, b.resolved[1])
		require.Contains(t, w.story(), "void")
		require.Contains(t, w.story(), "task workload.drain#2")
		require.Equal(t, int64(2), w.specs[2].Attempt)
	})

	t.Run("that an operator cancels parks with that reason, and a cancel restores the node", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		lostOnce(w, func(activities.TaskSpec) (task.Result, error) {
			f := task.Result{Status: task.Canceled, Message: "canceled: the disk is gone"}.Failure()
			return task.Result{}, temporal.NewApplicationErrorWithOptions(f.Message, string(f.Kind),
				temporal.ApplicationErrorOptions{NonRetryable: true, Details: []any{schema.ErrorInfo{Reason: f.Reason}}})
		})
		b := setup(t, lifecycle.ActionDrain, w)
		b.returnTask(time.Hour, "op-1", "workload.drain")
		b.env.RegisterDelayedCallback(func() {
			stuck := b.status().Operation.Stuck
			require.Equal(t, lifecycle.ReasonTaskCanceled, stuck.Reason)
			require.Equal(t, lifecycle.AttentionOperator, stuck.WaitingOn)
			require.Contains(t, stuck.Message, "the disk is gone")
			require.Equal(t, stuck.Command(lifecycle.DecisionRetry, lifecycle.ActionDrain, "gpu-17", "op-1"), stuck.Next)
		}, 2*time.Hour)
		b.decideAt(3*time.Hour, lifecycle.DecisionCancel)
		st := b.run()
		require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
		require.Equal(t, lifecycle.NodeActive, b.world.finished.Node)
	})
}

// TestLostEvent: the event that a lost task returned did not arrive. The operation reads
// the database every hour.
func TestLostEvent(t *testing.T) {
	t.Parallel()
	parked := func(t *testing.T, w *world, stored storedOutcome) *bed {
		t.Helper()
		lostOnce(w, drained)
		b := setup(t, lifecycle.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() { w.store("workload.drain", stored) }, 90*time.Minute)
		return b
	}
	for name, stored := range map[string]storedOutcome{
		"ended": {result: succeeded(task.DrainResult{Stopped: []string{"job-1"}})}, "runs": {open: true},
	} {
		t.Run("the operation continues if the task "+name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			b := parked(t, w, stored)
			b.env.RegisterDelayedCallback(func() {
				require.Equal(t, lifecycle.ReasonTaskLost, b.status().Operation.Stuck.Reason, "the next read is after two hours")
			}, 100*time.Minute)
			b.decideAt(3*time.Hour, lifecycle.DecisionCancel)
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			require.NotContains(t, w.story(), "void", "the same step")
		})
	}

	t.Run("the operation parks with the failure if the task failed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		b := parked(t, w, storedOutcome{err: final(schema.KindTaskFailed, "no luck")})
		b.env.RegisterDelayedCallback(func() {
			require.Equal(t, string(schema.KindTaskFailed), b.status().Operation.Stuck.Reason)
		}, 150*time.Minute)
		b.decideAt(3*time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Len(t, w.parks, 2)
	})

	for name, stored := range map[string]storedOutcome{
		"is lost": {err: lost()}, "is not in the database": {missing: true},
		"cannot be read": {err: activities.Fail(schema.NewError(schema.KindServiceUnavailable, "no database"))},
	} {
		t.Run("the operation stays parked if the task "+name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			b := parked(t, w, stored)
			b.env.RegisterDelayedCallback(func() {
				require.Equal(t, lifecycle.ReasonTaskLost, b.status().Operation.Stuck.Reason)
				w.store("workload.drain", storedOutcome{open: true})
			}, 5*time.Hour+30*time.Minute)
			b.decideAt(7*time.Hour, lifecycle.DecisionCancel)
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			require.Len(t, w.parks, 1)
		})
	}

	t.Run("the run ends if the operation has ended", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		st := parked(t, w, storedOutcome{err: final(schema.KindFenced, "superseded")}).run()
		require.Equal(t, lifecycle.OperationFailed, st.Operation.Status)
		require.Equal(t, outcomeSuperseded, st.Operation.Outcome)
	})

	t.Run("a task that was lost too often waits for a person", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		tries := 0
		w.on[task.WorkloadDrain] = func(activities.TaskSpec) (task.Result, error) { tries++; return task.Result{}, lost() }
		b := setup(t, lifecycle.ActionDrain, w)
		for i := range 2 * maxReturns {
			b.env.RegisterDelayedCallback(func() { w.store("workload.drain", storedOutcome{open: true}) }, time.Duration(2*i+1)*time.Hour)
		}
		b.decideAt(48*time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, maxReturns+1, tries)
	})
}

// store replaces the record of a step's task.
func (w *world) store(step string, o storedOutcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outcomes[step] = o
}

func TestTaskSpec(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	b := setup(t, lifecycle.ActionDrain, w)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Len(t, w.specs, 2)
	for _, s := range w.specs {
		require.Equal(t, lifecycle.NodeDraining, s.Expect.NodeState)
		require.Equal(t, int64(1), s.Attempt)
	}
	w = newWorld(lifecycle.NodeActive)
	b = setup(t, lifecycle.ActionProvision, w)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Empty(t, w.specs[0].Expect.NodeState, "missing heartbeats may change it meanwhile")
}

// TestHeartbeatTimeoutIsRetried: the retry has the same step and finds its row.
func TestHeartbeatTimeoutIsRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	tries := 0
	w.on[task.WorkloadDrain] = func(spec activities.TaskSpec) (task.Result, error) {
		if tries++; tries < 4 {
			return task.Result{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_HEARTBEAT, nil)
		}
		return drained(spec)
	}
	b := setup(t, lifecycle.ActionDrain, w)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Equal(t, 4, tries)
	require.Empty(t, w.parks)
	require.Equal(t, task.HeartbeatTimeout, callTask.HeartbeatTimeout)
}
