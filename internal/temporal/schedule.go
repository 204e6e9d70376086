package temporal

import (
	"context"
	"errors"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// ensureSchedules creates the schedules or updates them to this version. A schedule
// that an operator paused stays paused.
func (c Installation) ensureSchedules(ctx context.Context) error {
	for _, s := range lifecycle.Schedules() {
		if err := c.ensureSchedule(ctx, scheduleOptions(s)); err != nil {
			return c.interpret(err, "creating the schedule "+s.ID)
		}
	}
	return nil
}

func (c Installation) ensureSchedule(ctx context.Context, o client.ScheduleOptions) error {
	_, err := c.sdk.ScheduleClient().Create(ctx, o)
	if !errors.Is(err, temporal.ErrScheduleAlreadyRunning) {
		return err
	}
	return c.sdk.ScheduleClient().GetHandle(ctx, o.ID).Update(ctx, client.ScheduleUpdateOptions{
		DoUpdate: func(in client.ScheduleUpdateInput) (*client.ScheduleUpdate, error) {
			s := in.Description.Schedule
			s.Spec, s.Action = &o.Spec, o.Action
			s.Policy = &client.SchedulePolicies{Overlap: o.Overlap, CatchupWindow: o.CatchupWindow}
			return &client.ScheduleUpdate{Schedule: &s}, nil
		},
	})
}

// scheduleOptions never overlaps runs and does not catch up on missed ones: each
// run reconciles everything that the missed ones would have.
func scheduleOptions(s lifecycle.Schedule) client.ScheduleOptions {
	return client.ScheduleOptions{
		ID:            s.ID,
		Spec:          client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: s.Every}}},
		Overlap:       enumspb.SCHEDULE_OVERLAP_POLICY_SKIP,
		CatchupWindow: s.Every,
		Action: &client.ScheduleWorkflowAction{
			ID: s.WorkflowID, Workflow: s.Workflow, TaskQueue: lifecycle.TaskQueue,
			WorkflowRunTimeout: s.RunTimeout, StaticSummary: s.Does,
		},
	}
}
