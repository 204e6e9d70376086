package workflows

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestEveryPhaseHasAStep compares the plans with the table of step bodies in both
// directions. The last phase of a plan is its record and has no body.
func TestEveryPhaseHasAStep(t *testing.T) {
	t.Parallel()
	planned := map[string]bool{}
	for _, p := range lifecycle.Operations() {
		for _, o := range []lifecycle.Options{{}, {Drain: true}, {CordonOnly: true}, {NewIdentity: true}, {Recovery: wholeLadder()}} {
			plan, _ := lifecycle.PlanOf(p.Action, o)
			last := len(plan.Phases) - 1
			for _, s := range plan.Phases[:last] {
				planned[s.Name] = true
			}
			require.NotContains(t, steps, plan.Phases[last].Name, "the record of %s has a body", p.Action)
			if plan.Undo != nil {
				planned[plan.Undo.Name] = true
			}
		}
	}
	for name := range planned {
		require.Contains(t, steps, name, "phase %s has no step body", name)
	}
	for name := range steps {
		require.Contains(t, planned, name, "no plan has a phase for step %s", name)
	}
}

func TestRegistryHasEveryPlan(t *testing.T) {
	t.Parallel()
	types := map[string]bool{}
	for _, e := range Registry() {
		require.False(t, types[e.Type], "%s is registered twice", e.Type)
		types[e.Type] = true
	}
	require.Len(t, types, len(lifecycle.Operations())+len(lifecycle.Schedules())+1) // and the rotation of keys
	for _, s := range lifecycle.Schedules() {
		require.True(t, types[s.Workflow], s.Workflow)
	}
}

// TestForeignWorkflowID: a workflow that was started by hand under another ID
// would run beside the operation that holds the node.
func TestForeignWorkflowID(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"evil-2", lifecycle.NodeWorkflowID("evil", testNode), lifecycle.ReissueWorkflowID("gpu-17", testNode)} {
		b := setup(t, lifecycle.ActionDrain, newWorld(lifecycle.NodeActive))
		b.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: id})
		require.Equal(t, lifecycle.OperationRejected, b.run().Operation.Status, id)
		require.Equal(t, "foreign_workflow_id", failureOf(b.refusal).Reason)
		require.NotContains(t, b.world.story(), "task workload.cordon")
	}
}

func TestWorkflowTypeAndActionAgree(t *testing.T) {
	t.Parallel()
	b := setup(t, lifecycle.ActionDrain, newWorld(lifecycle.NodeActive))
	b.in.Action = lifecycle.ActionRemove
	b.env.ExecuteWorkflow("Drain", b.in)
	var st lifecycle.OperationStatus
	require.NoError(t, b.env.GetWorkflowResult(&st))
	require.Equal(t, lifecycle.OperationRejected, st.Operation.Status)
	require.Empty(t, b.world.story())
}

// TestRunKeepsItsPlan: the run follows the plan of its claim, even after the table
// changed. A step that this worker does not have parks the operation.
func TestRunKeepsItsPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	b := setup(t, lifecycle.ActionDrain, w)
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	plan.To, plan.Outcome = lifecycle.NodeRetired, "as planned"
	plan.Phases = []lifecycle.PhaseSpec{
		{Name: lifecycle.PhaseDrain, Title: "Drain first", Budget: time.Minute, Choices: plan.Phases[1].Choices},
		{Name: "of-another-version", Title: "Unknown", Budget: time.Minute,
			Choices: []lifecycle.Option{{Decision: lifecycle.DecisionSkip, Does: "Continue without it.", Harm: lifecycle.HarmNone}}},
		plan.Phases[2],
	}
	b.env.OnActivity(record.ClaimNode, anything, anything).Return(
		func(ctx context.Context, r activities.ClaimRequest) (activities.Claim, error) {
			claim, err := w.Claim(ctx, r)
			claim.Plan = plan
			return claim, err
		})
	b.decideAt(time.Hour, lifecycle.DecisionSkip)
	st := b.run()
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
	require.Equal(t, lifecycle.NodeRetired, w.finished.Node)
	require.Equal(t, "as planned", st.Operation.Outcome)
	require.Equal(t, "step_unknown", w.parks[0].Reason)
	require.Equal(t, "Drain first", st.Operation.Phases[0].Title)
	require.NotContains(t, w.story(), "task workload.cordon")
}

func TestQuarantine(t *testing.T) {
	t.Parallel()

	t.Run("stops new work at the claim and cordons", func(t *testing.T) {
		t.Parallel()
		b := setup(t, lifecycle.ActionQuarantine, newWorld(lifecycle.NodeActive))
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Equal(t, lifecycle.NodeQuarantined, b.world.claimed)
		require.Equal(t, lifecycle.NodeQuarantined, b.world.finished.Node)
		require.Equal(t, []string{"claim", "task workload.cordon", "finish completed"}, b.world.story())
	})

	t.Run("of a silent node is recorded without a cordon and without a park", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeOffline)
		w.silent[task.WorkloadCordon] = true
		st := setup(t, lifecycle.ActionQuarantine, w).run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Equal(t, lifecycle.PhaseSkipped, st.Operation.Phases[0].State)
		require.NotEmpty(t, st.Operation.Phases[0].Reason)
		require.Equal(t, lifecycle.NodeQuarantined, w.finished.Node)
		require.Empty(t, w.parks)
	})

	t.Run("canceled restores the state and lifts the cordon", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeDrained)
		w.open[task.WorkloadCordon] = true
		b := setup(t, lifecycle.ActionQuarantine, w)
		b.decideAt(10*time.Second, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, lifecycle.NodeDrained, w.finished.Node)
		require.Contains(t, w.story(), "task workload.uncordon")
	})
}

func TestRelease(t *testing.T) {
	t.Parallel()
	b := setup(t, lifecycle.ActionRelease, newWorld(lifecycle.NodeQuarantined))
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Equal(t, lifecycle.NodeActive, b.world.finished.Node)
	require.Equal(t, []string{"claim", "task node.probe", "advance uncordon", "task workload.uncordon", "finish completed"}, b.world.story())
}

func TestUncordon(t *testing.T) {
	t.Parallel()
	b := setup(t, lifecycle.ActionUncordon, newWorld(lifecycle.NodeActive))
	st := b.run()
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
	require.Equal(t, lifecycle.NodeActive, st.Node.State)
	require.Empty(t, b.world.finished.Node, "the state does not change")
	require.Equal(t, []string{"claim", "task workload.uncordon", "finish completed"}, b.world.story())
}

// TestDocument: the database has the whole status from the claim to the end.
func TestDocument(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.silent[task.WorkloadDrain] = true
	w.open[task.WorkloadCordon] = false
	b := setup(t, lifecycle.ActionDrain, w)
	var claimed lifecycle.OperationStatus
	w.on[task.WorkloadCordon] = func(activities.TaskSpec) (task.Result, error) {
		claimed = clone(*w.document)
		return succeeded(task.CordonResult{Cordoned: true}), nil
	}
	b.env.RegisterDelayedCallback(func() {
		op := w.document.Operation
		require.Equal(t, lifecycle.OperationParked, op.Status)
		require.Equal(t, []lifecycle.PhaseState{lifecycle.PhaseCompleted, lifecycle.PhaseParked, lifecycle.PhasePending}, states(op))
		require.NotNil(t, op.Phases[0].EndedAt)
		require.Equal(t, op.Stuck.Next, op.Stuck.Options[0].Command)
		require.Len(t, op.Stuck.Options, 4)
		b.decide(lifecycle.DecisionSkip, "moved by hand")
	}, time.Hour)
	final := b.run()
	require.Equal(t, lifecycle.OperationRunning, claimed.Operation.Status)
	require.Equal(t, []lifecycle.PhaseState{lifecycle.PhaseRunning, lifecycle.PhasePending, lifecycle.PhasePending}, states(claimed.Operation))
	require.NotNil(t, claimed.Operation.DeadlineAt)
	require.Equal(t, lifecycle.OperationCompleted, final.Operation.Status)
	require.Equal(t, final.Operation.Phases, w.document.Operation.Phases)
	require.Equal(t, final.Node, w.document.Node)
	require.Equal(t, "drained", w.document.Operation.Outcome)
	require.NotNil(t, w.document.Operation.EndedAt)
	require.Nil(t, w.document.Operation.Stuck)
}

func states(op lifecycle.Operation) []lifecycle.PhaseState {
	out := make([]lifecycle.PhaseState, len(op.Phases))
	for i, p := range op.Phases {
		out[i] = p.State
	}
	return out
}

// TestDecisionsAreAddressed: a decision about another operation, phase or park is
// refused, and so is the placeholder of a printed command.
func TestDecisionsAreAddressed(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.silent[task.WorkloadDrain] = true
	b := setup(t, lifecycle.ActionDrain, w)
	b.env.RegisterDelayedCallback(func() {
		since := b.status().Operation.Stuck.Since
		before := since.Add(-time.Second)
		force := lifecycle.ResolveRequest{Decision: lifecycle.DecisionForce, Reason: "because", By: "bob"}
		for _, change := range []func(*lifecycle.ResolveRequest){
			func(r *lifecycle.ResolveRequest) { r.OperationID = "op-0" },
			func(r *lifecycle.ResolveRequest) { r.Phase = lifecycle.PhaseTeardown },
			func(r *lifecycle.ResolveRequest) { r.StuckSince = &before },
			func(r *lifecycle.ResolveRequest) { r.Reason = "TEXT" },
			func(r *lifecycle.ResolveRequest) {
				r.OperationID, r.Phase, r.StuckSince = "op-1", lifecycle.PhaseDrain, &since
				r.Decision = lifecycle.DecisionSkip
			},
		} {
			r := force
			change(&r)
			b.resolve(r)
		}
	}, time.Hour)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	for _, err := range b.resolved[:3] {
		require.Equal(t, schema.KindDecisionOutdated, kindOf(err))
	}
	require.Equal(t, "reason_missing", failureOf(b.resolved[3]).Reason)
	require.NoError(t, b.resolved[4])
	require.Equal(t, []lifecycle.Decision{lifecycle.DecisionSkip}, w.decisions)
}

// TestDecisionsWithoutAnAddress: a decision that may cause damage names its operation. One
// that is typed in the Web UI also names the park, or the phase that runs.
func TestDecisionsWithoutAnAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.silent[task.WorkloadDrain] = true
	w.open[task.WorkloadCordon] = true
	b := setup(t, lifecycle.ActionDrain, w)
	typed := func(d lifecycle.Decision, change ...func(*lifecycle.ResolveRequest)) {
		r := lifecycle.ResolveRequest{Decision: d, Reason: "because", By: "bob"}
		for _, f := range change {
			f(&r)
		}
		b.resolve(r)
	}
	operation := func(r *lifecycle.ResolveRequest) { r.OperationID = "op-1" }
	phase := func(r *lifecycle.ResolveRequest) { r.Phase = b.status().Operation.Stuck.Phase }
	api := func(r *lifecycle.ResolveRequest) { r.Via = "api" }
	b.env.RegisterDelayedCallback(func() {
		typed(lifecycle.DecisionSkip)
		typed(lifecycle.DecisionSkip, operation)
		typed(lifecycle.DecisionSkip, operation, func(r *lifecycle.ResolveRequest) { r.Phase = lifecycle.PhaseCordon })
	}, time.Second)
	b.env.RegisterDelayedCallback(func() {
		typed(lifecycle.DecisionForce)
		typed(lifecycle.DecisionForce, phase)
		typed(lifecycle.DecisionForce, operation, phase)
		typed(lifecycle.DecisionForce, api)
		typed(lifecycle.DecisionRetry)
	}, time.Hour)
	b.env.RegisterDelayedCallback(func() { typed(lifecycle.DecisionForce, operation, api) }, 2*time.Hour)
	b.decideAt(3*time.Hour, lifecycle.DecisionSkip)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	missing := []string{"operation_id and phase", "phase", "", "operation_id and stuck_since", "operation_id and stuck_since", "stuck_since",
		"operation_id", "", "", ""}
	require.Len(t, b.resolved, len(missing))
	for i, fields := range missing {
		if fields == "" {
			require.NoError(t, b.resolved[i], i)
			continue
		}
		e := failureOf(b.resolved[i])
		require.Equal(t, "address_missing", e.Reason, i)
		require.True(t, strings.HasSuffix(e.Message, "add "+fields), e.Message)
	}
}

// TestCancelDuringUndo: an undo cannot be canceled, and always ends by recording
// the outcome.
func TestCancelDuringUndo(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.open[task.WorkloadDrain] = true
	w.silent[task.WorkloadUncordon] = true
	b := setup(t, lifecycle.ActionDrain, w)
	b.decideAt(time.Minute, lifecycle.DecisionCancel)
	b.decideAt(time.Hour, lifecycle.DecisionCancel)
	b.decideAt(2*time.Hour, lifecycle.DecisionSkip)
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	require.NoError(t, b.resolved[0])
	require.Equal(t, "decision_unfit", failureOf(b.resolved[1]).Reason)
	require.NoError(t, b.resolved[2])
	require.Equal(t, lifecycle.NodeActive, w.finished.Node)
}

// TestDecisionAfterWebCancel: a run that was canceled in the Web UI still accepts
// decisions about its undo.
func TestDecisionAfterWebCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.open[task.WorkloadDrain] = true
	w.silent[task.WorkloadUncordon] = true
	b := setup(t, lifecycle.ActionDrain, w)
	b.env.RegisterDelayedCallback(b.env.CancelWorkflow, time.Minute)
	b.decideAt(time.Hour, lifecycle.DecisionSkip)
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	require.Equal(t, []error{nil}, b.resolved)
}

// TestUndoCoversAttemptedCordon: a cordon whose result was lost is lifted too, and
// the second try's finding that the node is cordoned does not hide the first.
func TestUndoCoversAttemptedCordon(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	tries := 0
	w.on[task.WorkloadCordon] = func(activities.TaskSpec) (task.Result, error) {
		if tries++; tries == 1 {
			return task.Result{}, final(schema.KindTaskFailed, "no result")
		}
		return succeeded(task.CordonResult{Cordoned: true, Was: true}), nil
	}
	w.open[task.WorkloadDrain] = true
	b := setup(t, lifecycle.ActionDrain, w)
	b.decideAt(time.Hour, lifecycle.DecisionRetry)
	b.decideAt(61*time.Minute, lifecycle.DecisionCancel)
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	require.Contains(t, w.story(), "task workload.uncordon#2")
}

// TestUndoOfALeftCordon: the node has a cordon before the operation. It stays after a cancel, which
// restores what the drain changed, unless an abandoned operation left it.
func TestUndoOfALeftCordon(t *testing.T) {
	t.Parallel()
	for _, left := range []bool{false, true} {
		w := newWorld(lifecycle.NodeActive)
		w.cordoned, w.leftCordon = true, left
		w.on[task.WorkloadCordon] = func(activities.TaskSpec) (task.Result, error) {
			return succeeded(task.CordonResult{Cordoned: true, Was: true}), nil
		}
		w.open[task.WorkloadDrain] = true
		var params []string
		w.on[task.WorkloadUncordon] = func(spec activities.TaskSpec) (task.Result, error) {
			params = append(params, string(spec.Params))
			return succeeded(task.CordonResult{Cordoned: !left}), nil
		}
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, []string{map[bool]string{true: "", false: `{"keep_cordon":true}`}[left]}, params)
	}
}

// TestUndoOfACordonOnly: a cancel of an operation without a drain leaves a cordon that the node had
// before, and asks the node for nothing.
func TestUndoOfACordonOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.cordoned = true
	fails(task.WorkloadCordon)(w)
	b := setup(t, lifecycle.ActionDrain, w)
	b.decideAt(time.Hour, lifecycle.DecisionCancel)
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	require.Equal(t, []string{"workload.cordon"}, w.enqueued)
}

// TestUndoOnADrainedNode: a cancel of a retirement that drains a drained node leaves what the drain
// before it changed.
func TestUndoOnADrainedNode(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeDrained)
	w.cordoned = true
	w.open[task.WorkloadDrain] = true
	b := setup(t, lifecycle.ActionRetire, w)
	b.in.Options.Drain = true
	b.decideAt(time.Hour, lifecycle.DecisionCancel)
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	require.Equal(t, []string{"workload.cordon", "workload.drain"}, w.enqueued)
}

// TestDetails checks that the Web UI shows the phases, who must act, and each option
// with its command and the update's argument.
func TestDetails(t *testing.T) {
	t.Parallel()
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	op := &state{in: lifecycle.OperationInput{OperationID: "op-1", NodeID: testNode}, plan: plan, phase: 1}
	op.status.Node.Host = "gpu-17"
	op.status.Operation = lifecycle.Operation{Action: lifecycle.ActionDrain, Status: lifecycle.OperationParked, Phases: plan.Statuses(),
		Stuck: &lifecycle.Stuck{Phase: lifecycle.PhaseDrain, WaitingOn: lifecycle.AttentionOperator, Reason: lifecycle.ReasonDrainBlocked,
			Options: plan.OptionsIn(plan.Phases[1], "gpu-17", "op-1", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}}
	text := op.markdown()
	for _, want := range []string{"- [ ] Cordon the node", "**Waiting on: operator** since", "`gpuaas op extend gpu-17 --operation op-1 --phase drain --stuck-since 2026-01-02T03:04:05Z --reason TEXT`",
		"`gpuaas op force gpu-17 --operation op-1 --phase drain --stuck-since 2026-01-02T03:04:05Z --reason TEXT`", "harm: work", `{"operation_id":"op-1","phase":"drain"`} {
		require.Contains(t, text, want)
	}
}
