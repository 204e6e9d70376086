package temporal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// TestSetupUpdatesSchedules: Setup changes a schedule of an earlier version to this
// one, and creates one that is absent.
func TestSetupUpdatesSchedules(t *testing.T) {
	c := connect(t)
	ctx := t.Context()
	schedules := c.sdk.ScheduleClient()
	require.NoError(t, schedules.GetHandle(ctx, lifecycle.ScheduleWatch).Delete(ctx))
	require.NoError(t, schedules.GetHandle(ctx, lifecycle.ScheduleReclaim).Update(ctx, client.ScheduleUpdateOptions{
		DoUpdate: func(in client.ScheduleUpdateInput) (*client.ScheduleUpdate, error) {
			s := in.Description.Schedule
			s.Spec = &client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: time.Hour}}}
			s.Policy = &client.SchedulePolicies{Overlap: enumspb.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL, CatchupWindow: time.Hour}
			s.Action = &client.ScheduleWorkflowAction{ID: "old", Workflow: "Old", TaskQueue: "old", WorkflowRunTimeout: time.Minute}
			return &client.ScheduleUpdate{Schedule: &s}, nil
		},
	}))
	require.NoError(t, c.Installation.Setup(ctx))
	for _, want := range lifecycle.Schedules() {
		d, err := schedules.GetHandle(ctx, want.ID).Describe(ctx)
		require.NoError(t, err)
		require.Equal(t, enumspb.SCHEDULE_OVERLAP_POLICY_SKIP, d.Schedule.Policy.Overlap)
		require.Equal(t, want.Every, d.Schedule.Policy.CatchupWindow)
		require.Equal(t, want.Every, d.Schedule.Spec.Intervals[0].Every)
		action, ok := d.Schedule.Action.(*client.ScheduleWorkflowAction)
		require.True(t, ok)
		require.Equal(t, want.Workflow, action.Workflow)
		require.Equal(t, want.RunTimeout, action.WorkflowRunTimeout)
		require.Equal(t, lifecycle.TaskQueue, action.TaskQueue)
		require.NotEmpty(t, action.StaticSummary)
	}
}
