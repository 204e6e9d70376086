package workflows

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

var errDatabase = schema.NewError(schema.KindServiceUnavailable, "the database is unavailable")

// TestRecordsWaitForTheDatabase: a write that the database does not accept for days
// delays the operation and is shown; it never fails the run.
func TestRecordsWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	const outage = 60 * time.Hour
	for _, call := range []string{"claim", "finish completed"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.fail[call] = errDatabase
			b := setup(t, lifecycle.ActionDrain, w)
			b.at(30*time.Second, func() { require.Nil(t, b.status().Operation.Stuck) })
			for _, d := range []time.Duration{2 * time.Minute, outage - time.Minute} {
				b.at(d, func() {
					s := b.status().Operation.Stuck
					require.NotNil(t, s)
					require.Equal(t, lifecycle.ReasonRecordUnavailable, s.Reason)
					require.Equal(t, lifecycle.AttentionOperator, s.WaitingOn)
				})
			}
			b.at(outage, func() { w.heal(call) })
			st := b.run()
			require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
			require.Nil(t, st.Operation.Stuck)
			require.Empty(t, w.parks)
		})
	}
}

// TestFactsAreRecordedAfterAnOutage: what a phase found out is stored although the next
// phase parked while the database was unavailable.
func TestFactsAreRecordedAfterAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["facts"], w.fail["park probe"] = errDatabase, errDatabase
	w.fail["enqueue node.probe"] = errDatabase
	b := setup(t, lifecycle.ActionProvision, w)
	b.at(30*time.Hour, func() {
		require.Empty(t, w.facts)
		w.heal("facts")
		w.heal("park probe")
		w.heal("enqueue node.probe")
	})
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.NotEmpty(t, w.facts)
}

// TestParkIsRecordedAfterAnOutage: the record of a park is repeated until it is stored,
// and delays no decision.
func TestParkIsRecordedAfterAnOutage(t *testing.T) {
	t.Parallel()

	t.Run("while the operation stays parked", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
		w.fail["park cordon"] = errDatabase
		b := setup(t, lifecycle.ActionDrain, w)
		b.at(30*time.Hour, func() { w.heal("park cordon") })
		b.at(31*time.Hour, func() {
			require.Len(t, w.parks, 1)
			b.decide(lifecycle.DecisionSkip, "because")
		})
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	})

	t.Run("and a decision does not wait for it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
		w.fail["park cordon"], w.fail["decide skip"] = errDatabase, errDatabase
		w.open[task.WorkloadDrain] = true
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Hour, lifecycle.DecisionSkip)
		b.at(time.Hour+time.Minute, func() {
			require.Equal(t, []error{nil}, b.resolved)
			require.Contains(t, w.story(), "task workload.drain")
		})
		b.at(2*time.Hour, func() { w.heal("park cordon") })
		b.at(2*time.Hour, func() { w.heal("decide skip") })
		b.at(3*time.Hour, func() { b.decide(lifecycle.DecisionCancel, "enough") })
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.ElementsMatch(t, []lifecycle.Decision{lifecycle.DecisionSkip, lifecycle.DecisionCancel}, w.decisions)
		require.Len(t, w.parks, 1)
	})

	t.Run("and the operation does not end before its decisions are stored", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
		w.fail["decide skip"] = errDatabase
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Hour, lifecycle.DecisionSkip)
		b.at(30*time.Hour, func() {
			require.Equal(t, lifecycle.ReasonRecordUnavailable, b.status().Operation.Stuck.Reason)
			w.heal("decide skip")
		})
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, []lifecycle.Decision{lifecycle.DecisionSkip}, w.decisions)
		require.Less(t, slices.Index(w.story(), "decide skip"), slices.Index(w.story(), "finish completed"))
	})
}

// TestTasksFollowTheClock: a task's number is newer than every write before it, so that
// the database records the run that works on it, and older than the writes after it.
func TestTasksFollowTheClock(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
	b := setup(t, lifecycle.ActionDrain, w)
	started := b.env.Now()
	var before, after int64
	b.at(time.Hour, func() {
		before = w.steps[len(w.steps)-1] // of the park
		require.Less(t, w.clocks[0], before)
		w.heal("task workload.cordon")
		b.decide(lifecycle.DecisionRetry, "because")
	})
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	after = w.steps[len(w.steps)-1] // of the drain's phase, written with its task
	require.Len(t, w.clocks, 3, "cordon, cordon again, drain")
	require.GreaterOrEqual(t, w.clocks[0], started.UnixMicro())
	require.Greater(t, w.clocks[1], before)
	require.Greater(t, w.clocks[2], after)
	require.Equal(t, w.specs[len(w.specs)-1].Clock, w.clocks[2], "the activity that waits has the same number")
}

// TestProgressFollowsTheClock: the number of a write is the workflow's clock, so that the
// writes of a reset run are newer than those before the reset.
func TestProgressFollowsTheClock(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
	b := setup(t, lifecycle.ActionDrain, w)
	started := b.env.Now()
	b.decideAt(time.Hour, lifecycle.DecisionSkip)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Len(t, w.steps, 3) // park, decision, phase
	require.GreaterOrEqual(t, w.steps[0], started.UnixMicro())
	require.GreaterOrEqual(t, w.steps[1], started.Add(time.Hour).UnixMicro())
	require.Greater(t, w.steps[2], w.steps[1])
}

// TestCancelBeforeTheClaim: an operation that waits for its claim is canceled at once by
// the update, and never works on the node, whenever the database is back.
func TestCancelBeforeTheClaim(t *testing.T) {
	t.Parallel()
	for name, cancel := range map[string]func(*bed){
		"by an update":  func(b *bed) { b.decide(lifecycle.DecisionCancel, "worked around it") },
		"in the Web UI": func(b *bed) { b.env.CancelWorkflow() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.fail["claim"] = errDatabase
			b := setup(t, lifecycle.ActionDrain, w)
			b.at(10*time.Minute, func() {
				require.Equal(t, lifecycle.DecisionCancel, b.status().Operation.Stuck.Options[0].Decision)
				cancel(b)
			})
			b.at(11*time.Minute, func() {
				for _, err := range b.resolved {
					require.NoError(t, err, "the cancel does not wait for the database")
				}
				b.decide(lifecycle.DecisionSkip, "too early")
			})
			b.at(3*time.Hour, func() { w.heal("claim") })
			require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
			require.Equal(t, lifecycle.NodeActive, w.finished.Node)
			require.Error(t, b.resolved[len(b.resolved)-1])
			for _, call := range w.story() {
				require.NotContains(t, call, "task ")
			}
		})
		t.Run(name+", and the claim is refused", func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.fail["claim"] = errDatabase
			b := setup(t, lifecycle.ActionDrain, w)
			b.at(10*time.Minute, func() { cancel(b) })
			b.at(3*time.Hour, func() { w.failWith("claim", schema.NewError(schema.KindClaimExpired, "the claim expired")) })
			require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
			require.Nil(t, w.finished)
		})
	}
}

// TestClaimExpired: a claim that comes too late is refused.
func TestClaimExpired(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["claim"] = schema.NewError(schema.KindClaimExpired, "the claim expired")
	b := setup(t, lifecycle.ActionDrain, w)
	require.Equal(t, lifecycle.OperationRejected, b.run().Operation.Status)
	require.Equal(t, schema.KindClaimExpired, b.kindOfRefusal())
}

// TestSilentWorkerIsNotTheAgent: if no worker ends the call that enqueues a task, or that reads
// the heartbeat, the operation waits for the operator of the control plane, not for the agent.
func TestSilentWorkerIsNotTheAgent(t *testing.T) {
	t.Parallel()
	late := temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, nil)
	for name, c := range map[string]struct {
		action lifecycle.Action
		call   string
		slow   any
	}{
		"enqueue":   {lifecycle.ActionDrain, "enqueue workload.cordon", node.EnqueueNodeTask},
		"heartbeat": {lifecycle.ActionProvision, "heartbeat?", record.CheckAgent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.fail[c.call] = errDatabase
			b := setup(t, c.action, w)
			b.env.OnActivity(c.slow, anything, anything).Return(late)
			var stuck *lifecycle.Stuck
			b.at(time.Hour, func() { stuck = b.status().Operation.Stuck; b.env.CancelWorkflow() })
			b.run()
			require.NotNil(t, stuck)
			require.Equal(t, string(schema.KindServiceUnavailable), stuck.Reason)
			require.Equal(t, lifecycle.AttentionOperator, stuck.WaitingOn)
			require.NotNil(t, stuck.Retrying)
		})
	}
}
