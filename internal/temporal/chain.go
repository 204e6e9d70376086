package temporal

import (
	"context"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
)

// A parked operation whose history has grown continues as a new run (workflows/renew.go).
// The recorded run of an operation may therefore be one that another run continues.

// chain finds the runs of an operation that continue one another.
type chain struct{ *connection }

// next returns the run that continues a run, "" if none does. It reads the close event of
// closed runs only: for a running one, the server waits for that event up to the deadline.
func (c chain) next(ctx context.Context, workflowID, runID string) (string, error) {
	d, err := c.sdk.DescribeWorkflow(ctx, workflowID, runID)
	if is[*serviceerror.NotFound](err) {
		return "", nil
	}
	if err != nil || d.Status != enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
		return "", err
	}
	events := c.sdk.GetWorkflowHistory(ctx, workflowID, runID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT)
	if !events.HasNext() {
		return "", nil
	}
	last, err := events.Next()
	if is[*serviceerror.NotFound](err) {
		return "", nil
	}
	return last.GetWorkflowExecutionContinuedAsNewEventAttributes().GetNewExecutionRunId(), err
}

// newest returns the last run that continues a run: the run itself if none does.
func (c chain) newest(ctx context.Context, workflowID, runID string) (string, error) {
	for {
		next, err := c.next(ctx, workflowID, runID)
		if err != nil || next == "" {
			return runID, err
		}
		runID = next
	}
}

// previous returns the run that a run continues, "" if it continues none or does not
// exist.
func (c chain) previous(ctx context.Context, workflowID, runID string) (string, error) {
	h, err := c.sdk.WorkflowService().GetWorkflowExecutionHistory(ctx, &workflowservice.GetWorkflowExecutionHistoryRequest{
		Namespace: c.namespace, Execution: &commonpb.WorkflowExecution{WorkflowId: workflowID, RunId: runID}, MaximumPageSize: 1})
	if is[*serviceerror.NotFound](err) {
		return "", nil
	}
	if events := h.GetHistory().GetEvents(); len(events) > 0 {
		return events[0].GetWorkflowExecutionStartedEventAttributes().GetContinuedExecutionRunId(), err
	}
	return "", err
}
