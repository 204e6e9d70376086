package workflows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

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
			if name == "at the record" { // nothing was left to do on the node
				require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
			} else {
				require.Equal(t, lifecycle.OperationFailed, st.Operation.Status)
				require.Equal(t, "a newer operation holds the node", st.Operation.Outcome)
			}
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
