package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
)

// TestRemoveWithoutTheProvider is the procedure of docs/maas.md for a provider that does not respond:
// a cancel and a removal end by a decision while they still call the provider. The ledger keeps
// the machine.
func TestRemoveWithoutTheProvider(t *testing.T) {
	t.Parallel()
	down := machines.Errorf(machines.ReasonUnavailable, "the provider does not respond")
	// healed ends the outage, so that a decision that is rejected fails the test soon.
	healed := func(b *bed, w *world) { b.at(2*time.Hour, func() { w.heal("release") }) }
	calling := func(b *bed, phase string) {
		st := b.status().Operation
		require.Equal(t, lifecycle.OperationRunning, st.Status, "no park is necessary")
		require.Equal(t, phase, st.Phases[len(st.Phases)-1].Name)
	}

	t.Run("a skip ends the cancel of a provisioning", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeRegistered)
		w.ledger = nil
		w.fail["ensure"], w.fail["release"] = down, down
		b := setup(t, lifecycle.ActionProvision, w)
		healed(b, w)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		b.at(time.Hour+time.Minute, func() {
			calling(b, lifecycle.PhaseUndoAdopt)
			b.decide(lifecycle.DecisionSkip, "the provider is down")
		})
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, []error{nil, nil}, b.resolved)
		require.Equal(t, lifecycle.NodeRegistered, w.finished.Node)
		require.Len(t, w.ledger, 1)
	})
	t.Run("a force ends the removal", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeRegistered)
		w.fail["release"] = down
		b := setup(t, lifecycle.ActionRemove, w)
		healed(b, w)
		b.at(time.Minute, func() {
			require.Equal(t, lifecycle.OperationRunning, b.status().Operation.Status, "no park is necessary")
			b.decide(lifecycle.DecisionForce, "the provider is down")
		})
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, []error{nil}, b.resolved)
		require.Equal(t, lifecycle.InstanceTerminated, w.finished.Instance)
		require.Len(t, w.ledger, 1)
	})
}
