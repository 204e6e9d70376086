package temporal

import (
	"context"
	"errors"
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// faultBudget bounds Faults: a list of what is stuck waits for it.
const faultBudget = 3 * time.Second

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

// Faults returns the faults of Temporal that need an operator: it does not respond, or the
// reclaimer's schedule is absent, paused, failing or stalled.
func (c *connection) Faults(ctx context.Context) []wire.ControlPlaneFault {
	ctx, cancel := context.WithTimeout(ctx, faultBudget)
	defer cancel()
	reason, message, next, err := c.reclaimFault(ctx)
	switch {
	case err != nil:
		e := schema.AsError(c.interpret(err, "reading the reclaimer's schedule"))
		return []wire.ControlPlaneFault{{Component: "temporal", Reason: string(e.Kind), Message: e.Message, Next: e.Next}}
	case reason != "":
		return []wire.ControlPlaneFault{{Component: "reclaimer", Reason: reason, Message: message, Next: next}}
	}
	return nil
}

// reclaimFault returns the fault of the reclaimer's schedule; no reason means no fault.
func (c *connection) reclaimFault(ctx context.Context) (reason, message, next string, err error) {
	d, err := c.sdk.ScheduleClient().GetHandle(ctx, lifecycle.ScheduleReclaim).Describe(ctx)
	if is[*serviceerror.NotFound](err) {
		return "absent", "the reclaimer has no schedule: tasks of nodes that disappear stay open", "gpuaas admin setup", nil
	}
	if err != nil {
		return "", "", "", err
	}
	if d.Schedule.State.Paused {
		return "paused", "the reclaimer is paused: " + d.Schedule.State.Note,
			"temporal schedule toggle --schedule-id " + lifecycle.ScheduleReclaim + " --unpause --reason " + lifecycle.ReasonPlaceholder, nil
	}
	recent, since := d.Info.RecentActions, d.Info.CreatedAt
	if n := len(recent); n > 0 {
		since = recent[n-1].ActualTime
	}
	ended, err := c.lastRun(ctx, recent)
	switch {
	case err != nil:
		return "", "", "", err
	case ended != "":
		return "failing", "the reclaimer's last run " + ended,
			"inspect the runs of " + lifecycle.WorkflowReclaim + " in the Web UI, and check that a gpuaas-worker is up", nil
	case time.Since(since) > lifecycle.Schedules()[0].StalledAfter():
		return "stalled", "the reclaimer started no run since " + since.UTC().Format(time.RFC3339), "gpuaas admin setup", nil
	}
	return "", "", "", nil
}

// lastRun returns the failure of the last finished run, "" if it succeeded.
func (c *connection) lastRun(ctx context.Context, recent []client.ScheduleActionResult) (string, error) {
	for _, a := range slices.Backward(recent) {
		if a.StartWorkflowResult == nil {
			continue
		}
		run, err := c.sdk.DescribeWorkflowExecution(ctx, a.StartWorkflowResult.WorkflowID, a.StartWorkflowResult.FirstExecutionRunID)
		if is[*serviceerror.NotFound](err) {
			continue
		}
		if err != nil {
			return "", err
		}
		switch status := run.GetWorkflowExecutionInfo().GetStatus(); status {
		case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING:
		case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
			return "", nil
		default:
			return "ended as " + status.String(), nil
		}
	}
	return "", nil
}
