package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
)

// rebootNode restarts the node: by its agent if that is connected, and otherwise by its provider. If
// it is not known whether the restart happens, the next phase finds out.
func rebootNode(ctx workflow.Context, op *operation) error {
	facts, err := (ladder{op}).beginRung(ctx)
	if err != nil {
		return err
	}
	if facts.BootID != "" && facts.BootID != op.repair.Attempt.BootBefore { // an earlier try did it
		return nil
	}
	if facts.Silent || facts.BootID == "" {
		return resetMachine(ctx, op)
	}
	params := task.RebootParams{BootID: facts.BootID}
	_, err = onNode[struct{}](ctx, op, task.NodeReboot, params.Encode(), "Restart the node through its agent")
	switch e := failureOf(err); {
	case err == nil || ctx.Err() != nil || locked(e):
		return err
	case e.Reason == lifecycle.ReasonTaskLost || e.Reason == lifecycle.ReasonOtherBoot:
		return nil // the agent had the task and may have restarted the node, or it restarted before
	case e.Reason == lifecycle.ReasonTimeout:
		var never bool
		err = fromRecord(ctx, "Void the task if the agent never had it", &never, node.VoidUndispatched,
			activities.VoidInput{Fence: op.claim.Fence, Step: op.currentStep})
		if err != nil || !never {
			return err
		}
	case e.Kind != schema.KindTaskFailed && e.Kind != schema.KindTaskRefused || e.Reason == lifecycle.ReasonResultMissing || e.Reason == lifecycle.ReasonTaskCanceled:
		return err
	}
	return resetMachine(ctx, op)
}

// resetMachine asks the provider for a hard reset of the machine. It is asked once for each decision.
func resetMachine(ctx workflow.Context, op *operation) error {
	in := activities.ResetInput{MachineInput: machineOf(op), Step: op.stepName(resetStep)}
	if op.claim.Instance.InstanceID == "" {
		return schema.NewError(schema.KindProviderRefused, "the agent cannot restart the node, and no provider has its machine").
			WithReason(lifecycle.ReasonNoPower)
	}
	op.repair.Powered = true
	return op.call(ctx, callProvider, "Ask the provider to reset the machine", repairs.ResetMachine, in)
}

// resetStep names the reset by the provider, as a task's type names its step.
const resetStep task.Type = "machine.reset"

// awaitReboot waits until the node's heartbeats show another boot of the same incarnation. An agent
// that still runs in the old boot after a while has not restarted the node: then its provider does.
func awaitReboot(ctx workflow.Context, op *operation) error {
	a := op.repair.Attempt
	in := activities.RebootInput{NodeID: op.in.NodeID, BootID: a.BootBefore, Incarnation: op.claim.Incarnation, Since: a.StartedAt}
	if err := (ladder{op}).restartAgain(ctx); err != nil {
		return err
	}
	if err := (ladder{op}).checkRestart(ctx, in); err != nil {
		return err
	}
	err := withinBudget(ctx, op, "Wait for a heartbeat of the node's next boot", repairs.AwaitReboot, in)
	if err != nil {
		return err
	}
	var facts activities.RepairFacts
	if err := fromRecord(ctx, "Read the node's boot", &facts, repairs.ReadRepair, op.in.NodeID, recovery.Fault{}); err != nil {
		return err
	}
	a.BootAfter = facts.BootID
	return nil
}

// restartAgain restarts the node again if a person asks to wait again, and the agent still runs in the old
// boot: the first restart was lost, and waiting alone would never end.
func (op ladder) restartAgain(ctx workflow.Context) error {
	if op.status.Operation.Phases[op.phase].Attempt < 2 || op.parked() {
		return nil
	}
	var facts activities.RepairFacts
	if err := fromRecord(ctx, "Read the node's boot", &facts, repairs.ReadRepair, op.in.NodeID, recovery.Fault{}); err != nil {
		return err
	}
	if before := op.repair.Attempt.BootBefore; before == "" || !op.stillRuns(facts, before) {
		return nil
	}
	return rebootNode(ctx, op.operation)
}

// restartGrace is how long an agent may take to restart its node.
const restartGrace = 3 * time.Minute

// grace is restartGrace, or half of a shorter wait.
func (op ladder) grace() time.Duration { return min(restartGrace, op.spec().Budget/2) }

// stillRuns reports whether the node's agent runs in a boot that should have ended: a heartbeat of that
// boot arrived in the second half of the grace. An older one was sent before the restart.
func (op ladder) stillRuns(facts activities.RepairFacts, boot string) bool {
	return !facts.Silent && facts.BootID == boot && facts.HeartbeatAge < op.grace()/2
}

// checkRestart waits for the boot for restartGrace. If the agent still runs in the old boot then, it asks
// the provider for a reset, once, if there is one that can.
func (op ladder) checkRestart(ctx workflow.Context, in activities.RebootInput) error {
	if op.repair.Powered || op.parked() || in.BootID == "" || op.claim.Instance.InstanceID == "" {
		return nil
	}
	o := callShort
	o.ScheduleToCloseTimeout = op.grace()
	waited := op.call(ctx, o, "Wait until the agent has restarted the node", repairs.AwaitReboot, in)
	if waited == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	var facts activities.RepairFacts
	if err := fromRecord(ctx, "Read the node's boot", &facts, repairs.ReadRepair, op.in.NodeID, recovery.Fault{}); err != nil {
		return err
	}
	if !op.stillRuns(facts, in.BootID) {
		return nil
	}
	err := resetMachine(ctx, op.operation)
	if err != nil && ctx.Err() == nil && !kindOf(err).Info().Retry && kindOf(err) != schema.KindFenced {
		return nil // the provider cannot: the wait shows whether the node restarts
	}
	return err
}
