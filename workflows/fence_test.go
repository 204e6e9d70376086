package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// errOver is the database's answer to a run of an operation that has ended, for example
// after a reset.
var errOver = schema.NewError(schema.KindFenced, "operation op-1 has ended").WithReason("operation_over")

// requireFenced checks that the run ended because the operation has ended, and changed
// nothing after it noticed.
func requireFenced(t *testing.T, w *world, st lifecycle.OperationStatus) {
	t.Helper()
	require.Equal(t, lifecycle.OperationFailed, st.Operation.Status)
	require.Equal(t, outcomeOver, st.Operation.Outcome)
	require.Nil(t, w.finished)
	for _, call := range []string{"task workload.uncordon", "finish " + string(lifecycle.OperationCanceled), "finish completed"} {
		require.NotContains(t, w.story(), call)
	}
}

// TestFencedRecord: a write of the progress shows that the operation has ended. The run
// ends as well, undoes nothing and releases the workflow ID.
func TestFencedRecord(t *testing.T) {
	t.Parallel()

	t.Run("as it parks", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
		w.fail["park cordon"] = errOver
		requireFenced(t, w, setup(t, lifecycle.ActionDrain, w).run())
	})

	t.Run("as its park is recorded in the background", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
		w.fail["park cordon"] = errDatabase
		b := setup(t, lifecycle.ActionDrain, w)
		b.at(3*time.Hour, func() {
			require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
			w.failWith("park cordon", errOver)
		})
		requireFenced(t, w, b.run())
	})

	t.Run("as a decision is recorded in the background of a phase", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
		w.fail["decide skip"] = errDatabase
		w.open[task.WorkloadDrain] = true
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Hour, lifecycle.DecisionSkip)
		b.at(time.Hour+time.Minute, func() {
			require.Contains(t, w.story(), "task workload.drain")
			w.failWith("decide skip", errOver)
		})
		b.at(time.Hour+5*time.Minute, func() { require.True(t, b.env.IsWorkflowCompleted(), "the phase still waits") })
		requireFenced(t, w, b.run())
	})

	t.Run("as a decision is recorded", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
		w.fail["decide cancel"] = errOver
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		requireFenced(t, w, b.run())
	})

	t.Run("as a decision is recorded in the background before the outcome", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
		w.fail["decide skip"] = errDatabase
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Hour, lifecycle.DecisionSkip)
		b.at(2*time.Hour, func() {
			require.Equal(t, lifecycle.ReasonRecordUnavailable, b.status().Operation.Stuck.Reason)
			w.failWith("decide skip", errOver)
		})
		requireFenced(t, w, b.run())
	})

	t.Run("as a phase begins", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeRegistered)
		w.fail["advance claim"] = errOver
		b := setup(t, lifecycle.ActionEnroll, w)
		b.signalAt(time.Second, lifecycle.EventBundleIssued, 1)
		b.at(time.Minute, func() { require.True(t, b.env.IsWorkflowCompleted(), "the phase waits for an event") })
		requireFenced(t, w, b.run())
	})

	t.Run("in an undo", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.open[task.WorkloadDrain] = true
		w.fail["task workload.uncordon"] = final(schema.KindTaskFailed, "no luck")
		w.fail["park "+lifecycle.PhaseUndoCordon] = errOver
		b := setup(t, lifecycle.ActionDrain, w)
		b.decideAt(time.Minute, lifecycle.DecisionCancel)
		st := b.run()
		require.Equal(t, lifecycle.OperationFailed, st.Operation.Status)
		require.Equal(t, outcomeOver, st.Operation.Outcome)
		require.Nil(t, w.finished)
	})
}

// TestParkedRunOfAnEndedOperation: a parked run notices within an hour and without a decision
// that its operation has ended, whether it retries in the background or not. A database that
// does not respond ends no run.
func TestParkedRunOfAnEndedOperation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		action lifecycle.Action
		state  lifecycle.NodeState
		call   string
		fails  error
		phase  string
	}{
		"waits for a person":        {lifecycle.ActionDrain, lifecycle.NodeActive, "task workload.cordon", final(schema.KindTaskFailed, "no luck"), lifecycle.PhaseCordon},
		"waits for an agent":        {lifecycle.ActionProvision, lifecycle.NodeActive, "heartbeat?", schema.NewError(schema.KindAgentSilent, "no heartbeat"), lifecycle.PhaseAgent},
		"waits for a first bundle":  {lifecycle.ActionEnroll, lifecycle.NodeRegistered, "", nil, lifecycle.PhaseBundle},
		"waits for a reissued one":  {lifecycle.ActionReissueEnrollment, lifecycle.NodeActive, "", nil, lifecycle.PhaseBundle},
		"waits, the database fails": {lifecycle.ActionEnroll, lifecycle.NodeRegistered, "read enrollment", errDatabase, lifecycle.PhaseBundle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(c.state)
			w.fail[c.call], w.fail["confirm "+c.phase] = c.fails, errDatabase
			b := setup(t, c.action, w)
			b.at(10*time.Hour, func() {
				require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
				w.failWith("confirm "+c.phase, errOver)
			})
			b.at(11*time.Hour+15*time.Minute, func() { require.True(t, b.env.IsWorkflowCompleted(), "the run is still open") })
			requireFenced(t, w, b.run())
			require.Len(t, w.parks, 1)
		})
	}
}

// TestWaitingRunOfAnEndedOperation: so does a run that waits for an agent within its budget,
// for example because it was reset.
func TestWaitingRunOfAnEndedOperation(t *testing.T) {
	t.Parallel()
	for action, from := range map[lifecycle.Action]lifecycle.NodeState{
		lifecycle.ActionEnroll: lifecycle.NodeRegistered, lifecycle.ActionReissueEnrollment: lifecycle.NodeActive,
	} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			w := newWorld(from)
			b := setup(t, action, w)
			b.signalAt(time.Second, lifecycle.EventBundleIssued, 1)
			b.at(10*time.Hour, func() {
				require.Equal(t, lifecycle.OperationRunning, b.status().Operation.Status)
				w.failWith("advance claim", errOver)
			})
			b.at(11*time.Hour+time.Minute, func() { require.True(t, b.env.IsWorkflowCompleted(), "the run is still open") })
			requireFenced(t, w, b.run())
			require.Empty(t, w.parks)
		})
	}
}

// TestConfirmedPark: a park that is confirmed is not recorded as another one, and never
// before the park itself is on record. It adds one write an hour.
func TestConfirmedPark(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["task workload.cordon"], w.fail["park cordon"] = final(schema.KindTaskFailed, "no luck"), errDatabase
	b := setup(t, lifecycle.ActionDrain, w)
	b.at(5*time.Hour, func() {
		require.Zero(t, w.count("confirm cordon"))
		w.heal("park cordon")
	})
	b.decideAt(105*time.Hour, lifecycle.DecisionSkip)
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.Len(t, w.parks, 1)
	require.InDelta(t, 100, w.count("confirm cordon"), 1)
}

// TestFencedRenewal: the run that continues a parked operation notices that the operation
// has ended.
func TestFencedRenewal(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]error{"at once": errOver, "in the background": errDatabase} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, in, c := parkedCordon(t)
			w.failWith("confirm cordon", begin)
			b := setup(t, lifecycle.ActionDrain, w)
			b.env.SetStartTime(c.Status.Operation.Stuck.Since.Add(4 * time.Hour))
			b.at(3*time.Hour, func() { w.failWith("confirm cordon", errOver) })
			st, err := b.continued(in, c)
			require.NoError(t, err)
			requireFenced(t, w, st)
		})
	}
}

// TestOutcomeOfAFence: the outcome says why the run may not write.
func TestOutcomeOfAFence(t *testing.T) {
	t.Parallel()
	for want, fence := range map[string]error{
		outcomeOver:       errOver,
		outcomeSuperseded: schema.NewError(schema.KindFenced, "op_seq 8 holds the node"),
		"task cordon was voided": schema.NewError(schema.KindFenced, "task cordon was voided").
			WithReason("task_voided"),
	} {
		for _, call := range []string{"enqueue workload.drain", "finish completed"} {
			w := newWorld(lifecycle.NodeActive)
			w.fail[call] = fence
			st := setup(t, lifecycle.ActionDrain, w).run()
			require.Equal(t, lifecycle.OperationFailed, st.Operation.Status)
			require.Equal(t, want, st.Operation.Outcome, call)
		}
	}
}
