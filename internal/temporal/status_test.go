package temporal

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	sdk "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// statusOf queries the status of an operation that has a worker. A worker on a busy machine
// may respond later than the budget of one query.
func statusOf(t *testing.T, c *Client, workflowID, runID string) (st lifecycle.OperationStatus) {
	t.Helper()
	harness.Eventually(t, "the worker responds", func() bool {
		var err error
		st, err = c.Operations.Status(t.Context(), workflowID, runID)
		if errors.Is(err, &schema.Error{Kind: schema.KindServiceUnavailable, Reason: lifecycle.ReasonNoWorker}) {
			t.Log(err)
			return false
		}
		require.NoError(t, err)
		return true
	})
	return st
}

// TestStatusOfEndedRun checks that only a completed run reports the outcome of its
// operation.
func TestStatusOfEndedRun(t *testing.T) {
	c := connect(t)
	startStatusWorker(t, c)
	begin := func() client.WorkflowRun {
		run, err := c.sdk.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue, ID: "node:" + schema.NewID()}, "reports")
		require.NoError(t, err)
		require.Equal(t, lifecycle.OperationRunning, statusOf(t, c, run.GetID(), run.GetRunID()).Operation.Status)
		return run
	}
	terminated := func(run client.WorkflowRun) {
		t.Helper()
		_, err := c.Operations.Status(t.Context(), run.GetID(), run.GetRunID())
		require.ErrorIs(t, err, &schema.Error{Kind: schema.KindServiceUnavailable, Reason: "run_terminated"})
	}

	ended := begin()
	require.NoError(t, c.sdk.TerminateWorkflow(t.Context(), ended.GetID(), "", "test"))
	terminated(ended)

	reset := begin()
	again := temporaltest.Reset(t, c.sdk, c.namespace, reset.GetID(), reset.GetRunID(), 0)
	terminated(reset)
	require.Equal(t, lifecycle.OperationRunning, statusOf(t, c, reset.GetID(), again).Operation.Status)

	cancelled := begin()
	require.NoError(t, c.sdk.CancelWorkflow(t.Context(), cancelled.GetID(), ""))
	var cancel *sdk.CanceledError
	require.ErrorAs(t, cancelled.Get(t.Context(), nil), &cancel)
	require.Equal(t, lifecycle.OperationCanceled, statusOf(t, c, cancelled.GetID(), cancelled.GetRunID()).Operation.Status)
}

// TestFindNodePrefersTheLiveNode: a host name may have belonged to nodes that are removed.
func TestFindNodePrefersTheLiveNode(t *testing.T) {
	t.Parallel()
	operation := func(nodeID, workflow string, status enumspb.WorkflowExecutionStatus) *workflowpb.WorkflowExecutionInfo {
		id, err := converter.GetDefaultDataConverter().ToPayload(nodeID)
		require.NoError(t, err)
		return &workflowpb.WorkflowExecutionInfo{Type: &commonpb.WorkflowType{Name: workflow}, Status: status,
			SearchAttributes: &commonpb.SearchAttributes{IndexedFields: map[string]*commonpb.Payload{lifecycle.AttrNodeID: id}}}
	}
	const completed, failed = enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED
	old, oldDrain := operation("old", "Remove", completed), operation("old", "Drain", completed)
	live := operation("live", "Drain", completed)
	for name, c := range map[string]struct {
		sorted, want []*workflowpb.WorkflowExecutionInfo
	}{
		"removed, then registered again": {[]*workflowpb.WorkflowExecutionInfo{live, old}, []*workflowpb.WorkflowExecutionInfo{live}},
		"the removed node's is newer":    {[]*workflowpb.WorkflowExecutionInfo{old, oldDrain, live}, []*workflowpb.WorkflowExecutionInfo{live}},
		"only a removed one":             {[]*workflowpb.WorkflowExecutionInfo{old, oldDrain}, []*workflowpb.WorkflowExecutionInfo{old}},
	} {
		require.Same(t, c.want[0], newestLive(c.sorted), name)
	}
	unfinished := operation("live", "Remove", failed)
	require.Same(t, unfinished, newestLive([]*workflowpb.WorkflowExecutionInfo{unfinished, old}), "a remove that failed removed nothing")
}

func startStatusWorker(t *testing.T, c *Client) {
	t.Helper()
	w := worker.New(c.sdk, lifecycle.TaskQueue, worker.Options{})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
		st := lifecycle.OperationStatus{Operation: lifecycle.Operation{Status: lifecycle.OperationRunning}}
		if err := workflow.SetQueryHandler(ctx, lifecycle.QueryStatus, func() (lifecycle.OperationStatus, error) { return st, nil }); err != nil {
			return err
		}
		err := workflow.Sleep(ctx, time.Hour)
		st.Operation.Status = lifecycle.OperationCanceled
		return err
	}, workflow.RegisterOptions{Name: "reports"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
}
