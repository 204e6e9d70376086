package temporal

import (
	"context"
	"errors"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema/task"
)

// RecordHeartbeat records a heartbeat of the activity that waits for a node task and
// answers what an operator did to it. A run that is closed or not known any more
// answers Cancel, a run that was reset is looked up and gets the heartbeat. A
// reset of the activity alone changes nothing: its next try finds the same task.
// A progress that holds a secret is kept back, the heartbeat is not.
// KindServiceUnavailable when Temporal is away.
//
// It makes the call itself because the SDK's by-id heartbeat drops what the
// answer says of a pause.
func (c *Client) RecordHeartbeat(ctx context.Context, o task.Owner, b nodeapi.TaskHeartbeat) (nodeapi.ActivityState, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	answer, err := c.beat(ctx, o, b)
	if isSecretLeak(err) {
		b.Message = "kept back: it holds what looks like a secret"
		answer, err = c.beat(ctx, o, b)
	}
	if _, gone := errors.AsType[*serviceerror.NotFound](err); !gone {
		return answer, c.interpret(err, "recording a task's heartbeat")
	}
	p, err := c.locate(ctx, o)
	switch {
	case err != nil:
		return nodeapi.ActivityState{}, c.interpret(err, "looking for the task's activity")
	case p.runID == "" || closed(p.status):
		return nodeapi.ActivityState{Cancel: true}, nil
	case p.activity == nil:
		// The operation goes on without this activity, or asks again soon.
		return nodeapi.ActivityState{}, nil
	case p.runID != o.RunID:
		o.RunID = p.runID
		answer, err = c.beat(ctx, o, b)
		return answer, c.interpret(err, "recording a reset task's heartbeat")
	}
	// It waits for its next try, or was paused before it began.
	return nodeapi.ActivityState{Paused: p.activity.GetPaused(),
		Cancel: p.activity.GetState() == enumspb.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED}, nil
}

func (c *Client) beat(ctx context.Context, o task.Owner, b nodeapi.TaskHeartbeat) (nodeapi.ActivityState, error) {
	details, err := converter.GetDefaultDataConverter().ToPayloads(b)
	if err != nil {
		return nodeapi.ActivityState{}, err
	}
	r, err := c.sdk.WorkflowService().RecordActivityTaskHeartbeatById(ctx, &workflowservice.RecordActivityTaskHeartbeatByIdRequest{
		Namespace: c.namespace, WorkflowId: o.WorkflowID, RunId: o.RunID, ActivityId: o.ActivityID, Details: details,
	})
	return nodeapi.ActivityState{Cancel: r.GetCancelRequested(), Paused: r.GetActivityPaused()}, err
}
