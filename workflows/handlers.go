package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// registerHandlers registers the query and the updates before anything blocks.
func (op *operation) registerHandlers(ctx workflow.Context) error {
	if err := workflow.SetQueryHandlerWithOptions(ctx, lifecycle.QueryStatus,
		func() (lifecycle.OperationStatus, error) { return op.status, nil },
		workflow.QueryHandlerOptions{Description: "The operation's phases, what it is waiting on and its options"}); err != nil {
		return err
	}
	if err := workflow.SetUpdateHandlerWithOptions(ctx, lifecycle.UpdateSubmit, op.submit,
		workflow.UpdateHandlerOptions{Description: "Wait for the claim: accepted, or a typed rejection"}); err != nil {
		return err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, lifecycle.UpdateResolve, op.resolve,
		workflow.UpdateHandlerOptions{
			Description: "An operator's decision: " +
				`{"operation_id","phase","stuck_since","decision":"retry|skip|force|cancel|extend","reason","by"}; ` +
				"reason and by are required, and the address if the decision may cause damage; copy it from Current Details",
			Validator: func(ctx workflow.Context, r lifecycle.ResolveRequest) error {
				if op.takenBefore(workflow.GetCurrentUpdateInfo(ctx).ID) != nil {
					return nil
				}
				return asFailure(op.validate(r))
			},
		})
}

// submit responds to the caller that started the operation. It uses a disconnected
// context, so that a canceled run still responds.
func (op *operation) submit(ctx workflow.Context) (lifecycle.Operation, error) {
	free, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if err := workflow.Await(free, func() bool { return op.answered }); err != nil {
		return lifecycle.Operation{}, err
	}
	return op.status.Operation, asFailure(op.refused)
}
