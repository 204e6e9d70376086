package temporal

import (
	"context"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema/task"
)

// RecordHeartbeat records a heartbeat of the activity that waits for a node task and
// returns whether an operator canceled or paused the activity. A closed run returns
// Cancel. An unknown run does not: a Temporal that was restored from a backup, or that
// belongs to another installation, has no record of open runs, and the database decides
// which tasks continue. If the run was reset, the heartbeat goes to the new run. A reset
// of the activity alone has no effect: its next try finds the same task. Progress that
// contains a secret is withheld; the heartbeat is still recorded.
// KindServiceUnavailable when Temporal is unavailable.
//
// RecordHeartbeat calls the service directly, because the SDK's heartbeat by ID drops
// the pause flag of the response.
func (c NodeTasks) RecordHeartbeat(ctx context.Context, o task.Owner, b nodeapi.TaskHeartbeat) (nodeapi.ActivityState, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	state, err := c.heartbeat(ctx, o, b)
	if isSecretLeak(err) {
		b.Message = "withheld: it contains what looks like a secret"
		state, err = c.heartbeat(ctx, o, b)
	}
	if !is[*serviceerror.NotFound](err) {
		return state, c.interpret(err, "recording a task's heartbeat")
	}
	p, err := c.locate(ctx, o)
	switch {
	case err != nil:
		return nodeapi.ActivityState{}, c.interpret(err, "looking for the task's activity")
	case closed(p.status):
		return nodeapi.ActivityState{Cancel: true}, nil
	case p.activity == nil:
		// The operation continues without this activity, or schedules it again.
		return nodeapi.ActivityState{}, nil
	case p.runID != o.RunID:
		o.RunID = p.runID
		state, err = c.heartbeat(ctx, o, b)
		return state, c.interpret(err, "recording a reset task's heartbeat")
	}
	// The activity waits for its next try, or was paused before it started.
	return nodeapi.ActivityState{Paused: p.activity.GetPaused(),
		Cancel: p.activity.GetState() == enumspb.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED}, nil
}

func (c NodeTasks) heartbeat(ctx context.Context, o task.Owner, b nodeapi.TaskHeartbeat) (nodeapi.ActivityState, error) {
	details, err := c.converter.ToPayloads(b)
	if err != nil {
		return nodeapi.ActivityState{}, err
	}
	r, err := c.sdk.WorkflowService().RecordActivityTaskHeartbeatById(ctx, &workflowservice.RecordActivityTaskHeartbeatByIdRequest{
		Namespace: c.namespace, WorkflowId: o.WorkflowID, RunId: o.RunID, ActivityId: o.ActivityID, Details: details,
	})
	return nodeapi.ActivityState{Cancel: r.GetCancelRequested(), Paused: r.GetActivityPaused()}, err
}
