package temporal

import (
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	failurepb "go.temporal.io/api/failure/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
)

// TestSilenceIsNoFault: an activity that is retried because a node is silent, for example while it restarts, is no
// fault of the control plane.
func TestSilenceIsNoFault(t *testing.T) {
	t.Parallel()
	pending := func(activity, kind string) *workflowpb.PendingActivityInfo {
		return &workflowpb.PendingActivityInfo{ActivityType: &commonpb.ActivityType{Name: activity}, Attempt: 5, LastFailure: &failurepb.Failure{
			FailureInfo: &failurepb.Failure_ApplicationFailureInfo{ApplicationFailureInfo: &failurepb.ApplicationFailureInfo{Type: kind}}}}
	}
	run := &workflowservice.DescribeWorkflowExecutionResponse{
		WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{Type: &commonpb.WorkflowType{Name: "Recover"}, Execution: &commonpb.WorkflowExecution{}},
		PendingActivities:     []*workflowpb.PendingActivityInfo{pending("AwaitReboot", "agent_silent"), pending("ResetMachine", "service_unavailable")}}
	faults := retriedActivities([]*workflowservice.DescribeWorkflowExecutionResponse{run})
	require.Len(t, faults, 1)
	require.Contains(t, faults[0].Message, "ResetMachine")
}
