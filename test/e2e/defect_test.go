package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commandpb "go.temporal.io/api/command/v1"
	deploymentpb "go.temporal.io/api/deployment/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// defect is a worker of the current version with a defect.
type defect struct {
	t         *testing.T
	service   workflowservice.WorkflowServiceClient
	namespace string
	version   *deploymentpb.WorkerDeploymentOptions
}

// failRuns ends the newest runs of workflows as a worker with a defect would: each run fails
// with its next workflow task and records nothing. It stops the worker.
func failRuns(t *testing.T, c client.Client, workflowIDs ...string) {
	t.Helper()
	kill(t, "worker", "")
	d := defect{t: t, service: c.WorkflowService(), namespace: shared.Getenv("TEMPORAL_NAMESPACE")}
	d.version = d.currentVersion()
	open := map[string]bool{}
	for _, id := range workflowIDs {
		require.NoError(t, c.SignalWorkflow(t.Context(), id, "", "wake", nil), id)
		open[id] = true
	}
	deadline := time.Now().Add(conditionTimeout)
	for len(open) > 0 && time.Now().Before(deadline) {
		if task := d.poll(); task.GetTaskToken() != nil {
			d.respond(task, open)
		}
	}
	require.Empty(t, open, "the runs did not fail")
	for _, id := range workflowIDs {
		run, err := c.DescribeWorkflowExecution(t.Context(), id, "")
		require.NoError(t, err)
		require.Equal(t, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, run.GetWorkflowExecutionInfo().GetStatus(), id)
	}
}

// currentVersion returns the options with which a worker polls that passes for one of the
// current version.
func (d defect) currentVersion() *deploymentpb.WorkerDeploymentOptions {
	d.t.Helper()
	answer, err := d.service.DescribeWorkerDeployment(d.t.Context(), &workflowservice.DescribeWorkerDeploymentRequest{
		Namespace: d.namespace, DeploymentName: temporal.Deployment})
	require.NoError(d.t, err)
	current := answer.GetWorkerDeploymentInfo().GetRoutingConfig().GetCurrentDeploymentVersion()
	return &deploymentpb.WorkerDeploymentOptions{DeploymentName: current.GetDeploymentName(), BuildId: current.GetBuildId(),
		WorkerVersioningMode: enumspb.WORKER_VERSIONING_MODE_VERSIONED}
}

// poll returns a workflow task of any operation, nil if there is none for a while.
func (d defect) poll() *workflowservice.PollWorkflowTaskQueueResponse {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
	defer cancel()
	task, err := d.service.PollWorkflowTaskQueue(ctx, &workflowservice.PollWorkflowTaskQueueRequest{
		Namespace: d.namespace, Identity: "a worker with a defect", DeploymentOptions: d.version,
		TaskQueue: &taskqueuepb.TaskQueue{Name: lifecycle.TaskQueue, Kind: enumspb.TASK_QUEUE_KIND_NORMAL}})
	if ctx.Err() != nil {
		return nil
	}
	require.NoError(d.t, err)
	return task
}

// respond fails the run of a workflow task if it is open, and otherwise returns the task.
func (d defect) respond(task *workflowservice.PollWorkflowTaskQueueResponse, open map[string]bool) {
	d.t.Helper()
	id := task.GetWorkflowExecution().GetWorkflowId()
	if !open[id] {
		_, err := d.service.RespondWorkflowTaskFailed(d.t.Context(), &workflowservice.RespondWorkflowTaskFailedRequest{
			Namespace: d.namespace, TaskToken: task.GetTaskToken(), DeploymentOptions: d.version,
			Cause: enumspb.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE})
		require.NoError(d.t, err)
		return
	}
	_, err := d.service.RespondWorkflowTaskCompleted(d.t.Context(), &workflowservice.RespondWorkflowTaskCompletedRequest{
		Namespace: d.namespace, TaskToken: task.GetTaskToken(), DeploymentOptions: d.version,
		Commands: []*commandpb.Command{{CommandType: enumspb.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION,
			Attributes: &commandpb.Command_FailWorkflowExecutionCommandAttributes{
				FailWorkflowExecutionCommandAttributes: &commandpb.FailWorkflowExecutionCommandAttributes{
					Failure: &failurepb.Failure{Message: "a defect"}}}}}})
	require.NoError(d.t, err)
	delete(open, id)
}
