package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// Remove ends a retired node for ever: everything its ledger lists is given
// back, then its identity is denied and its tokens are void. The ledger stays
// true if the operation is cancelled before that, so a later remove goes on
// from there. Force records the node as removed although its provider does not
// confirm the teardown; the ledger keeps what is open.
func Remove(ctx workflow.Context, in lifecycle.OperationInput) (lifecycle.OperationStatus, error) {
	return run(ctx, in, action{
		steps:     map[string]step{lifecycle.PhaseTeardown: tearDown},
		decisions: map[string][]lifecycle.Decision{lifecycle.PhaseTeardown: {lifecycle.DecisionForce}},
		finish: func(*operation) activities.Finish {
			return activities.Finish{
				Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRemoved, Instance: lifecycle.InstanceTerminated,
				DenyIdentity: true, Outcome: "removed; its identity is denied",
			}
		},
	})
}

func tearDown(ctx workflow.Context, op *operation, spec lifecycle.PhaseSpec) error {
	work := remote(ctx, callProvider, spec.Budget, "", "Give back what the ledger lists")
	err := workflow.ExecuteActivity(work, machine.TearDownMachine, op.claim.Fence).Get(ctx, nil)
	if err != nil && op.forced && ctx.Err() == nil {
		return nil
	}
	return err
}
