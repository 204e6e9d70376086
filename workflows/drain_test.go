package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

const anything = mock.Anything

func TestDrain(t *testing.T) {
	t.Parallel()

	t.Run("cordons, ends the work and records", func(t *testing.T) {
		t.Parallel()
		b := setup(t, schema.ActionDrain, newWorld(schema.NodeActive))
		st := b.run()
		require.Equal(t, schema.OperationCompleted, st.Operation.Status)
		require.Equal(t, schema.NodeDrained, st.Node.State)
		require.Equal(t, schema.NodeDrained, b.world.finished.Node)
		require.Equal(t, []string{"claim", "task workload.cordon", "advance drain", "task workload.drain", "finish completed"}, b.world.story())
		require.Equal(t, int64(7), b.answer.OpSeq)
	})

	t.Run("only cordons when asked to", func(t *testing.T) {
		t.Parallel()
		b := setup(t, schema.ActionDrain, newWorld(schema.NodeActive))
		b.in.Options.CordonOnly = true
		st := b.run()
		require.Equal(t, schema.OperationCompleted, st.Operation.Status)
		require.Equal(t, schema.NodeActive, b.world.finished.Node)
		require.NotContains(t, b.world.story(), "task workload.drain")
	})

	t.Run("refuses an illegal state at once and completes as rejected", func(t *testing.T) {
		t.Parallel()
		b := setup(t, schema.ActionDrain, newWorld(schema.NodeRetired))
		st := b.run()
		require.Equal(t, schema.OperationRejected, st.Operation.Status)
		require.Equal(t, schema.KindInvalidRequest, b.kindOfRefusal())
		require.ErrorContains(t, b.refusal, "retired")
		require.Nil(t, b.world.finished)
	})

	t.Run("work that does not end parks with its names, force kills it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.on[schema.TaskWorkloadDrain] = func(spec schema.TaskSpec) (schema.TaskResult, error) {
			var p schema.DrainParams
			if err := (schema.TaskResult{Output: spec.Params}).Decode(&p); err != nil || !p.Force {
				return succeeded(schema.DrainResult{Blocked: []schema.Blocker{{Workload: "job-1", Reason: "ignores SIGTERM"}}}), err
			}
			return succeeded(schema.DrainResult{Stopped: []string{"job-1"}}), nil
		}
		b := setup(t, schema.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			st := b.status()
			require.Equal(t, schema.OperationParked, st.Operation.Status)
			require.Equal(t, reasonDrainBlocked, st.Operation.Stuck.Reason)
			require.Contains(t, st.Operation.Stuck.Message, "job-1 (ignores SIGTERM)")
			require.Equal(t, "gpuaas op force gpu-17 --reason TEXT", st.Operation.Stuck.Next)
			require.Equal(t, schema.AttentionOperator, st.Operation.Stuck.Attention)
			b.decide(schema.DecisionForce, "the owner agreed")
		}, time.Hour)
		st := b.run()
		require.Equal(t, schema.OperationCompleted, st.Operation.Status)
		require.Equal(t, []error{nil}, b.resolved)
		require.Equal(t, schema.PhaseForced, st.Operation.Phases[1].State)
		require.Equal(t, 2, st.Operation.Phases[1].Attempt)
		require.Contains(t, w.story(), "task workload.drain#2")
	})

	t.Run("extend gives the work its time once more", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		tries := 0
		w.on[schema.TaskWorkloadDrain] = func(schema.TaskSpec) (schema.TaskResult, error) {
			if tries++; tries == 1 {
				return succeeded(schema.DrainResult{Blocked: []schema.Blocker{{Workload: "job-1", Reason: "checkpointing"}}}), nil
			}
			return succeeded(schema.DrainResult{Stopped: []string{"job-1"}}), nil
		}
		b := setup(t, schema.ActionDrain, w)
		b.decideAt(time.Hour, schema.DecisionExtend)
		require.Equal(t, schema.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, schema.PhaseCompleted, b.status().Operation.Phases[1].State)
		require.True(t, w.specs[2].Deadline.After(w.specs[1].Deadline))
	})

	t.Run("a silent agent parks after the phase's budget, retry gives it a new task", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.silent[schema.TaskWorkloadCordon] = true
		b := setup(t, schema.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			st := b.status()
			require.Equal(t, string(schema.KindAgentSilent), st.Operation.Stuck.Reason)
			require.Equal(t, schema.AttentionAgent, st.Operation.Stuck.Attention)
			w.mu.Lock()
			w.silent[schema.TaskWorkloadCordon] = false
			w.mu.Unlock()
			b.decide(schema.DecisionRetry, "rebooted it")
		}, time.Hour)
		require.Equal(t, schema.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, []string{"claim", "task workload.cordon", "park cordon", "decide retry", "void",
			"task workload.cordon#2", "advance drain", "task workload.drain#2", "finish completed"}, w.story())
	})

	t.Run("a task the node refuses parks with the node's reason", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindTaskRefused, "bad signature")
		b := setup(t, schema.ActionDrain, w)
		b.decideAt(time.Minute, schema.DecisionSkip)
		st := b.run()
		require.Equal(t, schema.OperationCompleted, st.Operation.Status)
		require.Equal(t, schema.PhaseSkipped, st.Operation.Phases[0].State)
		require.Equal(t, "because", st.Operation.Phases[0].Reason)
		require.Equal(t, "task_refused", w.parks[0].Reason)
		require.Equal(t, "bad signature", w.parks[0].Message)
	})

	t.Run("cancel in the middle lifts the cordon and restores the state at entry", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeQuarantined)
		w.open[schema.TaskWorkloadDrain] = true
		b := setup(t, schema.ActionDrain, w)
		b.decideAt(time.Minute, schema.DecisionCancel)
		st := b.run()
		require.Equal(t, schema.OperationCancelled, st.Operation.Status)
		require.Equal(t, schema.NodeQuarantined, w.finished.Node)
		require.Equal(t, []error{nil}, b.resolved)
		require.Equal(t, []string{"claim", "task workload.cordon", "advance drain", "task workload.drain", "decide cancel",
			"void", "advance undo", "task workload.uncordon", "finish cancelled"}, w.story())
	})

	t.Run("cancel leaves a cordon that stood before", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.wasCordon = true
		w.open[schema.TaskWorkloadDrain] = true
		b := setup(t, schema.ActionDrain, w)
		b.decideAt(time.Minute, schema.DecisionCancel)
		require.Equal(t, schema.OperationCancelled, b.run().Operation.Status)
		require.NotContains(t, w.story(), "task workload.uncordon")
	})

	t.Run("cancelling the run in the Web UI has the same effect", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.open[schema.TaskWorkloadDrain] = true
		b := setup(t, schema.ActionDrain, w)
		b.env.RegisterDelayedCallback(b.env.CancelWorkflow, time.Minute)
		st := b.run()
		require.Equal(t, schema.OperationCancelled, st.Operation.Status)
		require.Equal(t, schema.NodeActive, w.finished.Node)
		require.Contains(t, w.story(), "task workload.uncordon")
	})

	t.Run("an undo that fails parks as compensation and may be skipped", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.open[schema.TaskWorkloadDrain] = true
		w.silent[schema.TaskWorkloadUncordon] = true
		b := setup(t, schema.ActionDrain, w)
		b.decideAt(time.Minute, schema.DecisionCancel)
		b.env.RegisterDelayedCallback(func() {
			require.Equal(t, schema.AttentionCompensation, b.status().Operation.Stuck.Attention)
			b.decide(schema.DecisionSkip, "the node is dead")
		}, time.Hour)
		require.Equal(t, schema.OperationCancelled, b.run().Operation.Status)
		require.Equal(t, schema.NodeActive, w.finished.Node)
	})

	t.Run("force in the middle replaces the running task", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.open[schema.TaskWorkloadDrain] = true
		b := setup(t, schema.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			w.mu.Lock()
			w.open[schema.TaskWorkloadDrain] = false
			w.mu.Unlock()
			b.decide(schema.DecisionForce, "now")
		}, time.Minute)
		require.Equal(t, schema.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, []string{"claim", "task workload.cordon", "advance drain", "task workload.drain", "decide force",
			"void", "advance drain", "task workload.drain#2", "finish completed"}, w.story())
	})

	t.Run("decisions that do not fit are refused and change nothing", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.open[schema.TaskWorkloadCordon] = true
		b := setup(t, schema.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			b.decide(schema.DecisionRetry, "not parked")
			b.decide(schema.DecisionExtend, "not parked")
			b.decide(schema.DecisionForce, "no force here")
			b.decide("explode", "unknown")
			b.decide(schema.DecisionSkip, " ")
			b.decide(schema.DecisionCancel, "enough")
		}, time.Minute)
		require.Equal(t, schema.OperationCancelled, b.run().Operation.Status)
		for _, err := range b.resolved[:5] {
			require.Equal(t, schema.KindInvalidRequest, kindOf(err))
		}
		require.NoError(t, b.resolved[5])
		require.Equal(t, []schema.Decision{schema.DecisionCancel}, w.decisions)
	})

	t.Run("skip and force say why, the others may", func(t *testing.T) {
		t.Parallel()
		w := newWorld(schema.NodeActive)
		w.silent[schema.TaskWorkloadDrain] = true
		b := setup(t, schema.ActionDrain, w)
		for i, d := range []schema.Decision{schema.DecisionForce, schema.DecisionExtend, schema.DecisionRetry,
			schema.DecisionSkip, schema.DecisionCancel} {
			b.env.RegisterDelayedCallback(func() { b.decide(d, "") }, time.Duration(i+1)*time.Hour)
		}
		require.Equal(t, schema.OperationCancelled, b.run().Operation.Status)
		for _, i := range []int{0, 3} {
			require.Equal(t, "reason_missing", failureOf(b.resolved[i]).Reason)
		}
		require.Equal(t, []error{nil, nil, nil}, []error{b.resolved[1], b.resolved[2], b.resolved[4]})
		require.Equal(t, []schema.Decision{schema.DecisionExtend, schema.DecisionRetry, schema.DecisionCancel}, w.decisions)
	})
}
