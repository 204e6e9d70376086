package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// renewed runs the operation until it continues as a new run, and returns what the run
// passes on.
func (b *bed) renewed() (in lifecycle.OperationInput, c *Carried) {
	b.t.Helper()
	plan, _ := lifecycle.PlanOf(b.in.Action, b.in.Options)
	b.env.ExecuteWorkflow(plan.Workflow, b.in)
	var next *workflow.ContinueAsNewError
	require.ErrorAs(b.t, b.env.GetWorkflowError(), &next)
	require.Equal(b.t, plan.Workflow, next.WorkflowType.Name)
	require.NoError(b.t, converter.GetDefaultDataConverter().FromPayloads(next.Input, &in, &c))
	return in, c
}

// continued runs an operation that another run carried on.
func (b *bed) continued(in lifecycle.OperationInput, c *Carried) (st lifecycle.OperationStatus, err error) {
	b.t.Helper()
	plan, _ := lifecycle.PlanOf(in.Action, in.Options)
	b.env.ExecuteWorkflow(plan.Workflow, in, c)
	require.True(b.t, b.env.IsWorkflowCompleted())
	if err = b.env.GetWorkflowError(); err == nil {
		err = b.env.GetWorkflowResult(&st)
	}
	return st, err
}

// TestRenewal: a parked operation whose history has grown continues as a new run in the
// same place. Decisions that are addressed to its park remain valid.
func TestRenewal(t *testing.T) {
	t.Parallel()
	for name, resume := range map[string]func(b *bed, w *world, c *Carried){
		"and resumes without a decision": func(_ *bed, w *world, _ *Carried) { w.setSilent(task.WorkloadCordon, false) },
		"and takes a decision": func(b *bed, _ *world, c *Carried) {
			b.resolve(lifecycle.ResolveRequest{OperationID: "op-1", Phase: lifecycle.PhaseCordon, StuckSince: &c.Status.Operation.Stuck.Since,
				Decision: lifecycle.DecisionSkip, Reason: "because", By: "bob"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.silent[task.WorkloadCordon] = true
			b := setup(t, lifecycle.ActionDrain, w)
			b.at(3*time.Hour, func() { b.env.SetCurrentHistoryLength(maxEvents + 1) })
			in, c := b.renewed()
			require.Equal(t, b.in, in)
			require.Len(t, w.parks, 1)
			last := w.steps[len(w.steps)-1]

			b = setup(t, lifecycle.ActionDrain, w)
			b.env.SetStartTime(c.Status.Operation.Stuck.Since.Add(4 * time.Hour))
			b.at(time.Hour, func() {
				s := b.status().Operation
				require.Equal(t, lifecycle.OperationParked, s.Status)
				require.True(t, c.Status.Operation.Stuck.Since.Equal(s.Stuck.Since))
				require.Greater(t, s.Stuck.Retrying.Tries, c.Status.Operation.Stuck.Retrying.Tries)
				resume(b, w, c)
			})
			st, err := b.continued(in, c)
			require.NoError(t, err)
			require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
			require.Equal(t, 1, w.count("claim"))
			require.Greater(t, w.steps[len(w.steps)-1], last)
			require.Equal(t, int64(7), b.answer.OpSeq, "a repeated submit is answered")
			for _, err := range b.resolved {
				require.NoError(t, err)
			}
		})
	}
}

// TestRenewalKeepsDecisions: a decision that an earlier run took is answered again after
// a renewal, and not applied again.
func TestRenewalKeepsDecisions(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.on[task.WorkloadCordon] = func(activities.TaskSpec) (task.Result, error) {
		return task.Result{}, final(schema.KindTaskFailed, "no luck")
	}
	b := setup(t, lifecycle.ActionDrain, w)
	b.decideAt(time.Hour, lifecycle.DecisionRetry) // decision-0
	b.at(3*time.Hour, func() {
		b.env.SetCurrentHistoryLength(maxEvents + 1)
		b.env.SignalWorkflow(lifecycle.SignalAgent, lifecycle.AgentEvent{}) // wakes the run
	})
	in, c := b.renewed()
	require.Equal(t, []lifecycle.Decision{lifecycle.DecisionRetry}, w.decisions)

	again := func(d lifecycle.Decision) lifecycle.ResolveRequest {
		return lifecycle.ResolveRequest{Decision: d, Reason: "because", By: "bob"}
	}
	b = setup(t, lifecycle.ActionDrain, w)
	b.env.SetStartTime(c.Status.Operation.Stuck.Since.Add(4 * time.Hour))
	b.at(time.Hour, func() { b.resolve(again(lifecycle.DecisionRetry)) }) // decision-0
	b.at(2*time.Hour, func() {
		require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
		require.Equal(t, []lifecycle.Decision{lifecycle.DecisionRetry}, w.decisions)
		b.resolve(again(lifecycle.DecisionCancel)) // decision-1
	})
	_, err := b.continued(in, c)
	require.ErrorContains(t, err, "canceled")
	require.NoError(t, b.resolved[0])
	require.NoError(t, b.resolved[1])
	require.Equal(t, []lifecycle.Decision{lifecycle.DecisionRetry, lifecycle.DecisionCancel}, w.decisions)
}

// TestRenewalOfAnUndo: a parked compensation continues in a new run, and the operation
// ends as canceled.
func TestRenewalOfAnUndo(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.open[task.WorkloadDrain] = true
	w.silent[task.WorkloadUncordon] = true
	b := setup(t, lifecycle.ActionDrain, w)
	b.decideAt(time.Minute, lifecycle.DecisionCancel)
	b.at(3*time.Hour, func() { b.env.SetCurrentHistoryLength(maxEvents + 1) })
	in, c := b.renewed()
	require.True(t, c.Undoing)

	b = setup(t, lifecycle.ActionDrain, w)
	b.resolved = append(b.resolved, nil) // the first run took decision-0
	b.decideAt(time.Hour, lifecycle.DecisionCancel)
	b.at(2*time.Hour, func() { w.setSilent(task.WorkloadUncordon, false) })
	_, err := b.continued(in, c)
	require.ErrorContains(t, err, "canceled")
	require.Equal(t, "decision_unfit", failureOf(b.resolved[1]).Reason)
	require.Equal(t, lifecycle.NodeActive, w.finished.Node)
	require.Equal(t, lifecycle.OperationCanceled, w.finished.Status)
}

// TestRenewalOfAnEnrollment: the run that continues a parked enrollment follows its events,
// whether it retries in the background or not.
func TestRenewalOfAnEnrollment(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"is retried": nil, "is not": final(schema.KindInternal, "no luck"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeRegistered)
			b := setup(t, lifecycle.ActionEnroll, w)
			if failure != nil {
				w.fail["read enrollment"] = failure
			}
			b.at(time.Hour, func() {
				b.env.SetCurrentHistoryLength(maxEvents + 1)
				b.env.SignalWorkflow(lifecycle.SignalAgent, lifecycle.AgentEvent{}) // wakes the run
			})
			in, c := b.renewed()
			require.Equal(t, failure == nil, c.Status.Operation.Stuck.Retrying != nil)

			b = setup(t, lifecycle.ActionEnroll, w)
			b.env.SetStartTime(c.Status.Operation.Stuck.Since.Add(4 * time.Hour))
			b.at(time.Second, func() { w.heal("read enrollment") })
			b.signalAt(10*time.Second, lifecycle.EventBundleIssued, 1)
			b.at(30*time.Second, func() {
				require.Equal(t, lifecycle.OperationRunning, b.status().Operation.Status, "without a retry's pause")
			})
			b.signalAt(40*time.Second, lifecycle.EventFirstPoll, 1)
			st, err := b.continued(in, c)
			require.NoError(t, err)
			require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		})
	}
}

// TestRenewalWaitsForRecords: a run does not end before its writes are stored.
func TestRenewalWaitsForRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
	w.fail["park cordon"] = errDatabase
	b := setup(t, lifecycle.ActionDrain, w)
	b.env.SetCurrentHistoryLength(maxEvents + 1)
	b.at(2*time.Hour, func() {
		require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
		w.heal("park cordon")
	})
	b.renewed()
	require.Len(t, w.parks, 1)
}
