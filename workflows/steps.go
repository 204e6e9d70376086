package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// onNode gives the node one task and waits for its result. The step's name is
// the activity's id and the task's idempotency key.
func (op *operation) onNode(ctx workflow.Context, t task.Type, params task.Params, budget time.Duration, summary string) (task.Result, error) {
	step := op.stepName(t)
	op.asked = step
	var result task.Result
	err := workflow.ExecuteActivity(remote(ctx, callTask, budget, step, summary), node.RunNodeTask, activities.TaskSpec{
		OperationID: op.in.OperationID, OpSeq: op.claim.Fence.OpSeq, NodeID: op.in.NodeID,
		Step: step, Type: t, Params: params, Attempt: int64(op.try + 1), Expect: op.expect(),
		Deadline: taskDeadline(ctx, budget), CorrelationID: op.in.CorrelationID,
	}).Get(ctx, &result)
	return result, err
}

// expect is what the node checks before it begins: the state that the claim
// entered and that nobody else changes while the operation holds the node. Other
// states the watchdog may change beside it.
func (op *operation) expect() task.Expectation {
	move, _ := lifecycle.MoveOf(op.in.Action)
	return task.Expectation{NodeState: move.Claim}
}

// stepName is unique within the operation: an operator's retry is a new step.
func (op *operation) stepName(t task.Type) string {
	if op.try == 0 {
		return string(t)
	}
	return fmt.Sprintf("%s#%d", t, op.try+1)
}

// cordon makes the node take no new work.
func cordon(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	result, err := op.onNode(ctx, task.WorkloadCordon, nil, spec.Budget, "Cordon the node: no new work")
	if err != nil {
		return err
	}
	var out task.CordonResult
	if err := result.Decode(&out); err != nil {
		return err
	}
	op.cordoned = !out.Was
	return nil
}

// uncordon lets the node take work again.
func uncordon(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	_, err := op.onNode(ctx, task.WorkloadUncordon, nil, spec.Budget, "Uncordon the node: take work again")
	return err
}

// uncordonIfCordoned undoes just what this operation did.
func uncordonIfCordoned(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	if !op.cordoned {
		return nil
	}
	return uncordon(ctx, op, spec)
}

// reasonDrainBlocked is the stuck reason of a drain whose work did not end.
const reasonDrainBlocked = "drain_blocked"

// endWork ends the node's work: the agent waits until the drain's deadline and
// reports what blocked. Forced, it kills what has not ended.
func endWork(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	limit := op.in.Options.DrainTimeout()
	params := task.DrainParams{Deadline: workflow.Now(ctx).Add(limit).UTC(), Force: op.forced}
	if op.forced {
		params.Deadline = workflow.Now(ctx).Add(forceGrace).UTC()
	}
	result, err := op.onNode(ctx, task.WorkloadDrain, params.Encode(), spec.Budget, drainSummary(op.forced, limit))
	if err != nil {
		return err
	}
	var out task.DrainResult
	if err := result.Decode(&out); err != nil {
		return err
	}
	if len(out.Blocked) > 0 {
		return blocked(out.Blocked, limit)
	}
	return nil
}

// forceGrace is what a forced drain gives work to end before it is killed.
const forceGrace = 10 * time.Second

func drainSummary(forced bool, limit time.Duration) string {
	if forced {
		return "Kill the work that does not end"
	}
	return fmt.Sprintf("End the node's work within %s", limit)
}

func blocked(blockers []task.Blocker, limit time.Duration) error {
	names := make([]string, len(blockers))
	for i, b := range blockers {
		names[i] = fmt.Sprintf("%s (%s)", b.Workload, b.Reason)
	}
	return schema.NewError(schema.KindNodeInUse, "did not end within %s: %s", limit, strings.Join(names, ", ")).
		WithReason(reasonDrainBlocked)
}

// probe asks the node for its health. Forced, a failed check is noted and
// passed over.
func probe(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	result, err := op.onNode(ctx, task.NodeProbe, nil, spec.Budget, "Probe disk, memory, GPUs and clock")
	if err != nil {
		return err
	}
	if err := result.Decode(&op.probe); err != nil {
		return err
	}
	if failed := op.probe.Failed(); len(failed) > 0 && !op.forced {
		return schema.NewError(schema.KindUnfit, "the probe failed: %s", strings.Join(failed, "; ")).WithReason("probe_failed")
	}
	return nil
}

// waitFor waits until cond holds or the budget ends, which is a timeout.
func waitFor(ctx workflow.Context, budget time.Duration, summary string, cond func() bool) error {
	ok, err := workflow.AwaitWithOptions(ctx, workflow.AwaitOptions{
		Timeout: budget, TimerOptions: workflow.TimerOptions{Summary: summary},
	}, cond)
	if err != nil {
		return err
	}
	if !ok {
		return schema.NewError(schema.KindAgentSilent, "not seen within %s", budget).WithReason("timeout")
	}
	return nil
}
