package temporal

import (
	"context"
	"sync/atomic"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// RunEnds implements activities.Runs. It reads up to describers runs at a time.
func (c Operations) RunEnds(ctx context.Context, ops []lifecycle.Operation) (ends []lifecycle.RunEnd, errs []error) {
	ends, errs = make([]lifecycle.RunEnd, len(ops)), make([]error, len(ops))
	var unavailable atomic.Pointer[error]
	inParallel(len(ops), func(i int) {
		if failed := unavailable.Load(); failed != nil {
			errs[i] = *failed
			return
		}
		ends[i], errs[i] = c.RunEnd(ctx, ops[i])
		if schema.KindOf(errs[i]) == schema.KindServiceUnavailable {
			unavailable.Store(&errs[i])
		}
	})
	return ends, errs
}

// describers is how many runs are described at a time.
const describers = 8

// inParallel calls do for 0 to n-1, up to describers at a time, and waits for all.
func inParallel(n int, do func(i int)) {
	var group errgroup.Group
	group.SetLimit(describers)
	for i := range n {
		group.Go(func() error { do(i); return nil })
	}
	_ = group.Wait() // no call fails
}

// RunEnd returns how the operation's last run ended, or "" while a run of it is open.
// It needs no worker. Any error means that it is not known: only a namespace that
// responds can report a run as lost.
//
// The newest run under the workflow ID decides if it belongs to the operation, because
// a reset closes the recorded run and continues the operation in another. Otherwise
// the recorded run decides, or the last one that continues it.
func (c Operations) RunEnd(ctx context.Context, op lifecycle.Operation) (lifecycle.RunEnd, error) {
	for _, runID := range []string{"", op.RunID} {
		info, err := c.describeRun(ctx, op.WorkflowID, runID)
		if err != nil {
			return "", err
		}
		if info == nil || !belongs(info, op) {
			continue
		}
		if info, err = c.describeLast(ctx, info); err != nil {
			return "", err
		}
		return runEnd(info.GetStatus())
	}
	return lifecycle.RunLost, nil
}

// describeRun returns a run, or the newest one without a run ID. It returns nil if
// there is none.
func (c *connection) describeRun(ctx context.Context, workflowID, runID string) (*workflowpb.WorkflowExecutionInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	d, err := c.sdk.DescribeWorkflowExecution(ctx, workflowID, runID)
	if is[*serviceerror.NotFound](err) {
		return nil, nil //nolint:nilnil // no run is a normal answer
	}
	return d.GetWorkflowExecutionInfo(), c.interpret(err, "reading the operation's run")
}

// describeLast returns the last run that continues a run: the run itself if none does.
func (c *connection) describeLast(ctx context.Context, info *workflowpb.WorkflowExecutionInfo) (*workflowpb.WorkflowExecutionInfo, error) {
	if info.GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
		return info, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	run := info.GetExecution()
	last, err := chain{c}.newest(ctx, run.GetWorkflowId(), run.GetRunId())
	if err != nil || last == run.GetRunId() {
		return info, c.interpret(err, "looking for the run that continues the operation")
	}
	if next, err := c.describeRun(ctx, run.GetWorkflowId(), last); err != nil || next != nil {
		return next, err
	}
	return info, nil
}

// belongs reports whether a run is one of the operation's.
func belongs(info *workflowpb.WorkflowExecutionInfo, op lifecycle.Operation) bool {
	return info.GetExecution().GetRunId() == op.RunID || operationOf(info) == op.OperationID
}

func runEnd(s enumspb.WorkflowExecutionStatus) (lifecycle.RunEnd, error) {
	switch s {
	case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, enumspb.WORKFLOW_EXECUTION_STATUS_PAUSED:
		return "", nil
	case enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED:
		return lifecycle.RunTerminated, nil
	case enumspb.WORKFLOW_EXECUTION_STATUS_FAILED:
		return lifecycle.RunFailed, nil
	case enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
		return lifecycle.RunTimedOut, nil
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED,
		enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
		return lifecycle.RunClosed, nil
	}
	return "", schema.NewError(schema.KindInternal, "a run has the unknown status %s", s)
}
