package temporal

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// componentTasks is the component of faults of workflow tasks and activities.
const componentTasks = "tasks"

const (
	// sampled is how many runs of each query the probe describes.
	sampled = 20
	// failedTasks is the attempt from which a workflow task counts as failing: the
	// first one and its repetition failed.
	failedTasks = 3
	// messageLimit bounds the text of a failure in a fault, in characters.
	messageLimit = 300
)

// reportedProblems selects the runs whose workflow tasks failed five times in a row.
const reportedProblems = "ExecutionStatus = 'Running' AND TemporalReportedProblems IN ('category=WorkflowTaskFailed','category=WorkflowTaskTimedOut')"

// runningOperations selects the open runs of operations.
const runningOperations = "ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH 'node:'"

// taskFaults returns the faults of workflow tasks that fail and of activities that are
// retried. It describes the operations that Temporal reports, those that are parked or
// overdue and the newest ones, sampled of each.
func (p prober) taskFaults(ctx context.Context) ([]wire.ControlPlaneFault, error) {
	var failing, others []*workflowpb.WorkflowExecutionInfo
	var group sync.WaitGroup
	var errs [3]error
	var lists [3][]*workflowpb.WorkflowExecutionInfo
	for i, query := range []string{reportedProblems, attentionQuery(time.Now()), runningOperations} {
		group.Go(func() { lists[i], errs[i] = p.conn.list(ctx, query, sampled) })
	}
	group.Wait()
	if is[*serviceerror.InvalidArgument](errs[0]) {
		errs[0] = nil // the server is older than the search attribute
	}
	failing, others = lists[0], slices.Concat(lists[1], lists[2])
	described := p.describe(ctx, others)
	for _, d := range described {
		if d.GetPendingWorkflowTask().GetAttempt() >= failedTasks {
			failing = append(failing, d.GetWorkflowExecutionInfo())
		}
	}
	faults := p.failingTasks(ctx, failing)
	return append(faults, retriedActivities(described)...), cmp.Or(errs[0], errs[1], errs[2])
}

// describe describes each of the runs once. It omits those that cannot be read.
func (p prober) describe(ctx context.Context, infos []*workflowpb.WorkflowExecutionInfo) []*workflowservice.DescribeWorkflowExecutionResponse {
	infos = distinct(infos)
	all := make([]*workflowservice.DescribeWorkflowExecutionResponse, len(infos))
	inParallel(len(infos), func(i int) {
		run := infos[i].GetExecution()
		if d, err := p.conn.sdk.DescribeWorkflowExecution(ctx, run.GetWorkflowId(), run.GetRunId()); err == nil {
			all[i] = d
		}
	})
	return slices.DeleteFunc(all, func(d *workflowservice.DescribeWorkflowExecutionResponse) bool { return d == nil })
}

// distinct returns each run once.
func distinct(infos []*workflowpb.WorkflowExecutionInfo) (out []*workflowpb.WorkflowExecutionInfo) {
	seen := map[string]bool{}
	for _, info := range infos {
		if run := info.GetExecution().GetRunId(); !seen[run] {
			seen[run] = true
			out = append(out, info)
		}
	}
	return out
}

// failingTasks returns the fault of runs whose workflow tasks fail, with the last error
// of one of them.
func (p prober) failingTasks(ctx context.Context, runs []*workflowpb.WorkflowExecutionInfo) []wire.ControlPlaneFault {
	runs = distinct(runs)
	if len(runs) == 0 {
		return nil
	}
	failure, cause := p.lastTaskFailure(ctx, runs[0])
	f := wire.ControlPlaneFault{Component: componentTasks, Reason: "workflow_tasks_failing",
		Message: fmt.Sprintf("the workflow tasks of %s fail, for example of the %s", operations(len(runs)), nameOf(runs[0])),
		Next:    "read the error in gpuaas-worker's log; if the worker was just upgraded, roll it back"}
	if cause == enumspb.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR {
		f.Reason = "nondeterminism"
		f.Next = "make the version before current again (gpuaas admin promote --to VERSION); gpuaas admin replay shows the difference"
	}
	if message := text.Line(failure.GetMessage(), messageLimit); message != "" {
		f.Message += ": " + message
	}
	return []wire.ControlPlaneFault{f}
}

// lastTaskFailure returns why the run's last failed workflow task failed, as far as it
// is known.
func (p prober) lastTaskFailure(ctx context.Context, run *workflowpb.WorkflowExecutionInfo) (*failurepb.Failure, enumspb.WorkflowTaskFailedCause) {
	answer, err := p.conn.sdk.WorkflowService().GetWorkflowExecutionHistoryReverse(ctx, &workflowservice.GetWorkflowExecutionHistoryReverseRequest{
		Namespace: p.conn.namespace, Execution: run.GetExecution(), MaximumPageSize: sampled})
	if err != nil {
		return nil, enumspb.WORKFLOW_TASK_FAILED_CAUSE_UNSPECIFIED
	}
	for _, e := range answer.GetHistory().GetEvents() {
		if a := e.GetWorkflowTaskFailedEventAttributes(); a != nil {
			return a.GetFailure(), a.GetCause()
		}
	}
	return nil, enumspb.WORKFLOW_TASK_FAILED_CAUSE_UNSPECIFIED
}

// retried is an activity that fails with a reason in one or more operations.
type retried struct {
	activity, reason string
	runs             int
	// attempt, failure and of are of the run with the most attempts.
	attempt int32
	failure *failurepb.Failure
	of      *workflowpb.WorkflowExecutionInfo
}

// retriedActivities returns a fault for each type of activity and reason for which it is
// retried. The silence of a node is not a fault of the control plane.
func retriedActivities(described []*workflowservice.DescribeWorkflowExecutionResponse) (faults []wire.ControlPlaneFault) {
	var all []*retried
	for _, d := range described {
		for _, a := range d.GetPendingActivities() {
			f, reason := retriedFailure(a)
			if f == nil || reason == string(schema.KindAgentSilent) {
				continue
			}
			activity := a.GetActivityType().GetName()
			i := slices.IndexFunc(all, func(r *retried) bool { return r.activity == activity && r.reason == reason })
			if i < 0 {
				i, all = len(all), append(all, &retried{activity: activity, reason: reason})
			}
			r := all[i]
			if r.runs++; a.GetAttempt() > r.attempt {
				r.attempt, r.failure, r.of = a.GetAttempt(), f, d.GetWorkflowExecutionInfo()
			}
		}
	}
	slices.SortFunc(all, func(a, b *retried) int {
		return cmp.Or(b.runs-a.runs, cmp.Compare(a.activity+a.reason, b.activity+b.reason))
	})
	for _, r := range all {
		faults = append(faults, wire.ControlPlaneFault{Component: componentTasks, Reason: r.reason, Message: fmt.Sprintf(
			"the activity %s fails in %s and is retried, for example in attempt %d of the %s: %s",
			r.activity, operations(r.runs), r.attempt, nameOf(r.of), text.Line(r.failure.GetMessage(), messageLimit)), Next: showCommand(r.of)})
	}
	return faults
}

// retriedFailure returns the last failure of an activity that is retried, and its reason, which is the
// kind of the error if it has no other. It returns nil for others, and for an activity that waits by its heartbeats.
func retriedFailure(a *workflowpb.PendingActivityInfo) (f *failurepb.Failure, reason string) {
	f = a.GetLastFailure()
	silent := f.GetTimeoutFailureInfo().GetTimeoutType() == enumspb.TIMEOUT_TYPE_HEARTBEAT ||
		f.GetApplicationFailureInfo().GetType() == string(schema.KindAgentSilent) // a node that boots
	if a.GetAttempt() < 2 || f == nil || silent {
		return nil, ""
	}
	return f, cmp.Or(failureOf(f).Reason, f.GetApplicationFailureInfo().GetType(), "failing")
}

// RunFaults returns the calls of the operation's open run that fail and are retried. It needs
// no worker.
func (c Operations) RunFaults(ctx context.Context, op lifecycle.Operation) (faults []wire.ControlPlaneFault, err error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	d, err := c.sdk.DescribeWorkflowExecution(ctx, op.WorkflowID, "")
	if err != nil || !belongs(d.GetWorkflowExecutionInfo(), op) {
		return nil, c.interpret(err, "reading the operation's calls")
	}
	for _, a := range d.GetPendingActivities() {
		if f, reason := retriedFailure(a); f != nil {
			faults = append(faults, wire.ControlPlaneFault{Component: componentTasks, Reason: reason, Message: fmt.Sprintf(
				"the activity %s fails and is retried, now in attempt %d: %s", a.GetActivityType().GetName(), a.GetAttempt(), text.Line(f.GetMessage(), messageLimit))})
		}
	}
	return faults, nil
}

func operations(n int) string {
	switch {
	case n == 1:
		return "1 operation"
	case n >= sampled:
		return fmt.Sprintf("%d or more operations", n)
	}
	return fmt.Sprintf("%d operations", n)
}

// nameOf names an operation, for example "drain of gpu-17".
func nameOf(run *workflowpb.WorkflowExecutionInfo) string {
	plan, _ := lifecycle.PlanOfWorkflow(run.GetType().GetName())
	return cmp.Or(string(plan.Action), run.GetType().GetName()) + " of " + hostOf(run)
}

func hostOf(run *workflowpb.WorkflowExecutionInfo) string {
	return cmp.Or(attribute[string](run.GetSearchAttributes(), lifecycle.AttrHost), run.GetExecution().GetWorkflowId())
}

func showCommand(run *workflowpb.WorkflowExecutionInfo) string {
	plan, _ := lifecycle.PlanOfWorkflow(run.GetType().GetName())
	return lifecycle.OpCommand("show", plan.Action, hostOf(run))
}
