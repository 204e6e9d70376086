package workflows

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// onNode enqueues one task for the node, waits for its result and decodes the output.
// The step's name is the activity's ID and the task's idempotency key.
//
// A node that refuses the task's sequence has not run the task, and its polls report the
// sequence that it requires: the task is replaced by a new one.
func onNode[T any](ctx workflow.Context, op *operation, t task.Type, params task.Params, summary string) (out T, err error) {
	for range maxReplacements {
		if out, err = onNodeOnce[T](ctx, op, t, params, summary); err == nil || failureOf(err).Reason != lifecycle.ReasonSeqReplayed {
			return out, err
		}
		op.tries++
	}
	return out, err
}

// maxReplacements is how often a task is enqueued that the node refuses as replayed.
const maxReplacements = 3

func onNodeOnce[T any](ctx workflow.Context, op *operation, t task.Type, params task.Params, summary string) (out T, err error) {
	if err := op.renewTask(ctx); err != nil {
		return out, err
	}
	life := op.spec().Budget
	if op.parked() && !op.spec().Destructive {
		life = parkedTaskLife
	}
	if step := op.stepName(t); step != op.currentStep {
		op.currentStep, op.taskUntil = step, taskDeadline(ctx, life)
	}
	spec := activities.TaskSpec{
		OperationID: op.in.OperationID, OpSeq: op.claim.Fence.OpSeq, NodeID: op.in.NodeID,
		Step: op.currentStep, Phase: op.spec().Name, Type: t, Params: params, Attempt: int64(op.tries + 1),
		// Only the state that the claim entered is certain: missing heartbeats may
		// change the others meanwhile.
		Expect:   task.Expectation{NodeState: (ladder{op}).enteredState()},
		Deadline: taskDeadline(ctx, life), CorrelationID: op.in.CorrelationID,
	}
	if err := enqueue(ctx, op, &spec); err != nil {
		return out, err
	}
	outcome, err := taskOutcome(ctx, op, spec, summary)
	if err == nil {
		err = task.Result{Output: outcome.Output}.Decode(&out)
	}
	return out, err
}

// enteredState is the state that the claim entered, empty once the node has another machine, whose
// enrollment changes the state.
func (op ladder) enteredState() lifecycle.NodeState {
	if op.repair.Replaced {
		return ""
	}
	return op.plan.Enter
}

// enqueue publishes the phase and enqueues its task, both in one local activity. The task's
// number follows that of the progress.
func enqueue(ctx workflow.Context, op *operation, spec *activities.TaskSpec) error {
	in := activities.EnqueueInput{Fence: op.claim.Fence, Progress: op.unpublished(ctx)}
	spec.Clock = op.tick(ctx)
	in.Task = *spec
	err := withinBudget(ctx, op, "Enqueue the task "+spec.Step, node.EnqueueNodeTask, in)
	if err == nil && in.Progress != nil {
		op.unrecorded = activities.Advance{}
	}
	return err
}

// voidTasks ends the operation's open tasks. It is a normal activity: if a workflow task
// is lost, its local activities run again, and another void would end the task that was
// enqueued after the first one. Its end is only a hint, so a local activity then voids them
// if the current step's task is still open. A cancel does not interrupt it: a void that runs
// on would end the task of the undo.
func voidTasks(ctx workflow.Context, op *operation, summary string) error {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	op.awaitRecord(free, summary, node.VoidTasks, op.claim.Fence)
	if op.currentStep == "" {
		return nil
	}
	return op.onRecord(free, "Check that no task is open", nil, node.VoidStep, op.claim.Fence, currentTask(op))
}

// currentTask identifies the task of the current step.
func currentTask(op *operation) activities.TaskSpec {
	kind, _, _ := strings.Cut(op.currentStep, "#")
	return activities.TaskSpec{OperationID: op.in.OperationID, OpSeq: op.claim.Fence.OpSeq, NodeID: op.in.NodeID,
		Step: op.currentStep, Type: task.Type(kind)}
}

// parkedTaskLife is how long a task is valid that a parked operation enqueues. It bounds
// the tasks of a node that stays silent.
const parkedTaskLife = time.Hour

// renewTask replaces the expired task of a parked phase with a new one. The task of a
// destructive phase is replaced only if it was never dispatched: only a decision ends work
// a second time.
func (op *operation) renewTask(ctx workflow.Context) error {
	if !op.parked() || now(ctx).Before(op.taskUntil) {
		return nil
	}
	if op.spec().Destructive {
		var voided bool
		err := fromRecord(ctx, "Void the phase's expired task if it was never dispatched", &voided, node.VoidUndispatched,
			activities.VoidInput{Fence: op.claim.Fence, Step: op.currentStep})
		if voided {
			op.tries++
		}
		return err
	}
	if err := fromRecord(ctx, "Void the phase's expired task", nil, node.VoidStep, op.claim.Fence, currentTask(op)); err != nil {
		return err
	}
	op.tries++
	return nil
}

// stepName is unique within the operation: each repeated task is a new step. The number of
// tries starts again when a run is reset, so the name contains the decision that repeats the
// task and, in an undo, when the undo began: the next decision or undo finds no task of the
// run before. A workflow task that runs again, and a reset to after that point, compute the
// same name.
func (op *operation) stepName(t task.Type) string {
	began := op.undoBegan != nil
	if op.tries == 0 && !began {
		return string(t)
	}
	name, source := fmt.Sprintf("%s#%d", t, op.tries+1), op.lastTaken().ID
	if began {
		source += "@" + op.undoBegan.Format(time.RFC3339Nano)
	}
	if source != "" {
		name += "-" + schema.SHA256Hex([]byte(source))[:8]
	}
	return name
}

// cordonNode stops the node from accepting workloads.
func cordonNode(ctx workflow.Context, op *operation) error {
	_, err := cordon(ctx, op)
	return err
}

func cordon(ctx workflow.Context, op *operation) (task.CordonResult, error) {
	return onNode[task.CordonResult](ctx, op, task.WorkloadCordon, nil, "Cordon the node: no new workloads")
}

// checkIdle cordons the node and fails if its agent lists workloads after that.
func checkIdle(ctx workflow.Context, op *operation) error {
	out, err := cordon(ctx, op)
	if err != nil || len(out.Workloads) == 0 {
		return err
	}
	blockers := make([]task.Blocker, len(out.Workloads))
	for i, w := range out.Workloads {
		blockers[i] = task.Blocker{Workload: w.Name, Kind: w.Kind, Reason: w.Kind}
	}
	return inUse("the node runs workloads", blockers, string(schema.KindNodeInUse))
}

// uncordonNode lets the node accept workloads.
func uncordonNode(ctx workflow.Context, op *operation) error {
	_, err := onNode[task.CordonResult](ctx, op, task.WorkloadUncordon, nil, "Uncordon the node: accept workloads again")
	return err
}

// undoCordon removes the cordon unless the node had one before the operation. The cordon of
// an abandoned operation that this one supersedes is removed, too. The database shows whether
// the operation has set one: a run that was reset does not know. Only the first task shows
// whether the node had a cordon before: a later one finds the cordon that the first one may
// have set.
func undoCordon(ctx workflow.Context, op *operation) error {
	if op.claim.Cordoned && !op.claim.LeftCordon {
		return restoreWorkloads(ctx, op)
	}
	var first activities.FirstTask
	err := fromRecord(ctx, "Read the operation's first cordon", &first, node.ReadFirstTask, op.claim.Fence, task.WorkloadCordon)
	if err != nil || !first.Exists {
		return err
	}
	var cordon task.CordonResult
	if len(first.Output) > 0 {
		if err := (task.Result{Output: first.Output}).Decode(&cordon); err != nil {
			return err
		}
	}
	if cordon.Was && !op.claim.LeftCordon {
		return restoreWorkloads(ctx, op)
	}
	return uncordonNode(ctx, op)
}

// restoreWorkloads reverts what a drain changed for the workloads of a node that stays cordoned, such
// as their restart policies. The agent does that itself only while the drain's task runs. A node that
// was drained before keeps what that drain changed.
func restoreWorkloads(ctx workflow.Context, op *operation) error {
	if op.claim.Prior == lifecycle.NodeDrained {
		return nil
	}
	var drain activities.FirstTask
	err := fromRecord(ctx, "Read the operation's first drain", &drain, node.ReadFirstTask, op.claim.Fence, task.WorkloadDrain)
	if err != nil || !drain.Exists {
		return err
	}
	_, err = onNode[task.CordonResult](ctx, op, task.WorkloadUncordon, task.UncordonParams{KeepCordon: true}.Encode(),
		"Restore what the drain changed; the node stays cordoned")
	return err
}

// evictWorkloads drains the node's workloads: the agent waits until the deadline and
// reports the workloads that still run. A forced drain kills them.
func evictWorkloads(ctx workflow.Context, op *operation) error {
	if op.plan.Action == lifecycle.ActionRecover && !op.parked() {
		if err := local(ctx, "Read the agent's last heartbeat", nil, record.CheckAgent, op.in.NodeID); kindOf(err) == schema.KindAgentSilent {
			return err
		}
	}
	limit := op.in.Options.DrainTimeout()
	summary := "Drain the node's workloads within " + lifecycle.Span(limit)
	if op.forced {
		limit, summary = forceGrace, "Kill the workloads that do not end"
	}
	params := task.DrainParams{Deadline: now(ctx).Add(limit), Force: op.forced}
	out, err := onNode[task.DrainResult](ctx, op, task.WorkloadDrain, params.Encode(), summary)
	if err == nil && len(out.Blocked) > 0 {
		return inUse("workloads did not end within "+lifecycle.Span(limit), out.Blocked, lifecycle.ReasonDrainBlocked)
	}
	return err
}

// forceGrace is how long a forced drain waits before it kills workloads.
const forceGrace = 10 * time.Second

// inUse is the failure of a phase that workloads block. Its reason is that of the blocker
// that most limits what an operator can do about it: workloads that are unknown, then the last server
// of a cluster, then GPU processes, then workloads of the driver, for which reason is given.
func inUse(what string, blockers []task.Blocker, reason string) error {
	names, kinds := make([]string, len(blockers)), make([]string, len(blockers))
	for i, b := range blockers {
		names[i], kinds[i] = fmt.Sprintf("%s (%s)", b.Workload, b.Reason), b.Kind
	}
	list := strings.Join(names, ", ")
	switch {
	case slices.Contains(kinds, task.KindUnknown):
		return schema.NewError(schema.KindNodeInUse, "the workloads of the node are not all known: %s", list).WithReason(lifecycle.ReasonWorkloadsUnknown)
	case slices.Contains(kinds, task.KindLastServer):
		return schema.NewError(schema.KindNodeInUse, "the node must keep its control plane: %s", list).WithReason(lifecycle.ReasonLastServer)
	case slices.Contains(kinds, task.KindGPUProcess):
		return schema.NewError(schema.KindNodeInUse, "%s: processes use the GPUs: %s", what, list).WithReason(lifecycle.ReasonGPUsInUse)
	}
	return schema.NewError(schema.KindNodeInUse, "%s: %s", what, list).WithReason(reason)
}

func collectFacts(ctx workflow.Context, op *operation) error {
	facts, err := onNode[inventory.Facts](ctx, op, task.FactsCollect, nil, "Collect the machine's facts")
	if err == nil {
		op.facts, op.unrecorded.FactsTask = facts, op.currentStep
	}
	return err
}

// probeNode checks the node's health. The decision force accepts a failed check.
func probeNode(ctx workflow.Context, op *operation) error {
	probe, err := onNode[inventory.ProbeReport](ctx, op, task.NodeProbe, nil, "Probe disk, memory, GPUs and clock")
	if err != nil {
		return err
	}
	if failed := probe.Failed(); len(failed) > 0 && !op.forced {
		return schema.NewError(schema.KindUnfit, "the probe failed: %s", strings.Join(failed, "; ")).WithReason(lifecycle.ReasonProbeFailed)
	}
	return nil
}
