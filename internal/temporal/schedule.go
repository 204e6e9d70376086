package temporal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// stalledAfter is how long after its last run a schedule counts as stalled.
const stalledAfter = 10 * lifecycle.ReclaimInterval

// ensureSchedule makes the reclaimer's schedule, or makes the one that stands
// what this version wants. One that an operator paused stays paused.
func (c *Client) ensureSchedule(ctx context.Context) error {
	o := reclaimSchedule()
	_, err := c.sdk.ScheduleClient().Create(ctx, o)
	if errors.Is(err, temporal.ErrScheduleAlreadyRunning) {
		err = c.sdk.ScheduleClient().GetHandle(ctx, o.ID).Update(ctx, client.ScheduleUpdateOptions{
			DoUpdate: func(in client.ScheduleUpdateInput) (*client.ScheduleUpdate, error) {
				s := in.Description.Schedule
				s.Spec, s.Action = &o.Spec, o.Action
				s.Policy = &client.SchedulePolicies{Overlap: o.Overlap, CatchupWindow: o.CatchupWindow}
				return &client.ScheduleUpdate{Schedule: &s}, nil
			},
		})
	}
	return c.interpret(err, "making the reclaimer's schedule")
}

// reclaimSchedule never runs two sweeps at once and makes up for none that it
// missed: a sweep sees everything that the ones before it would have seen.
func reclaimSchedule() client.ScheduleOptions {
	return client.ScheduleOptions{
		ID:            lifecycle.ScheduleReclaim,
		Spec:          client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: lifecycle.ReclaimInterval}}},
		Overlap:       enumspb.SCHEDULE_OVERLAP_POLICY_SKIP,
		CatchupWindow: lifecycle.ReclaimInterval,
		Action: &client.ScheduleWorkflowAction{
			ID: lifecycle.FleetWorkflowID(lifecycle.VerbReclaim), Workflow: lifecycle.WorkflowReclaim, TaskQueue: lifecycle.TaskQueue,
			WorkflowRunTimeout: lifecycle.ReclaimRunTimeout,
			StaticSummary:      "Reclaim the tasks that nobody holds any more",
		},
	}
}

// ReclaimSchedule says how the reclaimer's schedule does.
func (c *Client) ReclaimSchedule(ctx context.Context) (ScheduleHealth, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	d, err := c.sdk.ScheduleClient().GetHandle(ctx, lifecycle.ScheduleReclaim).Describe(ctx)
	if _, absent := errors.AsType[*serviceerror.NotFound](err); absent {
		return ScheduleHealth{State: ScheduleAbsent, Next: "gpuaas admin setup",
			Message: "the reclaimer has no schedule: tasks of nodes that vanish are not given up"}, nil
	}
	if err != nil {
		return ScheduleHealth{}, c.interpret(err, "reading the reclaimer's schedule")
	}
	h := ScheduleHealth{State: ScheduleRuns,
		Skipped: d.Info.NumActionsSkippedOverlap, Missed: d.Info.NumActionsMissedCatchupWindow}
	since := d.Info.CreatedAt
	if n := len(d.Info.RecentActions); n > 0 {
		since = d.Info.RecentActions[n-1].ActualTime.UTC()
		h.LastRunAt = &since
	}
	if d.Schedule.State.Paused {
		h.State, h.Message = SchedulePaused, "the reclaimer is paused: "+d.Schedule.State.Note
		h.Next = "temporal schedule toggle --schedule-id " + lifecycle.ScheduleReclaim + " --unpause --reason TEXT"
		return h, nil
	}
	ended, err := c.lastSweep(ctx, d.Info.RecentActions)
	switch {
	case err != nil:
		return h, c.interpret(err, "reading the reclaimer's last run")
	case ended != "":
		h.State, h.Message = ScheduleFailing, "the reclaimer's last run "+ended
		h.Next = "look at the runs of " + lifecycle.WorkflowReclaim + " in the Web UI; is a gpuaas-worker up?"
	case time.Since(since) > stalledAfter:
		h.State, h.Message = ScheduleStalled, fmt.Sprintf("the reclaimer began no run since %s", since.Format(time.RFC3339))
		h.Next = "gpuaas admin setup"
	}
	return h, nil
}

// lastSweep says how the last run that is over failed; "" when it did not.
func (c *Client) lastSweep(ctx context.Context, recent []client.ScheduleActionResult) (string, error) {
	for _, a := range slices.Backward(recent) {
		if a.StartWorkflowResult == nil {
			continue
		}
		run, err := c.sdk.DescribeWorkflowExecution(ctx, a.StartWorkflowResult.WorkflowID, a.StartWorkflowResult.FirstExecutionRunID)
		if _, unknown := errors.AsType[*serviceerror.NotFound](err); unknown {
			continue
		}
		if err != nil {
			return "", err
		}
		switch run.GetWorkflowExecutionInfo().GetStatus() {
		case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING:
		case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
			return "", nil
		case enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
			return "timed out", nil
		case enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED:
			return "was terminated", nil
		default:
			return "failed", nil
		}
	}
	return "", nil
}
