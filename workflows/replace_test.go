package workflows

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// TestCancelReplacesAWaitingDecision: a person cancels while an earlier decision waits for
// the database. The cancel takes effect, and the work of the first decision never starts.
func TestCancelReplacesAWaitingDecision(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
	b := setup(t, lifecycle.ActionDrain, w)
	b.at(time.Hour, func() {
		w.failWith("void", errDatabase)
		b.decide(lifecycle.DecisionRetry, "because")
	})
	b.at(2*time.Hour, func() {
		require.Equal(t, errUnanswered, b.resolved[0])
		b.decide(lifecycle.DecisionCancel, "the node is needed")
		b.decide(lifecycle.DecisionCancel, "again")
	})
	b.at(3*time.Hour, func() { w.heal("void") })
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	require.Equal(t, schema.KindDecisionOutdated, kindOf(b.resolved[0]))
	require.NoError(t, b.resolved[1])
	require.Equal(t, schema.KindOperationInProgress, kindOf(b.resolved[2]))
	require.NotContains(t, w.enqueued, "workload.cordon#2")
	require.Equal(t, []lifecycle.Decision{lifecycle.DecisionCancel}, w.decisions, "the retry was not taken")
}

// TestCancelFollowsARecordedDecision: a decision stays taken while its record is written, at
// once or in the background. The cancel that is sent meanwhile follows it. Both are reported
// as taken and are in the audit. If the database rejects the first decision, neither is.
func TestCancelFollowsARecordedDecision(t *testing.T) {
	t.Parallel()
	const skip, cancel = lifecycle.DecisionSkip, lifecycle.DecisionCancel
	for name, c := range map[string]struct {
		fails error // of the skip's record, until an hour later
		taken []lifecycle.Decision
		end   lifecycle.OperationState
	}{
		"at once":           {nil, []lifecycle.Decision{skip, cancel}, lifecycle.OperationCanceled},
		"in the background": {errDatabase, []lifecycle.Decision{cancel, skip}, lifecycle.OperationCanceled},
		"rejected":          {errOver, nil, lifecycle.OperationFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.fail["task workload.cordon"], w.fail["decide skip"] = final(schema.KindTaskFailed, "no luck"), c.fails
			b := setup(t, lifecycle.ActionDrain, w)
			var once sync.Once
			w.onDecide = func() {
				once.Do(func() {
					b.decide(lifecycle.DecisionForce, "a second decision")
					b.decide(cancel, "the node is needed")
				})
			}
			b.decideAt(time.Hour, skip)
			b.at(2*time.Hour, func() { w.heal("decide skip") })
			require.Equal(t, c.end, b.run().Operation.Status)
			require.Equal(t, c.taken, w.decisions)
			require.Equal(t, schema.KindOperationInProgress, kindOf(b.resolved[1]))
			for _, i := range []int{0, 2} {
				if c.taken != nil {
					require.NoError(t, b.resolved[i])
				} else {
					require.Equal(t, schema.KindDecisionOutdated, kindOf(b.resolved[i]))
				}
			}
			require.NotContains(t, w.enqueued, "workload.drain")
		})
	}
}

// TestRejectedDecision: a decision that the database rejects is neither applied nor reported
// as taken, for example because the operation ended through another run.
func TestRejectedDecision(t *testing.T) {
	t.Parallel()
	invalid := schema.NewError(schema.KindInvalidRequest, "the database rejects the decision")
	inUndo := func(b *bed, w *world) {
		w.open[task.WorkloadDrain] = true
		w.fail["task workload.uncordon"] = final(schema.KindTaskFailed, "no luck")
		b.decideAt(time.Minute, lifecycle.DecisionCancel)
	}
	inCordon := func(_ *bed, w *world) { w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck") }
	for name, c := range map[string]struct {
		parks  func(b *bed, w *world)
		decide []lifecycle.Decision
	}{
		"in a phase": {inCordon, []lifecycle.Decision{lifecycle.DecisionSkip, lifecycle.DecisionCancel, lifecycle.DecisionRetry}},
		"in an undo": {inUndo, []lifecycle.Decision{lifecycle.DecisionSkip, lifecycle.DecisionRetry}},
	} {
		for _, rejection := range []*schema.Error{errOver, invalid} {
			for _, d := range c.decide {
				t.Run(fmt.Sprintf("%s %s %s", d, name, rejection.Kind), func(t *testing.T) {
					t.Parallel()
					w := newWorld(lifecycle.NodeActive)
					b := setup(t, lifecycle.ActionDrain, w)
					c.parks(b, w)
					b.at(30*time.Minute, func() {
						w.failWith("decide "+string(d), rejection)
					})
					b.decideAt(time.Hour, d)
					b.env.ExecuteWorkflow(plannedWorkflow(t, lifecycle.ActionDrain), b.in)
					require.True(t, b.env.IsWorkflowCompleted())
					if rejection == invalid {
						require.Equal(t, invalid.Kind, kindOf(b.env.GetWorkflowError()), "a defect fails the run")
					} else {
						var st lifecycle.OperationStatus
						require.NoError(t, b.env.GetWorkflowResult(&st))
						requireFenced(t, w, st)
					}
					answer := b.resolved[len(b.resolved)-1]
					require.Equal(t, schema.KindDecisionOutdated, kindOf(answer), "%v", answer)
					require.NotContains(t, w.decisions, d)
					require.Nil(t, w.finished)
					require.NotContains(t, w.story(), "task workload.cordon#2")
				})
			}
		}
	}
}

func plannedWorkflow(t *testing.T, a lifecycle.Action) string {
	t.Helper()
	plan, ok := lifecycle.PlanOf(a, lifecycle.Options{})
	require.True(t, ok)
	return plan.Workflow
}

// TestDecisionOfAnotherRun: a force and a skip apply only to the run they were sent to and to
// the run that continues it.
func TestDecisionOfAnotherRun(t *testing.T) {
	t.Parallel()
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	drain := 1
	for run, fits := range map[string]bool{"": true, "now": true, "before": true, "reset": false} {
		for _, d := range []lifecycle.Decision{lifecycle.DecisionForce, lifecycle.DecisionSkip, lifecycle.DecisionCancel} {
			s := &state{plan: plan, phase: drain, answered: true, status: lifecycle.OperationStatus{
				Operation: lifecycle.Operation{OperationID: "op-1", RunID: "now", Phases: plan.Statuses()}}}
			ds := &decisions{state: s, runBefore: "before"}
			e := ds.validate(lifecycle.ResolveRequest{OperationID: "op-1", Via: "api", Decision: d, Reason: "because", By: "bob", RunID: run})
			if fits || d == lifecycle.DecisionCancel {
				require.Nil(t, e, "%s of run %q", d, run)
				continue
			}
			require.Equal(t, schema.KindDecisionOutdated, e.Kind)
			require.Contains(t, e.Message, "the current run is now")
		}
	}
}

// TestResetRepeatsNoForce: a reset to before a force applies the update again. The new run
// does not kill the workloads: a person decides that again.
func TestResetRepeatsNoForce(t *testing.T) {
	w := newWorld(lifecycle.NodeActive)
	w.open[task.WorkloadDrain] = true
	r, namespace := onServer(t, w)
	defer r.startWorker()()
	r.submit(lifecycle.ActionDrain)
	r.untilCall("task workload.drain")
	r.decide(lifecycle.DecisionForce)
	r.untilCall("task workload.drain#2")

	var before int64 // the last workflow task before the force
	updates := 0     // the first one is submit
	for _, e := range r.keep("").GetEvents() {
		if e.GetWorkflowExecutionUpdateAcceptedEventAttributes() != nil {
			updates++
		}
		if e.GetWorkflowTaskCompletedEventAttributes() != nil && updates < 2 {
			if next := e.GetEventId(); !acceptedBy(r, next) {
				before = next
			}
		}
	}
	require.Positive(t, before)
	r.op.RunID = temporaltest.Reset(t, r.SDK(), namespace, r.op.WorkflowID, r.op.RunID, before)
	r.decide(lifecycle.DecisionCancel)
	st, err := r.Operations.Result(t.Context(), r.op.WorkflowID, r.op.RunID)
	require.NoError(t, err)
	require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
	require.Equal(t, 1, w.count("decide force"), "the reset run forces again")
}

// acceptedBy reports whether the workflow task that ended with the event accepted the force.
func acceptedBy(r *recorder, completed int64) bool {
	for _, e := range r.keep("").GetEvents() {
		a := e.GetWorkflowExecutionUpdateAcceptedEventAttributes()
		if a != nil && e.GetEventId() > completed && e.GetEventId() <= completed+1 &&
			strings.Contains(a.GetAcceptedRequest().String(), string(lifecycle.DecisionForce)) {
			return true
		}
	}
	return false
}

// TestNamePlaceholder: the printed input of a decision has a placeholder for the name, which
// is no name.
func TestNamePlaceholder(t *testing.T) {
	t.Parallel()
	e := malformed(lifecycle.ResolveRequest{Decision: lifecycle.DecisionRetry, Reason: "because", By: " YOUR NAME"})
	require.NotNil(t, e)
	require.Equal(t, "bad_by", e.Reason)
}

// TestCancelInWebUIIsNotTheStarters: the end of an operation whose run was canceled in the Web
// UI names Temporal, not the person who started it.
func TestCancelInWebUIIsNotTheStarters(t *testing.T) {
	t.Parallel()
	for how, byTemporal := range map[string]bool{"in the Web UI": true, "by a decision": false} {
		w := newWorld(lifecycle.NodeActive)
		w.open[task.WorkloadDrain] = true
		b := setup(t, lifecycle.ActionDrain, w)
		b.at(time.Minute, func() {
			if byTemporal {
				b.env.CancelWorkflow()
			} else {
				b.decide(lifecycle.DecisionCancel, "because")
			}
		})
		outcome, actor := "rolled back", "alice"
		if byTemporal {
			outcome, actor = "canceled in Temporal: rolled back", lifecycle.ActorTemporal
		}
		require.Equal(t, outcome, b.run().Operation.Outcome, how)
		require.Equal(t, actor, w.finisher, how)
	}
}

// TestNextStepIsBounded: the next step of a failure is one line of bounded length.
func TestNextStepIsBounded(t *testing.T) {
	t.Parallel()
	e := failureOf(schema.NewError(schema.KindUnfit, "x").WithNext(strings.Repeat(hostile, 1000)))
	require.LessOrEqual(t, len(e.Next), 4*maxMessage)
	require.NotContains(t, e.Next, "\n")
	requireReadable(t, e.Next)
}
