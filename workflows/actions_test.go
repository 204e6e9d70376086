package workflows

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestEachPhaseFailsOnce makes each phase of each action fail permanently once. The
// operation parks in that phase and names the commands to run, and a retry
// completes it.
func TestEachPhaseFailsOnce(t *testing.T) {
	t.Parallel()
	cases := []struct {
		action lifecycle.Action
		from   lifecycle.NodeState
		phase  string
		call   string // what fails
		opts   lifecycle.Options
	}{
		{lifecycle.ActionProvision, lifecycle.NodeActive, lifecycle.PhaseAdopt, "ensure", lifecycle.Options{}},
		{lifecycle.ActionProvision, lifecycle.NodeActive, lifecycle.PhaseAgent, "heartbeat?", lifecycle.Options{}},
		{lifecycle.ActionProvision, lifecycle.NodeActive, lifecycle.PhaseFacts, "task facts.collect", lifecycle.Options{}},
		{lifecycle.ActionProvision, lifecycle.NodeActive, lifecycle.PhaseProbe, "task node.probe", lifecycle.Options{}},
		{lifecycle.ActionDrain, lifecycle.NodeActive, lifecycle.PhaseCordon, "task workload.cordon", lifecycle.Options{}},
		{lifecycle.ActionDrain, lifecycle.NodeActive, lifecycle.PhaseDrain, "task workload.drain", lifecycle.Options{}},
		{lifecycle.ActionRetire, lifecycle.NodeActive, lifecycle.PhaseCordon, "task workload.cordon", lifecycle.Options{Drain: true}},
		{lifecycle.ActionRetire, lifecycle.NodeActive, lifecycle.PhaseDrain, "task workload.drain", lifecycle.Options{Drain: true}},
		{lifecycle.ActionReactivate, lifecycle.NodeRetired, lifecycle.PhaseProbe, "task node.probe", lifecycle.Options{}},
		{lifecycle.ActionReactivate, lifecycle.NodeRetired, lifecycle.PhaseUncordon, "task workload.uncordon", lifecycle.Options{}},
		{lifecycle.ActionTerminate, lifecycle.NodeActive, lifecycle.PhaseTeardown, "release", lifecycle.Options{}},
		{lifecycle.ActionRemove, lifecycle.NodeRetired, lifecycle.PhaseTeardown, "release", lifecycle.Options{}},
	}
	for _, c := range cases {
		t.Run(string(c.action)+"/"+c.phase, func(t *testing.T) {
			t.Parallel()
			w := newWorld(c.from)
			w.fail[c.call] = schema.NewError(schema.KindInvalidRequest, "no luck")
			if task, ok := cutTask(c.call); ok {
				w.fail[task] = final(schema.KindTaskFailed, "no luck")
			}
			b := setup(t, c.action, w)
			b.in.Options = c.opts
			b.env.RegisterDelayedCallback(func() {
				st := b.status()
				require.Equal(t, lifecycle.OperationParked, st.Operation.Status)
				require.Equal(t, c.phase, st.Operation.Stuck.Phase)
				require.Equal(t, "no luck", st.Operation.Stuck.Message)
				require.Contains(t, commands(st.Operation.Stuck), st.Operation.Stuck.Command(lifecycle.DecisionRetry, c.action, "gpu-17", "op-1"))
				require.Equal(t, st.Operation.Stuck.Options[0].Command, st.Operation.Stuck.Next)
				require.Equal(t, lifecycle.HarmNone, st.Operation.Stuck.Options[0].Harm, "the recommended option is never destructive")
				w.heal(c.call)
				b.decide(lifecycle.DecisionRetry, "fixed it")
			}, time.Hour)
			st := b.run()
			require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
			require.Equal(t, []error{nil}, b.resolved)
			require.Equal(t, c.phase, w.parks[0].Phase)
			require.Len(t, w.parks, 1)
		})
	}
}

func commands(s *lifecycle.Stuck) []string {
	var out []string
	for _, o := range s.Options {
		out = append(out, o.Command)
	}
	return out
}

func cutTask(call string) (string, bool) {
	if len(call) > 5 && call[:5] == "task " {
		return call, true
	}
	return "", false
}

func TestRetire(t *testing.T) {
	t.Parallel()

	t.Run("cordons and records", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionRetire, newWorld(lifecycle.NodeActive))
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, []string{"claim", "task workload.cordon", "finish completed"}, b.world.story())
		require.Equal(t, lifecycle.NodeRetired, b.world.finished.Node)
	})

	t.Run("forced, of a silent node, is recorded without a cordon and without a park", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeOffline)
		w.silent[task.WorkloadCordon] = true
		b := setup(t, lifecycle.ActionRetire, w)
		b.in.Options.Force = true
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Equal(t, lifecycle.PhaseSkipped, st.Operation.Phases[0].State)
		require.Contains(t, w.finished.Outcome, "the cordon was skipped")
		require.Equal(t, lifecycle.NodeRetired, w.finished.Node)
		require.Empty(t, w.parks)
	})

	t.Run("canceled restores the state and lifts the cordon", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.open[task.WorkloadCordon] = true
		b := setup(t, lifecycle.ActionRetire, w)
		b.decideAt(10*time.Second, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, lifecycle.NodeActive, w.finished.Node)
		require.Contains(t, w.story(), "task workload.uncordon")
	})

	t.Run("of a busy node is refused with the store's reason and next step", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["claim"] = schema.NewError(schema.KindNodeInUse, "the node runs job-1").WithNext("gpuaas node retire gpu-17 --drain")
		b := setup(t, lifecycle.ActionRetire, w)
		require.Equal(t, lifecycle.OperationRejected, b.run().Operation.Status)
		require.Equal(t, schema.KindNodeInUse, b.kindOfRefusal())
		require.Equal(t, "gpuaas node retire gpu-17 --drain", failureOf(b.refusal).Next)
	})

	t.Run("with drain drains first", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionRetire, newWorld(lifecycle.NodeActive))
		b.in.Options.Drain = true
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, []string{"claim", "task workload.cordon", "advance drain", "task workload.drain", "finish completed"}, b.world.story())
	})
}

func TestReactivate(t *testing.T) {
	t.Parallel()

	t.Run("probes before it lifts the cordon", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionReactivate, newWorld(lifecycle.NodeRetired))
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, []string{"claim", "task node.probe", "advance uncordon", "task workload.uncordon", "finish completed"}, b.world.story())
	})

	t.Run("an unhealthy node parks; force accepts it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeRetired)
		w.on[task.NodeProbe] = func(activities.TaskSpec) (task.Result, error) {
			return succeeded(inventory.ProbeReport{Checks: []inventory.ProbeCheck{{Name: "disk", Detail: "3 MiB free"}}}), nil
		}
		b := setup(t, lifecycle.ActionReactivate, w)
		b.decideAt(time.Hour, lifecycle.DecisionForce)
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Equal(t, lifecycle.PhaseForced, st.Operation.Phases[0].State)
		require.Equal(t, "probe_failed", w.parks[0].Reason)
		require.Contains(t, w.parks[0].Message, "disk: `3 MiB free`")
	})
}

func TestSkipAfterForce(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeRetired)
	w.fail["task node.probe"] = final(schema.KindTaskFailed, "no luck")
	w.fail["task node.probe#2"] = final(schema.KindTaskFailed, "no luck")
	b := setup(t, lifecycle.ActionReactivate, w)
	b.decideAt(time.Hour, lifecycle.DecisionForce)
	b.decideAt(2*time.Hour, lifecycle.DecisionSkip)
	st := b.run()
	require.Equal(t, []error{nil, nil}, b.resolved)
	require.Equal(t, lifecycle.PhaseSkipped, st.Operation.Phases[0].State)
	require.Equal(t, lifecycle.PhaseCompleted, st.Operation.Phases[1].State, "only the decision's own phase is forced")
}

func TestProvision(t *testing.T) {
	t.Parallel()

	t.Run("waits for a silent agent and records how far the machine is", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.heartbeat = -1
		b := setup(t, lifecycle.ActionProvision, w)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, string(schema.KindAgentSilent), w.parks[0].Reason)
		require.Contains(t, w.story(), "instance provisioning")
		require.Equal(t, lifecycle.InstanceTerminated, w.finished.Instance)
	})

	t.Run("runs its phases in order", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionProvision, newWorld(lifecycle.NodeActive))
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, []string{"claim", "plan", "ensure", "created", "ledger", "heartbeat?", "instance bootstrapping", "task facts.collect",
			"facts", "task node.probe", "finish completed"}, b.world.story())
		require.Equal(t, lifecycle.InstanceRunning, b.world.finished.Instance)
	})

	t.Run("a cancel waits for the creation that runs, and then returns the machine", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		b := setup(t, lifecycle.ActionProvision, w)
		w.onEnsure = func() { b.decide(lifecycle.DecisionCancel, "wrong node") }
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		story := w.story()
		require.Contains(t, story, "created")
		require.Less(t, slices.Index(story, "created"), slices.Index(story, "ledger"))
		require.NotContains(t, story, "heartbeat?")
	})

	t.Run("a cancel returns only the machine of its own operation", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		others := slices.Clone(w.ledger)
		w.heartbeat = -1
		b := setup(t, lifecycle.ActionProvision, w)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, 1, w.count("release"))
		require.Equal(t, others, w.ledger)
	})

	t.Run("a cancel keeps the instance if the provider returned no machine", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["plan"] = schema.NewError(schema.KindInvalidRequest, "no luck")
		b := setup(t, lifecycle.ActionProvision, w)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Empty(t, w.finished.Instance)
		require.Zero(t, w.count("release"))
	})

	t.Run("a machine that does not match its SKU parks", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.sku, w.gpus = inventory.SKU{Name: "h100", GPUModel: "H100", MinCPUs: 64, MaxGPUs: 8}, 8
		b := setup(t, lifecycle.ActionProvision, w)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		st := b.run()
		require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
		require.Equal(t, "sku_mismatch", w.parks[0].Reason)
		require.Contains(t, w.parks[0].Message, "0 GPUs found, 8 registered")
		require.Equal(t, lifecycle.InstanceTerminated, w.finished.Instance)
	})

	t.Run("a retry compares the machine with its corrected registration", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.gpus = 8
		b := setup(t, lifecycle.ActionProvision, w)
		b.decideAt(time.Hour, lifecycle.DecisionRetry) // nothing is corrected yet
		b.env.RegisterDelayedCallback(func() { w.gpus = 0 }, 90*time.Minute)
		b.decideAt(2*time.Hour, lifecycle.DecisionRetry)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Len(t, w.parks, 2)
		require.Contains(t, w.story(), "task facts.collect#3", "the facts are new")
	})

	t.Run("a retry whose agent is silent waits for the agent", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.gpus = 8
		b := setup(t, lifecycle.ActionProvision, w)
		b.env.RegisterDelayedCallback(func() { w.silent[task.FactsCollect] = true }, 30*time.Minute)
		b.decideAt(time.Hour, lifecycle.DecisionRetry)
		b.decideAt(2*time.Hour, lifecycle.DecisionCancel)
		b.run()
		require.Len(t, w.parks, 2)
		require.Equal(t, string(schema.KindAgentSilent), w.parks[1].Reason)
		require.Equal(t, lifecycle.AttentionAgent, w.parks[1].WaitingOn)
	})
}

func TestRemove(t *testing.T) {
	t.Parallel()

	t.Run("tears down by the ledger before it denies the identity", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionRemove, newWorld(lifecycle.NodeRetired))
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, []string{"claim", "ledger", "release", "released", "ledger", "finish completed"}, b.world.story())
		require.True(t, b.world.finished.DenyIdentity)
	})

	t.Run("of an active node is refused", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionRemove, newWorld(lifecycle.NodeActive))
		require.Equal(t, lifecycle.OperationRejected, b.run().Operation.Status)
		require.Equal(t, schema.KindInvalidRequest, b.kindOfRefusal())
		require.Contains(t, b.refusal.Error(), "gpuaas node retire NODE")
	})

	t.Run("force continues without the provider's confirmation", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeRetired)
		w.fail["release"] = schema.NewError(schema.KindInvalidRequest, "the provider says no")
		b := setup(t, lifecycle.ActionRemove, w)
		b.decideAt(time.Hour, lifecycle.DecisionForce)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.True(t, w.finished.DenyIdentity)
	})
}

// TestInternalFailure: an unexpected failure in the control plane waits for an operator, in every
// phase.
func TestInternalFailure(t *testing.T) {
	t.Parallel()
	for state, a := range map[lifecycle.NodeState]lifecycle.Action{
		lifecycle.NodeRetired: lifecycle.ActionRemove, lifecycle.NodeActive: lifecycle.ActionDrain,
	} {
		w := newWorld(state)
		w.fail["release"] = schema.NewError(schema.KindInternal, "boom")
		w.fail["enqueue "+string(task.WorkloadCordon)] = schema.NewError(schema.KindInternal, "boom")
		b := setup(t, a, w)
		b.at(12*time.Hour, func() {
			stuck := b.status().Operation.Stuck
			require.Equal(t, string(schema.KindInternal), stuck.Reason)
			require.Equal(t, lifecycle.AttentionOperator, stuck.WaitingOn)
			require.Contains(t, stuck.Cause, "the worker's log")
		})
		b.decideAt(13*time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	}
}

// TestForcedTeardown: a forced removal asks a provider that does not respond once more,
// and then continues without it.
func TestForcedTeardown(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeRetired)
	w.fail["release"] = schema.NewError(schema.KindServiceUnavailable, "the provider does not respond")
	b := setup(t, lifecycle.ActionRemove, w)
	var before int
	b.at(time.Hour, func() {
		before = w.count("release")
		b.decide(lifecycle.DecisionForce, "the provider is gone")
	})
	b.at(time.Hour+30*time.Second, func() { require.True(t, b.env.IsWorkflowCompleted(), "the forced teardown still runs") })
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Equal(t, before+1, w.count("release"))
	require.Equal(t, lifecycle.NodeRemoved, w.finished.Node)
}

// TestRejectedOutcome: the database rejects the success of an enrollment whose node it
// never saw. The operation ends as failed, with the state before it.
func TestRejectedOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeRegistered)
	w.progress = activities.Enrollment{BundleIssued: true, TokenClaimed: true, Polled: true}
	w.fail["finish completed"] = schema.NewError(schema.KindInvalidRequest, "node gpu-17 has not polled with a certificate").WithReason("not_enrolled")
	st := setup(t, lifecycle.ActionEnroll, w).run()
	require.Equal(t, lifecycle.OperationFailed, st.Operation.Status)
	require.Contains(t, st.Operation.Outcome, "node gpu-17 has not polled with a certificate")
	require.Equal(t, lifecycle.NodeRegistered, st.Node.State)
	require.Equal(t, lifecycle.PhaseFailed, st.Operation.Phases[len(st.Operation.Phases)-1].State)
	require.Equal(t, lifecycle.OperationFailed, w.finished.Status)
	require.Equal(t, lifecycle.NodeRegistered, w.finished.Node)
	require.True(t, w.finished.VoidTokens)
}

func TestEnroll(t *testing.T) {
	t.Parallel()
	event := func(b *bed, e lifecycle.AgentEventName, incarnation int64, at time.Duration) {
		b.env.RegisterDelayedCallback(func() {
			b.report(lifecycle.AgentEvent{Event: e, NodeID: testNode, Incarnation: incarnation})
		}, at)
	}

	t.Run("ends at the agent's first poll", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionEnroll, newWorld(lifecycle.NodeRegistered))
		event(b, lifecycle.EventBundleIssued, 1, time.Second)
		event(b, lifecycle.EventTokenClaimed, 1, time.Hour)
		event(b, lifecycle.EventFirstPoll, 1, time.Hour+time.Second)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, lifecycle.NodeActive, b.world.finished.Node)
	})

	t.Run("an event that overtakes the others implies them", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionEnroll, newWorld(lifecycle.NodeRegistered))
		event(b, lifecycle.EventFirstPoll, 1, time.Second)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	})

	t.Run("a bundle issued again may start a new incarnation", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionEnroll, newWorld(lifecycle.NodeRegistered))
		event(b, lifecycle.EventFirstPoll, 2, time.Second)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	})

	t.Run("an event of an older incarnation is ignored", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionEnroll, newWorld(lifecycle.NodeRegistered))
		event(b, lifecycle.EventFirstPoll, 0, time.Second)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.True(t, b.world.finished.VoidTokens)
	})

	t.Run("a lost signal costs time and nothing else", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeRegistered)
		w.progress = activities.Enrollment{BundleIssued: true, TokenClaimed: true, Polled: true}
		b := setup(t, lifecycle.ActionEnroll, w)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Empty(t, w.parks)
	})

	for phase, last := range map[string]lifecycle.AgentEventName{
		lifecycle.PhaseBundle: "", lifecycle.PhaseClaim: lifecycle.EventBundleIssued, lifecycle.PhasePoll: lifecycle.EventTokenClaimed,
	} {
		t.Run("parks in phase "+phase+" and continues when the agent polls", func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeRegistered)
			b := setup(t, lifecycle.ActionEnroll, w)
			if last != "" {
				event(b, last, 1, time.Second)
			}
			event(b, lifecycle.EventFirstPoll, 1, 30*time.Hour)
			b.decideAt(31*time.Hour, lifecycle.DecisionRetry)
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			require.Equal(t, phase, w.parks[0].Phase)
		})
	}
}

func TestControlPlaneTrouble(t *testing.T) {
	t.Parallel()

	t.Run("an unavailable database delays the claim, nothing else", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeDrained)
		w.fail["claim"] = schema.NewError(schema.KindServiceUnavailable, "the database is unavailable")
		b := setup(t, lifecycle.ActionRetire, w)
		// The test environment stops retrying after ten attempts; a server does not.
		b.env.RegisterDelayedCallback(func() { w.heal("claim") }, 20*time.Second)
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status, st.Operation.Outcome)
		require.NotNil(t, b.answer)
	})

	t.Run("a projection that cannot be written does not stop the work", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["advance drain"] = schema.NewError(schema.KindServiceUnavailable, "the database is unavailable")
		b := setup(t, lifecycle.ActionDrain, w)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	})

	t.Run("a superseded operation stops without another write", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["finish completed"] = schema.NewError(schema.KindFenced, "op_seq 8 holds the node")
		b := setup(t, lifecycle.ActionDrain, w)
		st := b.run()
		require.Equal(t, lifecycle.OperationFailed, st.Operation.Status)
		require.Equal(t, "a newer operation holds the node", st.Operation.Outcome)
		require.Nil(t, w.finished)
	})

	t.Run("an unavailable Vault waits on an operator, not on the agent", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindServiceUnavailable, "Vault is sealed")
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		b.run()
		require.Equal(t, lifecycle.AttentionOperator, w.parks[0].WaitingOn)
		require.Equal(t, "Vault is sealed", w.parks[0].Message)
	})
}

func TestFailureOfUnknownErrors(t *testing.T) {
	t.Parallel()
	require.Equal(t, schema.KindInternal, kindOf(errors.New("boom")))
	long := strings.Repeat("x", 3000) // would not fit a search attribute
	require.Equal(t, schema.KindInternal, kindOf(final(schema.Kind(long), "no luck")))
}
