package workflows

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const anything = mock.Anything

func TestDrain(t *testing.T) {
	t.Parallel()

	t.Run("cordons, ends the work and records", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionDrain, newWorld(lifecycle.NodeActive))
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Equal(t, lifecycle.NodeDrained, st.Node.State)
		require.Equal(t, lifecycle.NodeDrained, b.world.finished.Node)
		require.Equal(t, []string{"claim", "task workload.cordon", "advance drain", "task workload.drain", "finish completed"}, b.world.story())
		require.Equal(t, int64(7), b.answer.OpSeq)
	})

	t.Run("only cordons when asked to", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionDrain, newWorld(lifecycle.NodeActive))
		b.in.Options.CordonOnly = true
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Equal(t, lifecycle.NodeActive, b.world.finished.Node)
		require.NotContains(t, b.world.story(), "task workload.drain")
	})

	t.Run("rejects an illegal state and completes as rejected", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionDrain, newWorld(lifecycle.NodeRetired))
		st := b.run()
		require.Equal(t, lifecycle.OperationRejected, st.Operation.Status)
		require.Equal(t, schema.KindInvalidRequest, b.kindOfRefusal())
		require.ErrorContains(t, b.refusal, "retired")
		require.Nil(t, b.world.finished)
	})

	t.Run("work that does not end parks with its names, force kills it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.on[task.WorkloadDrain] = func(spec activities.TaskSpec) (task.Result, error) {
			var p task.DrainParams
			if err := (task.Result{Output: spec.Params}).Decode(&p); err != nil || !p.Force {
				return succeeded(task.DrainResult{Blocked: []task.Blocker{{Workload: "job-1", Reason: "ignores SIGTERM"}}}), err
			}
			return succeeded(task.DrainResult{Stopped: []string{"job-1"}}), nil
		}
		b := setup(t, lifecycle.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			st := b.status()
			require.Equal(t, lifecycle.OperationParked, st.Operation.Status)
			require.Equal(t, lifecycle.ReasonDrainBlocked, st.Operation.Stuck.Reason)
			require.Contains(t, st.Operation.Stuck.Message, "job-1 (`ignores SIGTERM`)")
			require.Equal(t, st.Operation.Stuck.Command(lifecycle.DecisionExtend, lifecycle.ActionDrain, "gpu-17", "op-1"), st.Operation.Stuck.Next)
			require.Equal(t, lifecycle.AttentionOperator, st.Operation.Stuck.WaitingOn)
			b.decide(lifecycle.DecisionForce, "the owner agreed")
		}, time.Hour)
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Equal(t, []error{nil}, b.resolved)
		require.Equal(t, lifecycle.PhaseForced, st.Operation.Phases[1].State)
		require.Equal(t, 2, st.Operation.Phases[1].Attempt)
		require.Contains(t, w.story(), "task workload.drain#2")
	})

	t.Run("extend gives the work its time once more", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		tries := 0
		w.on[task.WorkloadDrain] = func(activities.TaskSpec) (task.Result, error) {
			if tries++; tries == 1 {
				return succeeded(task.DrainResult{Blocked: []task.Blocker{{Workload: "job-1", Reason: "checkpointing"}}}), nil
			}
			return succeeded(task.DrainResult{Stopped: []string{"job-1"}}), nil
		}
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Hour, lifecycle.DecisionExtend)
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Equal(t, lifecycle.PhaseCompleted, b.status().Operation.Phases[1].State)
		require.True(t, w.specs[2].Deadline.After(w.specs[1].Deadline))
		require.Len(t, b.answers, 1)
		answer, phase := b.answers[0].Operation, b.answers[0].Operation.Phases[1]
		require.Equal(t, lifecycle.OperationRunning, answer.Status)
		require.Nil(t, answer.Stuck)
		require.Equal(t, lifecycle.PhaseRunning, phase.State, "the answer shows the attempt that the decision started")
		require.Equal(t, 2, phase.Attempt)
		require.Equal(t, st.Operation.Phases[1].StartedAt, phase.StartedAt)
		require.Equal(t, &w.started, answer.StartedAt, "the start is the one that the claim recorded")
		require.Equal(t, &w.started, answer.Phases[0].StartedAt)
	})

	t.Run("a silent agent parks after the phase's budget, retry gives it a new task", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.silent[task.WorkloadCordon] = true
		b := setup(t, lifecycle.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			st := b.status()
			require.Equal(t, string(schema.KindAgentSilent), st.Operation.Stuck.Reason)
			require.Equal(t, lifecycle.AttentionAgent, st.Operation.Stuck.WaitingOn)
			w.mu.Lock()
			w.silent[task.WorkloadCordon] = false
			w.mu.Unlock()
			b.decide(lifecycle.DecisionRetry, "rebooted it")
		}, time.Hour)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		story := w.story()
		require.Equal(t, []string{"void", "decide retry", "advance cordon", "task workload.cordon#3", "advance drain",
			"task workload.drain#3", "finish completed"}, story[len(story)-7:])
	})

	t.Run("a task the node refuses parks with the node's reason", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindTaskRefused, "bad signature")
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Minute, lifecycle.DecisionSkip)
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Equal(t, lifecycle.PhaseSkipped, st.Operation.Phases[0].State)
		require.Equal(t, "because", st.Operation.Phases[0].Reason)
		require.Equal(t, "task_refused", w.parks[0].Reason)
		require.Equal(t, "bad signature", w.parks[0].Message)
	})

	t.Run("cancel in the middle lifts the cordon and restores the state at entry", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeQuarantined)
		w.open[task.WorkloadDrain] = true
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Minute, lifecycle.DecisionCancel)
		st := b.run()
		require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
		require.Equal(t, lifecycle.NodeQuarantined, w.finished.Node)
		require.Equal(t, []error{nil}, b.resolved)
		require.Equal(t, []string{"claim", "task workload.cordon", "advance drain", "task workload.drain", "decide cancel",
			"void", "advance undo-cordon", "task workload.uncordon", "finish cancelled"}, w.story())
	})

	t.Run("cancel keeps a cordon that the operation did not set", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.wasCordon = true
		w.open[task.WorkloadDrain] = true
		var params task.Params
		w.on[task.WorkloadUncordon] = func(spec activities.TaskSpec) (task.Result, error) {
			params = spec.Params
			return succeeded(task.CordonResult{Cordoned: true, Was: true}), nil
		}
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Minute, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.JSONEq(t, `{"keep_cordon":true}`, string(params))
	})

	t.Run("canceling the run in the Web UI has the same effect", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.open[task.WorkloadDrain] = true
		b := setup(t, lifecycle.ActionDrain, w)
		b.env.RegisterDelayedCallback(b.env.CancelWorkflow, time.Minute)
		st := b.run()
		require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
		require.Equal(t, lifecycle.NodeActive, w.finished.Node)
		require.Contains(t, w.story(), "task workload.uncordon")
	})

	t.Run("an undo that fails parks as compensation and may be skipped", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.open[task.WorkloadDrain] = true
		w.silent[task.WorkloadUncordon] = true
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Minute, lifecycle.DecisionCancel)
		b.env.RegisterDelayedCallback(func() {
			require.Equal(t, lifecycle.AttentionCompensation, b.status().Operation.Stuck.WaitingOn)
			b.decide(lifecycle.DecisionSkip, "the node is dead")
		}, time.Hour)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, lifecycle.NodeActive, w.finished.Node)
	})

	t.Run("force in the middle replaces the running task", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.open[task.WorkloadDrain] = true
		b := setup(t, lifecycle.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			w.mu.Lock()
			w.open[task.WorkloadDrain] = false
			w.mu.Unlock()
			b.decide(lifecycle.DecisionForce, "now")
		}, time.Minute)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, []string{"claim", "task workload.cordon", "advance drain", "task workload.drain", "void",
			"decide force", "advance drain", "task workload.drain#2", "finish completed"}, w.story())
	})

	t.Run("decisions that do not fit are refused and change nothing", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.open[task.WorkloadCordon] = true
		b := setup(t, lifecycle.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			b.decide(lifecycle.DecisionRetry, "not parked")
			b.decide(lifecycle.DecisionExtend, "not parked")
			b.decide(lifecycle.DecisionForce, "no force here")
			b.decide("explode", "unknown")
			b.decide(lifecycle.DecisionSkip, " ")
			b.decide(lifecycle.DecisionCancel, "enough")
		}, time.Minute)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		for _, err := range b.resolved[:5] {
			require.Equal(t, schema.KindInvalidRequest, kindOf(err))
		}
		require.NoError(t, b.resolved[5])
		require.Equal(t, []lifecycle.Decision{lifecycle.DecisionCancel}, w.decisions)
	})

	t.Run("every decision needs a reason", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.silent[task.WorkloadDrain] = true
		b := setup(t, lifecycle.ActionDrain, w)
		all := lifecycle.Decisions()
		for i, d := range all {
			b.env.RegisterDelayedCallback(func() { b.decide(d, " ") }, time.Duration(i+1)*time.Hour)
		}
		b.decideAt(time.Duration(len(all)+1)*time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		for i, d := range all {
			require.Equal(t, "reason_missing", failureOf(b.resolved[i]).Reason, d)
		}
		require.NoError(t, b.resolved[len(all)])
		require.Equal(t, []lifecycle.Decision{lifecycle.DecisionCancel}, w.decisions)
	})
}

// TestDecisionText: the reason and the name of a decision that was not sent by the API
// are one line each and bounded.
func TestDecisionText(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.open[task.WorkloadDrain] = true
	b := setup(t, lifecycle.ActionDrain, w)
	send := lifecycle.ResolveRequest{Decision: lifecycle.DecisionCancel, Reason: "because", By: "bob"}
	b.at(time.Minute, func() {
		for _, bad := range [][2]string{
			{strings.Repeat("é", wire.MaxReason+1), "bob"}, {"because\nNext: rm", "bob"},
			{"because", strings.Repeat("b", wire.MaxActor+1)}, {"because", "bob\x1b[2J"},
		} {
			r := send
			r.Reason, r.By = bad[0], bad[1]
			b.resolve(r)
		}
		long := send
		long.Via = strings.Repeat("v", maxVia+1)
		b.resolve(long)
		long.Via, long.RunID = "", strings.Repeat("r", maxRunID+1)
		b.resolve(long)
		send.Reason, send.By = strings.Repeat("é", wire.MaxReason), strings.Repeat("b", wire.MaxActor)
		b.resolve(send)
	})
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	for i, reason := range []string{"bad_reason", "bad_reason", "bad_by", "bad_by", "bad_via", "bad_run_id"} {
		require.Equal(t, schema.KindInvalidRequest, kindOf(b.resolved[i]))
		require.Equal(t, reason, failureOf(b.resolved[i]).Reason)
	}
	require.NoError(t, b.resolved[6])
	require.Equal(t, []lifecycle.Decision{lifecycle.DecisionCancel}, w.decisions)
}

// TestEnqueue: a task that cannot be enqueued is tried again within the phase's
// budget, and then parks the operation, which continues without a decision.
func TestEnqueue(t *testing.T) {
	t.Parallel()
	const call = "enqueue workload.cordon"
	for name, tc := range map[string]struct {
		heals time.Duration
		parks int
	}{
		// The test environment stops retrying after ten attempts; a server does not.
		"within the budget": {20 * time.Second, 0},
		"after the budget":  {30 * time.Minute, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.fail[call] = schema.NewError(schema.KindServiceUnavailable, "Vault is sealed")
			b := setup(t, lifecycle.ActionDrain, w)
			b.env.RegisterDelayedCallback(func() { w.heal(call) }, tc.heals)
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			require.Len(t, w.parks, tc.parks)
			for _, park := range w.parks {
				require.Equal(t, string(schema.KindServiceUnavailable), park.Reason)
				require.Equal(t, "Vault is sealed", park.Message)
				require.Equal(t, lifecycle.AttentionOperator, park.WaitingOn)
			}
		})
	}
}

// TestSilentDrain: a drain whose task is not done in time waits for the agent if the agent
// sends no heartbeats, and otherwise for the workloads.
func TestSilentDrain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		heartbeat time.Duration
		fail      error
		reason    string
		waitingOn lifecycle.Attention
	}{
		{time.Hour, nil, string(schema.KindAgentSilent), lifecycle.AttentionAgent},
		{-1, nil, string(schema.KindAgentSilent), lifecycle.AttentionAgent},
		{time.Second, nil, lifecycle.ReasonTimeout, lifecycle.AttentionOperator},
		{time.Hour, schema.NewError(schema.KindServiceUnavailable, "no database"), lifecycle.ReasonTimeout, lifecycle.AttentionOperator},
	} {
		w := newWorld(lifecycle.NodeActive)
		w.silent[task.WorkloadDrain], w.heartbeat, w.fail["heartbeat?"] = true, tc.heartbeat, tc.fail
		b := setup(t, lifecycle.ActionDrain, w)
		b.env.RegisterDelayedCallback(func() {
			stuck := b.status().Operation.Stuck
			require.Equal(t, tc.reason, stuck.Reason)
			require.Equal(t, tc.waitingOn, stuck.WaitingOn)
			require.NotNil(t, stuck.Retrying)
			require.Equal(t, stuck.Options[0].Command, stuck.Next)
			require.Equal(t, lifecycle.HarmNone, stuck.Options[0].Harm)
		}, 6*time.Hour)
		b.decideAt(7*time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Len(t, w.parks, 1, "the reason stays while the phase is retried")
	}
}
