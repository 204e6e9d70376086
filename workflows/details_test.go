package workflows

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/sdk/converter"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// argument is the input of the resolve update that the details show.
func argument(t *testing.T, details string) (r lifecycle.ResolveRequest) {
	t.Helper()
	raw := regexp.MustCompile("`({[^`]+})`").FindStringSubmatch(details)
	require.NotNil(t, raw, details)
	require.NoError(t, json.Unmarshal([]byte(raw[1]), &r))
	return r
}

// TestShownArgument: the run accepts the shown input once its reason is filled in, and
// rejects it when the operation is no longer in that park.
func TestShownArgument(t *testing.T) {
	t.Parallel()
	for reason, c := range map[string]struct {
		action lifecycle.Action
		from   lifecycle.NodeState
		on     task.Type
		answer func(activities.TaskSpec) (task.Result, error)
	}{
		"drain_blocked": {lifecycle.ActionDrain, lifecycle.NodeActive, task.WorkloadDrain, func(activities.TaskSpec) (task.Result, error) {
			return succeeded(task.DrainResult{Blocked: []task.Blocker{{Workload: "job-1", Reason: "checkpointing"}}}), nil
		}},
		"task_lost": {lifecycle.ActionDrain, lifecycle.NodeActive, task.WorkloadDrain,
			func(activities.TaskSpec) (task.Result, error) { return task.Result{}, lost() }},
		"task_refused": {lifecycle.ActionDrain, lifecycle.NodeActive, task.WorkloadCordon,
			func(activities.TaskSpec) (task.Result, error) {
				return task.Result{}, final(schema.KindTaskRefused, "no luck")
			}},
		"timeout": {lifecycle.ActionEnroll, lifecycle.NodeRegistered, "", nil},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			w := newWorld(c.from)
			if c.on != "" {
				w.on[c.on] = c.answer
			}
			b := setup(t, c.action, w)
			var shown lifecycle.ResolveRequest
			b.at(30*time.Hour, func() {
				st := b.status()
				require.Equal(t, reason, st.Operation.Stuck.Reason)
				shown = argument(t, (&state{in: b.in, status: st}).markdown())
				b.resolve(shown)
				shown.Reason, shown.By = "inspected the node", "bob"
				b.resolve(shown)
			})
			b.at(61*time.Hour, func() { b.resolve(shown) }) // a canceled operation has ended by then
			b.decideAt(62*time.Hour, lifecycle.DecisionCancel)
			b.run()
			require.Equal(t, shown.Decision, w.decisions[0])
			require.Equal(t, "reason_missing", failureOf(b.resolved[0]).Reason)
			require.NoError(t, b.resolved[1])
			if shown.Decision != lifecycle.DecisionCancel {
				require.Equal(t, schema.KindDecisionOutdated, kindOf(b.resolved[2]))
			}
		})
	}
}

// TestLastFailureIsShown: while a decision runs the phase again, its details show the
// failure of the attempt before; those of the next phase do not.
func TestLastFailureIsShown(t *testing.T) {
	t.Parallel()
	failed := failed{phase: 0, message: "no `luck`", at: time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)}
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	st := &state{plan: plan, failed: failed}
	st.status.Operation = lifecycle.Operation{Status: lifecycle.OperationRunning, Phases: plan.Statuses(), DeadlineAt: &failed.at}
	require.Contains(t, st.markdown(), "Last failure of this phase, at 2026-11-23 09:00:00Z: `no 'luck'`")
	st.phase = 1
	require.NotContains(t, st.markdown(), "Last failure")

	w := newWorld(lifecycle.NodeActive)
	fails(task.WorkloadCordon)(w)
	b := setup(t, lifecycle.ActionDrain, w)
	b.decideAt(time.Hour, lifecycle.DecisionRetry)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
}

// TestPageOfAParkedRun: on a real server, the page of a parked run that waits for a person
// has a timer with the reason and the first option, the memo has the stuck object, and both
// end with the park.
func TestPageOfAParkedRun(t *testing.T) {
	w := newWorld(lifecycle.NodeActive)
	fails(task.WorkloadCordon)(w)
	w.open[task.WorkloadDrain] = true
	r, _ := onServer(t, w)
	defer r.startWorker()()
	r.submit(lifecycle.ActionDrain)
	stuck := r.until(lifecycle.OperationParked).Stuck

	timers := func() (summaries []string, open int) {
		parks := map[int64]bool{}
		for _, e := range r.save("", "").GetEvents() {
			if e.GetTimerStartedEventAttributes().GetStartToFireTimeout().AsDuration() == confirmPause {
				parks[e.GetEventId()] = true
				summaries = append(summaries, decode[string](t, e.GetUserMetadata().GetSummary()))
			}
			delete(parks, e.GetTimerCanceledEventAttributes().GetStartedEventId())
		}
		return summaries, len(parks)
	}
	summaries, open := timers()
	require.Len(t, summaries, 1)
	require.Equal(t, "task_failed, waits for a decision: gpuaas op show gpu-17", summaries[0])
	require.Equal(t, 1, open)
	d, err := r.SDK().DescribeWorkflowExecution(t.Context(), r.op.WorkflowID, r.op.RunID)
	require.NoError(t, err)
	memo := decode[lifecycle.Stuck](t, d.GetWorkflowExecutionInfo().GetMemo().GetFields()[lifecycle.MemoStuck])
	require.Equal(t, *stuck, memo)
	require.Equal(t, r.op.OperationID, argument(t, r.currentDetails()).OperationID)

	r.decide(lifecycle.DecisionRetry)
	_, open = timers()
	require.Zero(t, open, "no timer of the park stays open")
	require.NotContains(t, r.currentDetails(), "Options")
}

// currentDetails asks the worker for the details, as the Web UI does.
func (r *recorder) currentDetails() string {
	r.t.Helper()
	v, err := r.SDK().QueryWorkflow(r.t.Context(), r.op.WorkflowID, r.op.RunID, "__temporal_workflow_metadata")
	require.NoError(r.t, err)
	var m sdkpb.WorkflowMetadata
	require.NoError(r.t, v.Get(&m))
	return strings.TrimSpace(m.GetCurrentDetails())
}

func decode[T any](t *testing.T, p *commonpb.Payload) (value T) {
	t.Helper()
	require.NoError(t, converter.GetDefaultDataConverter().FromPayload(p, &value))
	return value
}
