package temporal

import (
	"context"
	"fmt"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
)

// Rotations starts the workflow that drives rotations.
type Rotations struct{ *connection }

// Drive implements activities.Driver and adminapi.RotationDriver. It may be repeated: the workflow
// drives whatever rotation is open.
func (c Rotations) Drive(ctx context.Context, r rotation.Rotation) error {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	for {
		_, err := c.sdk.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
			ID: lifecycle.RotationWorkflowID, TaskQueue: lifecycle.TaskQueue,
			WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
			WorkflowExecutionErrorWhenAlreadyStarted: true,
			StaticSummary:                            fmt.Sprintf("rotate %s for %s: %s", r.Kind, plain(r.Actor, 40), plain(r.Reason, 80)),
		}, lifecycle.WorkflowRotation)
		if !temporal.IsWorkflowExecutionAlreadyStartedError(err) {
			return c.interpret(err, "starting the workflow of rotations")
		}
		err = c.sdk.SignalWorkflow(ctx, lifecycle.RotationWorkflowID, "", lifecycle.SignalRotation, nil)
		if !is[*serviceerror.NotFound](err) { // otherwise the run has just ended
			return c.interpret(err, "signaling the workflow of rotations")
		}
	}
}
