package workflows

import (
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// adoptMachine gets the machine from its provider.
func adoptMachine(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	work := remote(ctx, callProvider, spec.Budget, "", "Get the machine from provider "+op.claim.Provider)
	if err := workflow.ExecuteActivity(work, machine.EnsureMachine, activities.EnsureInput{
		Fence: op.claim.Fence, Provider: op.claim.Provider, Host: op.claim.Host,
	}).Get(ctx, nil); err != nil {
		return err
	}
	return op.advance(ctx, "Record the instance as provisioning",
		activities.Advance{Phase: spec.Name, Instance: lifecycle.InstanceProvisioning})
}

// compareSKU compares the machine with its registration. The decision force accepts
// a mismatch.
func compareSKU(_ workflow.Context, op *operation, _ lifecycle.PhaseSpec) error {
	wrong := op.claim.SKU.Mismatches(op.claim.GPUsTotal, op.facts)
	if len(wrong) == 0 || op.forced {
		return nil
	}
	return schema.NewError(schema.KindUnfit, "the machine does not match SKU %s: %s", op.claim.SKU.Name, strings.Join(wrong, "; ")).
		WithReason("sku_mismatch")
}

// returnMachine returns the machine of a canceled provisioning.
func returnMachine(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	work := remote(ctx, callProvider, spec.Budget, "", "Return the machine to its provider")
	if err := workflow.ExecuteActivity(work, machine.TearDownMachine, op.claim.Fence).Get(ctx, nil); err != nil {
		return err
	}
	return op.advance(ctx, "Record the instance as terminated",
		activities.Advance{Phase: spec.Name, Instance: lifecycle.InstanceTerminated})
}

// tearDownMachine releases everything that the node's ledger lists. The ledger
// stays correct when the operation is canceled, so that a later remove continues
// from there. With the decision force,
// the phase ends without the provider's confirmation.
func tearDownMachine(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	work := remote(ctx, callProvider, spec.Budget, "", "Release everything in the node's ledger")
	err := workflow.ExecuteActivity(work, machine.TearDownMachine, op.claim.Fence).Get(ctx, nil)
	if err != nil && op.forced && ctx.Err() == nil {
		return nil
	}
	return err
}
