package workflows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestFencedUndo: an undo whose node another operation holds ends as failed, and records
// nothing more about the node.
func TestFencedUndo(t *testing.T) {
	t.Parallel()
	fence := schema.NewError(schema.KindFenced, "op_seq 8 holds the node")
	for name, change := range map[string]func(b *bed, w *world){
		"before the undo": func(_ *bed, w *world) { w.fail["void"] = fence },
		"at the undo":     func(_ *bed, w *world) { failUncordon(w, fence) },
		"while parked": func(b *bed, w *world) {
			failUncordon(w, schema.NewError(schema.KindServiceUnavailable, "Vault is sealed"))
			b.at(2*time.Hour, func() {
				require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
				failUncordon(w, fence)
			})
		},
		"at the record": func(_ *bed, w *world) { w.fail["finish "+string(lifecycle.OperationCanceled)] = fence },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.open[task.WorkloadDrain] = true
			b := setup(t, lifecycle.ActionDrain, w)
			change(b, w)
			b.decideAt(time.Minute, lifecycle.DecisionCancel)
			st := b.run()
			require.Equal(t, lifecycle.OperationFailed, st.Operation.Status)
			require.Equal(t, "a newer operation holds the node", st.Operation.Outcome)
			require.NotNil(t, st.Operation.EndedAt)
			require.NoError(t, b.resolved[0])
			require.Nil(t, w.finished)
		})
	}
}

// failUncordon lets the enqueue of the undo's task fail, and of its repetitions.
func failUncordon(w *world, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail["enqueue workload.uncordon"] = err
	for repeat := range 9 {
		w.fail[fmt.Sprintf("enqueue workload.uncordon#%d", repeat)] = err
	}
}

// TestDeadlineAttribute: a parked run has no deadline in its search attributes, and one
// that runs its phase again has.
func TestDeadlineAttribute(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["task workload.drain"] = final(schema.KindTaskFailed, "no luck")
	w.open[task.WorkloadDrain] = true
	b := setup(t, lifecycle.ActionDrain, w)
	var deadline []time.Time // empty while the attribute is unset
	published := false
	key := temporal.NewSearchAttributeKeyTime(lifecycle.AttrDeadlineAt)
	b.env.OnUpsertTypedSearchAttributes(mock.MatchedBy(func(upsert temporal.SearchAttributes) bool {
		if strings.Contains(fmt.Sprint(upsert), lifecycle.AttrDeadlineAt) { // the accessors hide a value that is unset
			deadline = nil
		}
		if at, set := upsert.GetTime(key); set {
			deadline, published = []time.Time{at}, true
		}
		return true
	})).Return(nil)
	b.at(time.Hour, func() {
		require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
		require.True(t, published, "the phase had a deadline")
		require.Empty(t, deadline)
		require.Nil(t, b.status().Operation.DeadlineAt)
		b.decide(lifecycle.DecisionRetry, "because")
	})
	b.at(time.Hour+time.Minute, func() {
		op := b.status().Operation
		require.Equal(t, lifecycle.OperationRunning, op.Status)
		require.Len(t, deadline, 1)
		require.WithinDuration(t, *op.DeadlineAt, deadline[0], 0)
		b.decide(lifecycle.DecisionCancel, "because")
	})
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
}

// TestCancelWaitsForAVoid: a void that runs ends before the undo enqueues its own task,
// which the void would end otherwise.
func TestCancelWaitsForAVoid(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
	b := setup(t, lifecycle.ActionDrain, w)
	var canceled []string
	b.env.SetOnActivityCanceledListener(func(a *activity.Info) { canceled = append(canceled, a.ActivityType.Name) })
	w.onVoid = func() {
		if w.count("void") == 0 { // the one of the retry
			b.env.CancelWorkflow()
		}
	}
	b.decideAt(time.Hour, lifecycle.DecisionRetry)
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	require.NotContains(t, canceled, "VoidTasks")
	require.Equal(t, []string{"void", "decide retry", "void", "advance undo-cordon", "task workload.uncordon#2",
		"finish " + string(lifecycle.OperationCanceled)}, w.story()[3:])
}

// TestUndoOfARepeatedCordon: the undo keeps the cordon that the node had before, and
// removes the operation's own. Only the result of the operation's first task shows which it was.
func TestUndoOfARepeatedCordon(t *testing.T) {
	t.Parallel()

	t.Run("whose task returned", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.open[task.WorkloadDrain] = true
		tries := 0
		w.on[task.WorkloadCordon] = func(activities.TaskSpec) (task.Result, error) {
			if tries++; tries == 1 {
				return task.Result{}, lost()
			}
			return succeeded(task.CordonResult{Cordoned: true, Was: true}), nil
		}
		b := setup(t, lifecycle.ActionDrain, w)
		b.returnTask(time.Hour, "op-1", "workload.cordon")
		b.decideAt(time.Hour+time.Minute, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, []string{"workload.cordon", "workload.cordon", "workload.drain"}, w.enqueued[:3])
		require.Len(t, w.enqueued, 4, "the node had a cordon before: only what the drain changed is restored")
	})

	t.Run("whose first result was lost", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.silent[task.WorkloadCordon], w.open[task.WorkloadDrain] = true, true
		b := setup(t, lifecycle.ActionDrain, w)
		b.at(3*time.Hour, func() {
			require.Equal(t, lifecycle.OperationParked, b.status().Operation.Status)
			w.wasCordon = true // by the operation itself
			w.setSilent(task.WorkloadCordon, false)
		})
		b.decideAt(4*time.Hour, lifecycle.DecisionCancel)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, "workload.uncordon#4", w.enqueued[len(w.enqueued)-1])
	})
}
