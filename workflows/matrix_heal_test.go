package workflows

import (
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

// TestMatrixWhileDeciding: while a decision waits for the database, each further decision
// but a cancel is rejected with the reason, and the first one takes effect later.
func TestMatrixWhileDeciding(t *testing.T) {
	t.Parallel()
	for _, c := range cells() {
		plan, _ := lifecycle.PlanOf(c.action, c.options)
		if c.at != atParked && c.at != atUndoParked || !plan.Holds || c.at == atParked && c.needsBundle() {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			p := enter(t, c)
			p.then(func() {
				p.world.repairAll()
				p.world.failWith("void", errDown)
				p.decide(lifecycle.DecisionRetry, "because")
				p.decided = len(p.resolved)
			})
			p.then(func() {
				for _, d := range lifecycle.Decisions() {
					if d != lifecycle.DecisionCancel || c.at == atUndoParked {
						p.decide(d, "because")
					}
				}
			})
			p.finish()
			p.requireEnd(c.canceled(lifecycle.DecisionRetry))
			require.NoError(t, p.resolved[p.decided-1])
			for _, err := range p.resolved[p.decided:] {
				require.Equal(t, schema.KindOperationInProgress, kindOf(err))
			}
		})
	}
}

// TestSilentNodeDrains: a node is silent from before its drain is dispatched until after
// the task expired. When it returns, the drain continues without a person: the task never
// ran. The simulated node runs a task only before its deadline, as the API does.
func TestSilentNodeDrains(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeActive)
	b := setup(t, lifecycle.ActionDrain, w)
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	back := b.env.Now().Add(2 * plan.Phases[1].Budget)
	deadlines := map[string]time.Time{} // of the stored tasks, by step
	w.on[task.WorkloadDrain] = func(spec activities.TaskSpec) (task.Result, error) {
		if _, stored := deadlines[spec.Step]; !stored {
			deadlines[spec.Step] = spec.Deadline
		}
		if now := b.env.Now(); now.Before(back) || now.After(deadlines[spec.Step]) {
			return task.Result{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, nil)
		}
		return succeeded(task.DrainResult{}), nil
	}
	b.env.RegisterDelayedCallback(func() {
		if !b.env.IsWorkflowCompleted() {
			b.decide(lifecycle.DecisionCancel, "the test ends")
		}
	}, 24*time.Hour)
	st := b.run()
	require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
	require.Empty(t, b.resolved)
}
