package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// TestCancelTwiceBeforeClaim: a cancel that was accepted before the claim is audited, also
// if the run is canceled in the Web UI too.
func TestCancelTwiceBeforeClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	w.fail["claim"] = errDown
	b := setup(t, lifecycle.ActionDrain, w)
	b.decideAt(10*time.Second, lifecycle.DecisionCancel)
	b.at(20*time.Second, b.env.CancelWorkflow)
	b.at(30*time.Second, func() { w.heal("claim") })
	require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
	require.Equal(t, []error{nil}, b.resolved)
	require.Equal(t, []lifecycle.Decision{lifecycle.DecisionCancel}, w.decisions)
}
