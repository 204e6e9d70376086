package workflows

import (
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// adoptMachine gets the machine from its provider.
func adoptMachine(ctx workflow.Context, op *operation) error {
	isMachine := isMachineOf(op)
	err := onMachine(ctx, op, "Get the machine from provider "+op.claim.Provider, machine.EnsureMachine, machineOf(op),
		func(open []activities.Resource) bool {
			return slices.ContainsFunc(open, func(r activities.Resource) bool {
				return isMachine(r) && r.State == activities.ResourceCreated
			})
		})
	if err == nil {
		op.adopted, op.unrecorded.Instance = true, lifecycle.InstanceProvisioning
	}
	return err
}

// machineOf is the input of the activities of the operation's machine. The instance of an
// operation that an earlier version started has no ID.
func machineOf(op *operation) activities.MachineInput {
	i := op.claim.Instance
	if i.InstanceID == "" {
		i = lifecycle.Instance{InstanceID: lifecycle.ResourceID(op.claim.Fence.OperationID, "instance"), Provider: op.claim.Provider}
	}
	return activities.MachineInput{Fence: op.claim.Fence, Host: op.claim.Host, Instance: i}
}

// isMachineOf returns a function that reports whether a ledger entry is the operation's machine.
func isMachineOf(op *operation) func(activities.Resource) bool {
	id := machineOf(op).Instance.InstanceID
	return func(r activities.Resource) bool { return r.ResourceID == id }
}

// awaitAgent waits for a fresh heartbeat, which usually exists already.
func awaitAgent(ctx workflow.Context, op *operation) error {
	err := withinBudget(ctx, op, "Wait for the agent's heartbeat", record.CheckAgent, op.in.NodeID)
	if err == nil {
		op.unrecorded.Instance = lifecycle.InstanceBootstrapping
	}
	return err
}

// compareSKU compares the machine with its registration: in the first attempt with the
// facts and the registration that the operation has read before, later with new ones,
// because a retry follows a correction. The decision force accepts a mismatch.
func compareSKU(ctx workflow.Context, op *operation) error {
	if op.status.Operation.Phases[op.phase].Attempt > 1 && !op.forced {
		if err := collectFacts(ctx, op); err != nil {
			return err
		}
		var now activities.Registration
		if err := fromRecord(ctx, "Read the node's registration", &now, record.ReadRegistration, op.in.NodeID); err != nil {
			return err
		}
		op.claim.SKU, op.claim.GPUsTotal = now.SKU, now.GPUsTotal
	}
	wrong := op.claim.SKU.Mismatches(op.claim.GPUsTotal, op.facts)
	if len(wrong) == 0 || op.forced {
		return nil
	}
	return schema.NewError(schema.KindUnfit, "the machine does not match SKU %s: %s", op.claim.SKU.Name, strings.Join(wrong, "; ")).
		WithReason(lifecycle.ReasonSKUMismatch)
}

// returnMachine returns the machine of a canceled provisioning. The ledger shows whether
// the provisioning asked for one: a run that was reset does not know. An instance that this
// operation did not change stays as it is.
func returnMachine(ctx workflow.Context, op *operation) error {
	mine := func(open []activities.Resource) bool {
		return slices.ContainsFunc(open, isMachineOf(op))
	}
	open, err := readLedger(ctx, op)
	if err != nil {
		return err
	}
	op.adopted = op.adopted || mine(open)
	err = onMachine(ctx, op, "Return the operation's machine to its provider", machine.ReturnMachine, machineOf(op),
		func(open []activities.Resource) bool { return !mine(open) })
	if err == nil && op.adopted {
		op.unrecorded.Instance = lifecycle.InstanceTerminated
	}
	return err
}

// verifyMachine gives the instance of a canceled termination its true state: the one before if its
// provider still has the machine, and otherwise terminated. The ledger shows that the machine is
// gone, whatever the activity's end. A termination that only releases what an earlier one left has
// no instance.
func verifyMachine(ctx workflow.Context, op *operation) error {
	if op.claim.Instance.InstanceID == "" {
		return nil
	}
	ended := op.call(ctx, callProvider, "Ask the provider whether the machine still exists", machine.VerifyMachine, machineOf(op))
	if ctx.Err() != nil || timeIsUp(ended) {
		return ended
	}
	open, err := readLedger(ctx, op)
	switch {
	case err != nil:
		return err
	case !slices.ContainsFunc(open, isMachineOf(op)):
		op.unrecorded.Instance = lifecycle.InstanceTerminated
	case ended == nil:
		if op.unrecorded.Instance = op.claim.Instance.State; op.unrecorded.Instance == lifecycle.InstanceTerminating {
			// An earlier termination was abandoned, and this one superseded it.
			op.unrecorded.Instance = lifecycle.InstanceTerminating.Follow(op.claim.Prior)
		}
	case kindOf(ended) == schema.KindFenced: // the ledger is fenced itself
		return resultMissing("Temporal reports the end of a call of the provider, but the node's ledger does not show it")
	default:
		return ended
	}
	return nil
}

// admitTeardown records the phase before anything is deleted. A run that was reset to before its
// undo is fenced by that, so that it does not delete what the cancel keeps. The claim, which
// publishes a first phase, does not show that.
func admitTeardown(ctx workflow.Context, op *operation) error {
	if op.plan.Undo == nil || op.parked() {
		return nil
	}
	a := op.progress(ctx, activities.Advance{Phase: op.spec().Name})
	return op.onRecord(ctx, "Record the phase "+a.Phase, nil, record.RecordProgress, op.claim.Fence, a)
}

// tearDownMachine releases everything that the node's ledger lists. The ledger
// stays correct when the operation is canceled, so that a later remove continues
// from there. With the decision force, the phase tries once and ends without the
// provider's confirmation.
func tearDownMachine(ctx workflow.Context, op *operation) error {
	const summary = "Release everything in the node's ledger"
	if err := admitTeardown(ctx, op); err != nil {
		return err
	}
	if op.plan.Action == lifecycle.ActionRecover {
		if _, err := (ladder{op}).beginRung(ctx); err != nil {
			return err
		}
		op.repair.TornDown = true
	}
	if op.forced {
		o := callProvider
		o.RetryPolicy = once
		err := op.call(ctx, o, summary, machine.TearDownMachine, op.claim.Fence)
		if ctx.Err() == nil {
			return nil
		}
		return err
	}
	return onMachine(ctx, op, summary, machine.TearDownMachine, op.claim.Fence,
		func(open []activities.Resource) bool { return len(open) == 0 })
}
