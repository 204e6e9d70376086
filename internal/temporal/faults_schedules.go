package temporal

import (
	"cmp"
	"context"
	"strings"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/temporal"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// scheduleFaults returns the fault of a schedule, if any.
func (p prober) scheduleFaults(ctx context.Context, s lifecycle.Schedule) ([]wire.ControlPlaneFault, error) {
	name := "the schedule " + s.ID + " (" + strings.ToLower(s.Does[:1]) + s.Does[1:] + ")"
	fault := func(reason, message, next string) ([]wire.ControlPlaneFault, error) {
		return []wire.ControlPlaneFault{{Component: s.ID, Reason: reason, Message: name + message, Next: next}}, nil
	}
	d, err := p.conn.sdk.ScheduleClient().GetHandle(ctx, s.ID).Describe(ctx)
	switch {
	case is[*serviceerror.NotFound](err):
		return fault("absent", " does not exist", "gpuaas admin setup")
	case err != nil:
		return nil, err
	case d.Schedule.State.Paused:
		return fault("paused", " is paused: "+d.Schedule.State.Note,
			"temporal schedule toggle --schedule-id "+s.ID+" --unpause --reason "+lifecycle.ReasonPlaceholder)
	}
	recent, since := d.Info.RecentActions, d.Info.CreatedAt
	if n := len(recent); n > 0 {
		since = recent[n-1].ActualTime
	}
	failed, err := p.lastRound(ctx, recent)
	switch {
	case err != nil:
		return nil, err
	case failed != nil:
		return fault(cmp.Or(failed.Reason, "failing"), ": "+failed.Message,
			cmp.Or(failed.Next, "inspect the runs of "+s.Workflow+" in the Web UI, and check that a gpuaas-worker is up"))
	case time.Since(since) > s.StalledAfter():
		return fault("stalled", " started no run since "+since.UTC().Format(time.RFC3339), "gpuaas admin setup")
	}
	return nil, nil
}

// lastRound returns the failure of the last finished round of the runs, oldest first. It
// returns nil if that round succeeded, or if there is none.
func (p prober) lastRound(ctx context.Context, runs []client.ScheduleActionResult) (*schema.Error, error) {
	for i := range runs {
		started := runs[len(runs)-1-i].StartWorkflowResult
		if started == nil {
			continue
		}
		d, err := p.conn.sdk.DescribeWorkflowExecution(ctx, started.WorkflowID, started.FirstExecutionRunID)
		if is[*serviceerror.NotFound](err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		run := d.GetWorkflowExecutionInfo()
		switch status := run.GetStatus(); status {
		case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
			return nil, nil
		case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED:
			failed, finished, err := p.lastRoundOf(ctx, run.GetExecution())
			if err != nil || finished {
				return failed, err
			}
		default:
			return schema.NewError(schema.KindInternal, "its last run ended as %s", status), nil
		}
	}
	return nil, nil
}

// lastRoundOf returns the failure of the run's last finished round, nil if it succeeded.
func (p prober) lastRoundOf(ctx context.Context, run *commonpb.WorkflowExecution) (failed *schema.Error, finished bool, err error) {
	answer, err := p.conn.sdk.WorkflowService().GetWorkflowExecutionHistoryReverse(ctx, &workflowservice.GetWorkflowExecutionHistoryReverseRequest{
		Namespace: p.conn.namespace, Execution: run, MaximumPageSize: sampled})
	for _, e := range answer.GetHistory().GetEvents() {
		switch e.GetEventType() {
		case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
			return failureOf(e.GetWorkflowExecutionFailedEventAttributes().GetFailure()), true, nil
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_FAILED:
			return failureOf(e.GetActivityTaskFailedEventAttributes().GetFailure()), true, nil
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
			return failureOf(e.GetActivityTaskTimedOutEventAttributes().GetFailure()), true, nil
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
			return nil, true, nil
		}
	}
	return nil, false, err
}

// failureOf is the error of a round that failed.
func failureOf(f *failurepb.Failure) *schema.Error {
	e := schema.Error{Kind: schema.KindInternal, Message: f.GetMessage()}
	if typed := activities.Typed(sdk.GetDefaultFailureConverter().FailureToError(f)); typed != nil {
		e = *typed
	}
	e.Message = "its last round failed (" + string(e.Kind) + "): " + text.Line(e.Message, messageLimit)
	return &e
}
