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

// ScheduleState is the state of a schedule.
type ScheduleState string

// The states of the reclaimer's schedule. All but the first need an operator.
const (
	ScheduleRuns    ScheduleState = "runs"
	ScheduleAbsent  ScheduleState = "absent"
	SchedulePaused  ScheduleState = "paused"
	ScheduleFailing ScheduleState = "failing" // the last run that ended failed
	ScheduleStalled ScheduleState = "stalled" // runs are due and none started
)

// ScheduleHealth is the health of the reclaimer's schedule.
type ScheduleHealth struct {
	State ScheduleState `json:"state"`
	// Message describes the problem, Next is the command that helps. Both are empty
	// while the schedule runs.
	Message string `json:"message,omitempty"`
	Next    string `json:"next,omitempty"`
	// LastRunAt is the start of the last run, null before the first.
	LastRunAt *time.Time `json:"last_run_at"`
	// Skipped counts the runs that were skipped because one was running, Missed
	// those during which Temporal was unavailable.
	Skipped int `json:"skipped"`
	Missed  int `json:"missed"`
}

// stalledAfter is the time after its last run at which a schedule counts as stalled.
const stalledAfter = 10 * lifecycle.ReclaimInterval

// ensureSchedule creates the reclaimer's schedule or updates it to this version.
// A schedule that an operator paused stays paused.
func (c Installation) ensureSchedule(ctx context.Context) error {
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
	return c.interpret(err, "creating the reclaimer's schedule")
}

// reclaimSchedule never overlaps runs and does not catch up on missed ones: each
// run reconciles everything that the missed ones would have.
func reclaimSchedule() client.ScheduleOptions {
	return client.ScheduleOptions{
		ID:            lifecycle.ScheduleReclaim,
		Spec:          client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: lifecycle.ReclaimInterval}}},
		Overlap:       enumspb.SCHEDULE_OVERLAP_POLICY_SKIP,
		CatchupWindow: lifecycle.ReclaimInterval,
		Action: &client.ScheduleWorkflowAction{
			ID: lifecycle.FleetWorkflowID(lifecycle.ScheduleReclaim, "schedule"), Workflow: lifecycle.WorkflowReclaim, TaskQueue: lifecycle.TaskQueue,
			WorkflowRunTimeout: lifecycle.ReclaimRunTimeout,
			StaticSummary:      "Reclaim stale tasks",
		},
	}
}

// ReclaimSchedule returns the health of the reclaimer's schedule.
func (c Installation) ReclaimSchedule(ctx context.Context) (ScheduleHealth, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	d, err := c.sdk.ScheduleClient().GetHandle(ctx, lifecycle.ScheduleReclaim).Describe(ctx)
	if is[*serviceerror.NotFound](err) {
		return ScheduleHealth{State: ScheduleAbsent, Next: "gpuaas admin setup",
			Message: "the reclaimer has no schedule: tasks of nodes that disappear stay open"}, nil
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
	ended, err := c.lastRun(ctx, d.Info.RecentActions)
	switch {
	case err != nil:
		return h, c.interpret(err, "reading the reclaimer's last run")
	case ended != "":
		h.State, h.Message = ScheduleFailing, "the reclaimer's last run "+ended
		h.Next = "inspect the runs of " + lifecycle.WorkflowReclaim + " in the Web UI, and check that a gpuaas-worker is up"
	case time.Since(since) > stalledAfter:
		h.State, h.Message = ScheduleStalled, fmt.Sprintf("the reclaimer started no run since %s", since.Format(time.RFC3339))
		h.Next = "gpuaas admin setup"
	}
	return h, nil
}

// lastRun returns the failure of the last finished run, "" if it succeeded.
func (c Installation) lastRun(ctx context.Context, recent []client.ScheduleActionResult) (string, error) {
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
