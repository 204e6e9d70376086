package workflows

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// at runs fn after d of workflow time.
func (b *bed) at(d time.Duration, fn func()) { b.env.RegisterDelayedCallback(fn, d) }

func (w *world) setSilent(t task.Type, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent[t] = silent
}

// count is how often a call was made.
func (w *world) count(call string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, c := range w.calls {
		if c == call || c == call+"!" {
			n++
		}
	}
	return n
}

// TestParkedPhaseResumes: when the cause of a park clears, the operation continues
// without a decision.
func TestParkedPhaseResumes(t *testing.T) {
	t.Parallel()
	unavailable := schema.NewError(schema.KindServiceUnavailable, "the database is unavailable")
	sealed := schema.NewError(schema.KindServiceUnavailable, "Vault is sealed").WithReason(lifecycle.ReasonVaultSealed)
	for _, c := range []struct {
		action lifecycle.Action
		from   lifecycle.NodeState
		call   string
		fails  error
		reason string
	}{
		{lifecycle.ActionDrain, lifecycle.NodeActive, "enqueue workload.cordon", unavailable, "service_unavailable"},
		{lifecycle.ActionDrain, lifecycle.NodeActive, "enqueue workload.drain", unavailable, "service_unavailable"},
		{lifecycle.ActionDrain, lifecycle.NodeActive, "enqueue workload.cordon", sealed, lifecycle.ReasonVaultSealed},
		{lifecycle.ActionDrain, lifecycle.NodeActive, "enqueue workload.drain", sealed, lifecycle.ReasonVaultSealed},
		{lifecycle.ActionProvision, lifecycle.NodeActive, "ensure", unavailable, "service_unavailable"},
		{lifecycle.ActionProvision, lifecycle.NodeActive, "heartbeat?", unavailable, "service_unavailable"},
		{lifecycle.ActionRemove, lifecycle.NodeRetired, "release", unavailable, "service_unavailable"},
		{lifecycle.ActionProvision, lifecycle.NodeActive, "heartbeat?", schema.NewError(schema.KindAgentSilent, "no heartbeat"), "agent_silent"},
	} {
		t.Run(fmt.Sprintf("%s/%s/%s", c.action, c.call, c.reason), func(t *testing.T) {
			t.Parallel()
			w := newWorld(c.from)
			calls := []string{c.call}
			for repeat := range 9 { // a repeated task is a new step
				calls = append(calls, fmt.Sprintf("%s#%d", c.call, repeat))
			}
			for _, call := range calls {
				w.fail[call] = c.fails
			}
			b := setup(t, c.action, w)
			var stuck *lifecycle.Stuck
			b.at(3*time.Hour, func() {
				stuck = b.status().Operation.Stuck
				require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
				for _, call := range calls {
					w.heal(call)
				}
			})
			st := b.run()
			require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
			require.Empty(t, b.resolved)
			require.Equal(t, c.reason, stuck.Reason)
			require.NotNil(t, stuck.Retrying)
			require.Len(t, w.parks, 1, "the retries are not recorded")
			require.Equal(t, w.parks[0].Since, stuck.Since)
			require.Nil(t, st.Operation.Stuck)
		})
	}
}

// TestSilentNodeResumes: the phase's task is replaced when it expired, so the node finds a
// valid one when it is back.
func TestSilentNodeResumes(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.silent[task.WorkloadCordon] = true
	b := setup(t, lifecycle.ActionDrain, w)
	var since []time.Time
	var tries []int
	for _, d := range []time.Duration{8 * time.Minute, time.Hour, 10 * time.Hour} {
		b.at(d, func() {
			s := b.status().Operation.Stuck
			since, tries = append(since, s.Since), append(tries, s.Retrying.Tries)
			require.NotEmpty(t, b.status().Operation.Phases[0].Reason)
		})
	}
	b.at(10*time.Hour+time.Second, func() { w.setSilent(task.WorkloadCordon, false) })
	st := b.run()
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
	require.Equal(t, since[0], since[2], "a retry does not change since when the operation is parked")
	require.Less(t, tries[1], tries[2])
	require.LessOrEqual(t, tries[2], 75, "the retries slow down")
	require.Len(t, w.parks, 1)
	enqueued := slices.Clone(w.enqueued)
	require.LessOrEqual(t, len(slices.Compact(enqueued)), 14, "a task is valid for an hour")
	require.Equal(t, 1, st.Operation.Phases[0].Attempt)
}

// TestDestructivePhaseIsNotRepeated: while parked, a drain only asks about its task.
func TestDestructivePhaseIsNotRepeated(t *testing.T) {
	t.Parallel()

	t.Run("a late result heals the park", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.silent[task.WorkloadDrain], w.began = true, true
		b := setup(t, lifecycle.ActionDrain, w)
		b.at(10*time.Hour, func() { w.setSilent(task.WorkloadDrain, false) })
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Empty(t, w.decisions)
		require.NotContains(t, w.story(), "void")
		require.NotContains(t, w.enqueued, "workload.drain#2")
	})

	t.Run("a lost task waits for a person", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.silent[task.WorkloadDrain], w.began = true, true
		tries := 0
		w.on[task.WorkloadDrain] = func(spec activities.TaskSpec) (task.Result, error) {
			if tries++; tries == 1 {
				return task.Result{}, lost()
			}
			return drained(spec)
		}
		b := setup(t, lifecycle.ActionDrain, w)
		b.at(time.Hour, func() { w.setSilent(task.WorkloadDrain, false) })
		b.at(10*time.Hour, func() {
			require.Equal(t, 1, tries)
			s := b.status().Operation.Stuck
			require.Equal(t, lifecycle.ReasonTaskLost, s.Reason)
			require.Nil(t, s.Retrying)
			require.Equal(t, w.parks[0].Since, s.Since)
			require.Equal(t, s.Command(lifecycle.DecisionRetry, lifecycle.ActionDrain, "gpu-17", "op-1"), s.Options[1].Command)
		})
		b.returnTask(11*time.Hour, "op-1", "workload.drain")
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Len(t, w.parks, 2, "a new reason is recorded")
	})
}

// TestRefusalsWaitForAPerson: a failure that repeats is not retried.
func TestRefusalsWaitForAPerson(t *testing.T) {
	t.Parallel()
	unhealthy := func(activities.TaskSpec) (task.Result, error) {
		return succeeded(inventory.ProbeReport{Checks: []inventory.ProbeCheck{{Name: "disk", Detail: "3 MiB free"}}}), nil
	}
	blocks := func(activities.TaskSpec) (task.Result, error) {
		return succeeded(task.DrainResult{Blocked: []task.Blocker{{Workload: "job-1", Reason: "checkpointing"}}}), nil
	}
	refuses := func(k schema.Kind) func(activities.TaskSpec) (task.Result, error) {
		return func(activities.TaskSpec) (task.Result, error) { return task.Result{}, final(k, "no luck") }
	}
	for name, c := range map[string]struct {
		action lifecycle.Action
		from   lifecycle.NodeState
		on     task.Type
		answer func(activities.TaskSpec) (task.Result, error)
	}{
		"probe_failed":  {lifecycle.ActionReactivate, lifecycle.NodeRetired, task.NodeProbe, unhealthy},
		"drain_blocked": {lifecycle.ActionDrain, lifecycle.NodeActive, task.WorkloadDrain, blocks},
		"task_failed":   {lifecycle.ActionDrain, lifecycle.NodeActive, task.WorkloadDrain, refuses(schema.KindTaskFailed)},
		"task_refused":  {lifecycle.ActionDrain, lifecycle.NodeActive, task.WorkloadCordon, refuses(schema.KindTaskRefused)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(c.from)
			tries := 0
			w.on[c.on] = func(spec activities.TaskSpec) (task.Result, error) {
				tries++
				return c.answer(spec)
			}
			b := setup(t, c.action, w)
			b.at(10*time.Hour, func() {
				require.Equal(t, name, b.status().Operation.Stuck.Reason)
				require.Nil(t, b.status().Operation.Stuck.Retrying)
				require.Equal(t, 1, tries)
				b.decide(lifecycle.DecisionCancel, "enough")
			})
			require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		})
	}
}

// TestDecisionInterruptsRetry: a decision that is addressed to the park is taken while a
// retry runs, however long after the park began.
func TestDecisionInterruptsRetry(t *testing.T) {
	t.Parallel()
	for _, d := range []lifecycle.Decision{lifecycle.DecisionSkip, lifecycle.DecisionRetry, lifecycle.DecisionCancel} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.silent[task.WorkloadCordon] = true
			b := setup(t, lifecycle.ActionDrain, w)
			b.at(time.Hour, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.silent[task.WorkloadCordon], w.open[task.WorkloadCordon] = false, true
			})
			b.at(2*time.Hour, func() {
				s := b.status().Operation.Stuck
				require.Nil(t, s.Retrying.NextAt, "a retry runs")
				w.mu.Lock()
				w.open[task.WorkloadCordon] = false
				w.mu.Unlock()
				b.resolve(lifecycle.ResolveRequest{OperationID: "op-1", Phase: s.Phase, StuckSince: &w.parks[0].Since,
					Decision: d, Reason: "because", By: "bob"})
			})
			b.at(2*time.Hour+time.Second, func() { require.Equal(t, []error{nil}, b.resolved) })
			st := b.run()
			require.Equal(t, d == lifecycle.DecisionCancel, st.Operation.Status == lifecycle.OperationCanceled)
			require.Equal(t, []lifecycle.Decision{d}, w.decisions)
			require.Equal(t, []string{"decision-0"}, w.decided, "the decision's ID is the update's")
		})
	}
}

// TestFlappingNode: a task that is lost each time it returned waits for a person at last,
// whose decision starts a new count.
func TestFlappingNode(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	tries := 0
	w.on[task.WorkloadDrain] = func(spec activities.TaskSpec) (task.Result, error) {
		if tries++; spec.Step == "workload.drain" {
			return task.Result{}, lost()
		}
		return drained(spec)
	}
	b := setup(t, lifecycle.ActionDrain, w)
	for i := range 50 {
		b.returnTask(time.Duration(i+1)*time.Hour, "op-1", "workload.drain")
	}
	b.at(60*time.Hour, func() {
		require.Equal(t, 1+maxReturns, tries)
		s := b.status().Operation.Stuck
		require.Equal(t, lifecycle.ReasonTaskLost, s.Reason)
		require.Contains(t, s.Cause, fmt.Sprintf("%d times", 1+maxReturns))
		require.Equal(t, s.Command(lifecycle.DecisionRetry, lifecycle.ActionDrain, "gpu-17", "op-1"), s.Next)
		b.decide(lifecycle.DecisionRetry, "repaired it")
	})
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
}

// TestLostSignalHeals: a parked enrollment reads its progress from the database.
func TestLostSignalHeals(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeRegistered)
	b := setup(t, lifecycle.ActionEnroll, w)
	b.at(time.Hour, func() {
		require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
		w.progress = activities.Enrollment{BundleIssued: true, TokenClaimed: true, Polled: true}
	})
	b.at(2*time.Hour, func() { require.Equal(t, lifecycle.OperationCompleted, b.status().Operation.Status) })
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Empty(t, b.resolved)
}

// TestEnrollmentNamesWhatHelps: a parked enrollment whose token may have expired names the
// command that issues a new one, and no retry that would wait for the old one.
func TestEnrollmentNamesWhatHelps(t *testing.T) {
	t.Parallel()
	for phase, before := range map[string][]lifecycle.AgentEventName{
		lifecycle.PhaseBundle: nil, lifecycle.PhaseClaim: {lifecycle.EventBundleIssued},
	} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			b := setup(t, lifecycle.ActionEnroll, newWorld(lifecycle.NodeRegistered))
			for _, e := range before {
				b.signalAt(time.Second, e, 1)
			}
			b.at(30*time.Hour, func() {
				s := b.status().Operation.Stuck
				require.Equal(t, phase, s.Phase)
				require.Equal(t, "gpuaas node bootstrap-script gpu-17", s.Next)
				require.Equal(t, []string{"gpuaas node bootstrap-script gpu-17", s.Command(lifecycle.DecisionCancel, lifecycle.ActionEnroll, "gpu-17", "op-1")}, commands(s))
				b.decide(lifecycle.DecisionRetry, "because")
				b.decide(lifecycle.DecisionBootstrap, "because")
			})
			b.signalAt(31*time.Hour, lifecycle.EventTokenClaimed, 1)
			b.signalAt(31*time.Hour, lifecycle.EventFirstPoll, 1)
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			for _, err := range b.resolved {
				require.Equal(t, schema.KindInvalidRequest, kindOf(err))
			}
		})
	}
}

// TestDispatchedDrainIsNotRepeated: the task of a drain that the node has stays, however
// long the node is silent.
func TestDispatchedDrainIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.began, w.silent[task.WorkloadDrain] = true, true
	b := setup(t, lifecycle.ActionDrain, w)
	b.at(10*time.Hour, func() { w.setSilent(task.WorkloadDrain, false) })
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Positive(t, w.count("void undispatched"))
	require.NotContains(t, w.enqueued, "workload.drain#2")
}

// TestProviderUnknown: an operation whose provider no worker has says so and what to do,
// and continues when a worker has it.
func TestProviderUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	missing := schema.NewError(schema.KindInvalidRequest, "this worker has no provider").WithReason(lifecycle.ReasonProviderUnknown)
	w.fail["ensure"] = missing
	b := setup(t, lifecycle.ActionProvision, w)
	b.at(3*time.Hour, func() {
		stuck := b.status().Operation.Stuck
		require.Equal(t, lifecycle.ReasonProviderUnknown, stuck.Reason)
		require.Equal(t, lifecycle.AttentionOperator, stuck.WaitingOn)
		require.NotNil(t, stuck.Retrying)
		require.Contains(t, stuck.Cause, "`manual`")
		require.Equal(t, stuck.Options[0].Command, stuck.Next)
		require.Contains(t, stuck.Cause, "start a gpuaas-worker that has it")
		w.heal("ensure")
	})
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Empty(t, b.resolved)
	require.Len(t, w.parks, 1)
}
