package temporaltest

import (
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
)

// Reset resets a run, "" for the newest one, and returns the ID of the new run. It resets
// to the workflow task that the event to completed, or for 0 to the first one, whose
// completion it waits for.
func Reset(tb testing.TB, c client.Client, namespace, workflowID, runID string, to int64) (newRunID string) {
	tb.Helper()
	if to == 0 {
		to = FirstTask(tb, c, workflowID, runID)
	}
	answer, err := c.ResetWorkflowExecution(tb.Context(), &workflowservice.ResetWorkflowExecutionRequest{
		Namespace: namespace, WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: workflowID, RunId: runID},
		RequestId: schema.NewID(), Reason: "test", WorkflowTaskFinishEventId: to})
	require.NoError(tb, err, workflowID)
	return answer.GetRunId()
}

// FirstTask waits until the run, "" for the newest one, has completed its first workflow
// task, and returns the ID of that event.
func FirstTask(tb testing.TB, c client.Client, workflowID, runID string) (id int64) {
	tb.Helper()
	harness.Eventually(tb, "the first workflow task is completed", func() bool {
		events := c.GetWorkflowHistory(tb.Context(), workflowID, runID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for events.HasNext() {
			e, err := events.Next()
			require.NoError(tb, err)
			if e.GetEventType() == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED {
				id = e.GetEventId()
				return true
			}
		}
		return false
	})
	return id
}
