package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// onNode dispatches one task to the node and waits for its result. The step's name
// is the activity's ID and the task's idempotency key.
func (op *operation) onNode(ctx workflow.Context, t task.Type, params task.Params, summary string) (result task.Result, err error) {
	op.currentStep = op.stepName(t)
	o := callTask
	o.ActivityID = op.currentStep
	err = op.call(ctx, o, summary, node.RunNodeTask, activities.TaskSpec{
		OperationID: op.in.OperationID, OpSeq: op.claim.Fence.OpSeq, NodeID: op.in.NodeID,
		Step: op.currentStep, Type: t, Params: params, Attempt: int64(op.tries + 1),
		// Only the state that the claim entered is certain: the watchdog may change
		// the others meanwhile.
		Expect:   task.Expectation{NodeState: op.plan.Enter},
		Deadline: taskDeadline(ctx, op.spec().Budget), CorrelationID: op.in.CorrelationID,
	}, &result)
	return result, err
}

// stepName is unique within the operation: each retry by an operator is a new step.
func (op *operation) stepName(t task.Type) string {
	if op.tries == 0 {
		return string(t)
	}
	return fmt.Sprintf("%s#%d", t, op.tries+1)
}

// cordonNode stops the node from taking new work.
func cordonNode(ctx workflow.Context, op *operation) error {
	first := !op.cordonTried
	op.cordonTried = true
	result, err := op.onNode(ctx, task.WorkloadCordon, nil, "Cordon the node: no new work")
	if err != nil {
		return err
	}
	var out task.CordonResult
	if err := result.Decode(&out); err != nil {
		return err
	}
	// A repeated cordon task finds the cordon that the first attempt set.
	op.wasCordoned = first && out.Was
	return nil
}

// uncordonNode lets the node accept new work.
func uncordonNode(ctx workflow.Context, op *operation) error {
	_, err := op.onNode(ctx, task.WorkloadUncordon, nil, "Uncordon the node: take work again")
	return err
}

// undoCordon lifts the cordon unless the node had one before the operation.
func undoCordon(ctx workflow.Context, op *operation) error {
	if !op.cordonTried || op.wasCordoned || op.claim.Cordoned {
		return nil
	}
	return uncordonNode(ctx, op)
}

// reasonDrainBlocked is the stuck reason of a drain with workloads that did not
// end.
const reasonDrainBlocked = "drain_blocked"

// evictWorkloads drains the node's workloads: the agent waits until the deadline and
// reports the workloads that still run. A forced drain kills them.
func evictWorkloads(ctx workflow.Context, op *operation) error {
	limit := op.in.Options.DrainTimeout()
	summary := fmt.Sprintf("End the node's work within %s", limit)
	if op.forced {
		limit, summary = forceGrace, "Kill the workloads that do not end"
	}
	params := task.DrainParams{Deadline: now(ctx).Add(limit), Force: op.forced}
	result, err := op.onNode(ctx, task.WorkloadDrain, params.Encode(), summary)
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

// forceGrace is how long a forced drain waits before it kills workloads.
const forceGrace = 10 * time.Second

func blocked(blockers []task.Blocker, limit time.Duration) error {
	names := make([]string, len(blockers))
	for i, b := range blockers {
		names[i] = fmt.Sprintf("%s (%s)", b.Workload, b.Reason)
	}
	return schema.NewError(schema.KindNodeInUse, "workloads did not end within %s: %s", limit, strings.Join(names, ", ")).
		WithReason(reasonDrainBlocked)
}

func collectFacts(ctx workflow.Context, op *operation) error {
	result, err := op.onNode(ctx, task.FactsCollect, nil, "Collect the machine's facts")
	if err != nil {
		return err
	}
	if err := result.Decode(&op.facts); err != nil {
		return err
	}
	op.unrecorded.Facts = &op.facts
	return nil
}

// probeNode checks the node's health. The decision force accepts a failed check.
func probeNode(ctx workflow.Context, op *operation) error {
	result, err := op.onNode(ctx, task.NodeProbe, nil, "Probe disk, memory, GPUs and clock")
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
