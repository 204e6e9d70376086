package e2e

import (
	"context"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	commandpb "go.temporal.io/api/command/v1"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// end ends the case's run, except for the bug, which failByBug does.
func (s *sweep) end(e *endedRun) {
	ctx, id := s.Context(), e.operation.WorkflowID
	switch e.ending {
	case endReopen:
		e.before = s.operationOf(e)
		fallthrough
	case endTerminate:
		require.NoError(s.T, s.temporal.TerminateWorkflow(ctx, id, "", "test"), e)
	case endCancel:
		require.NoError(s.T, s.temporal.CancelWorkflow(ctx, id, ""), e)
	case endDelete:
		_, err := s.temporal.WorkflowService().DeleteWorkflowExecution(ctx, &workflowservice.DeleteWorkflowExecutionRequest{
			Namespace: shared.Getenv("TEMPORAL_NAMESPACE"), WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: id}})
		require.NoError(s.T, err, e)
	case endGarbage:
		s.sendGarbage(e)
	case endResetFirst, endResetMid, endResetLast:
		points := s.resetPoints(e)
		at := map[string]int{endResetFirst: 0, endResetMid: len(points) / 2, endResetLast: len(points) - 1}[e.ending]
		s.reset(e, points[at])
	case endResetAt:
		points := s.resetPoints(e)
		s.reset(e, points[min(e.point, len(points)-1)])
	}
}

// sendGarbage sends signals and updates that the control plane never sends.
func (s *sweep) sendGarbage(e *endedRun) {
	ctx, id, huge := s.Context(), e.operation.WorkflowID, strings.Repeat("x", 100_000)
	for _, g := range []any{nil, "text", 12, map[string]any{"event": 7}, huge,
		lifecycle.AgentEvent{Event: lifecycle.EventNodeRemoved, NodeID: huge},
		lifecycle.AgentEvent{Event: lifecycle.EventFirstPoll, NodeID: e.id, Incarnation: -1}} {
		require.NoError(s.T, s.temporal.SignalWorkflow(ctx, id, "", lifecycle.SignalAgent, g), e)
		require.NoError(s.T, s.temporal.SignalWorkflow(ctx, id, "", "no-such-signal", g), e)
	}
	for _, g := range []any{nil, "text", 12, map[string]any{"decision": 7}, lifecycle.ResolveRequest{Decision: lifecycle.Decision(huge), Reason: huge, By: huge}} {
		u, err := s.temporal.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{WorkflowID: id, UpdateName: lifecycle.UpdateResolve,
			Args: []any{g}, WaitForStage: client.WorkflowUpdateStageCompleted})
		if err == nil {
			err = u.Get(ctx, nil)
		}
		require.Error(s.T, err, e)
	}
}

// resetPoints are the run's completed workflow tasks.
func (s *sweep) resetPoints(e *endedRun) (points []int64) {
	for _, event := range history(s.T, s.temporal, e.operation.WorkflowID, "").GetEvents() {
		if event.GetEventType() == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED {
			points = append(points, event.GetEventId())
		}
	}
	require.NotEmpty(s.T, points, e)
	return points
}

func (s *sweep) reset(e *endedRun, to int64) (runID string) {
	return temporaltest.Reset(s.T, s.temporal, shared.Getenv("TEMPORAL_NAMESPACE"), e.operation.WorkflowID, "", to)
}

// failByBug ends runs as a worker with a defect would: the run fails and records nothing.
func (s *sweep) failByBug(all []*endedRun) {
	s.Helper()
	kill(s.T, "worker", "")
	open := map[string]bool{}
	for _, e := range all {
		require.NoError(s.T, s.temporal.SignalWorkflow(s.Context(), e.operation.WorkflowID, "", "wake", nil), e)
		open[e.operation.WorkflowID] = true
	}
	deadline := time.Now().Add(conditionTimeout)
	for len(open) > 0 && time.Now().Before(deadline) {
		task, err := s.pollWorkflowTask()
		require.NoError(s.T, err)
		if task.GetTaskToken() != nil {
			s.failRun(task, open)
		}
	}
	require.Empty(s.T, open, "the runs did not fail")
	ok(s.T, "dev", "up", "--detach", "--dir", shared.Dir)
}

// pollWorkflowTask returns a workflow task of any operation, nil if there is none for a
// while.
func (s *sweep) pollWorkflowTask() (*workflowservice.PollWorkflowTaskQueueResponse, error) {
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
	defer cancel()
	task, err := s.temporal.WorkflowService().PollWorkflowTaskQueue(ctx, &workflowservice.PollWorkflowTaskQueueRequest{
		Namespace: shared.Getenv("TEMPORAL_NAMESPACE"), Identity: "a worker with a defect", DeploymentOptions: currentVersion(s.T, s.temporal),
		TaskQueue: &taskqueuepb.TaskQueue{Name: lifecycle.TaskQueue, Kind: enumspb.TASK_QUEUE_KIND_NORMAL}})
	if ctx.Err() != nil {
		return nil, nil
	}
	return task, err
}

// failRun fails the run of a workflow task if it is open, and otherwise returns the task.
func (s *sweep) failRun(task *workflowservice.PollWorkflowTaskQueueResponse, open map[string]bool) {
	service, namespace, id := s.temporal.WorkflowService(), shared.Getenv("TEMPORAL_NAMESPACE"), task.GetWorkflowExecution().GetWorkflowId()
	if !open[id] {
		_, err := service.RespondWorkflowTaskFailed(s.Context(), &workflowservice.RespondWorkflowTaskFailedRequest{
			Namespace: namespace, TaskToken: task.GetTaskToken(), DeploymentOptions: currentVersion(s.T, s.temporal),
			Cause: enumspb.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE})
		require.NoError(s.T, err)
		return
	}
	_, err := service.RespondWorkflowTaskCompleted(s.Context(), &workflowservice.RespondWorkflowTaskCompletedRequest{
		Namespace: namespace, TaskToken: task.GetTaskToken(), DeploymentOptions: currentVersion(s.T, s.temporal),
		Commands: []*commandpb.Command{{CommandType: enumspb.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION,
			Attributes: &commandpb.Command_FailWorkflowExecutionCommandAttributes{
				FailWorkflowExecutionCommandAttributes: &commandpb.FailWorkflowExecutionCommandAttributes{
					Failure: &failurepb.Failure{Message: "a defect"}}}}}})
	require.NoError(s.T, err)
	delete(open, id)
}
