package temporal

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/text"
)

const (
	// unpolledAfter is how long an operation waits for its claim before it is listed while no worker
	// polls: a submit has returned by then.
	unpolledAfter = time.Minute
	// maxWaiting bounds the runs that Unclaimed compares with the record, and maxUnclaimed those
	// that it describes.
	maxWaiting, maxUnclaimed = visibilityPage, sampled
)

// Requests reads the operations that no worker has claimed.
type Requests struct{ operations Operations }

// waitingQuery selects the running operations that started before a time and that no worker has
// parked.
func waitingQuery(before time.Time) string {
	return fmt.Sprintf("%s AND %s = '%s' AND StartTime < '%s'", runningOperations, lifecycle.AttrAttention, lifecycle.AttentionNone,
		before.UTC().Format(time.RFC3339))
}

// Unclaimed returns the operations that Temporal accepted and that have not claimed their node for
// stuck.PendingAfter, or for a minute if no worker polls: at most maxUnclaimed, the oldest first.
// onRecord returns those of the operations that are on record. It needs no worker.
func (c Requests) Unclaimed(ctx context.Context, onRecord func(ctx context.Context, operationIDs []string) ([]string, error)) ([]stuck.Node, error) {
	return c.unclaimedBefore(ctx, time.Now().Add(-unpolledAfter), onRecord)
}

// unclaimedBefore is Unclaimed of the operations that were accepted before a time.
func (c Requests) unclaimedBefore(ctx context.Context, before time.Time, onRecord func(context.Context, []string) ([]string, error)) ([]stuck.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, faultBudget)
	defer cancel()
	waiting, err := c.operations.list(ctx, waitingQuery(before), maxWaiting)
	if err != nil || len(waiting) == 0 {
		return nil, err
	}
	ids := make([]string, 0, len(waiting))
	for _, info := range waiting {
		ids = append(ids, operationOf(info))
	}
	known, err := onRecord(ctx, ids)
	if err != nil {
		return nil, err
	}
	queues, err := prober{c.operations.connection}.queues(ctx)
	if err != nil {
		return nil, c.operations.interpret(err, "reading the task queue "+lifecycle.TaskQueue)
	}
	polled := len(queues) > 0 && len(queues[0].builds) > 0
	waiting = slices.DeleteFunc(waiting, func(info *workflowpb.WorkflowExecutionInfo) bool {
		return slices.Contains(known, operationOf(info)) || polled && time.Since(info.GetStartTime().AsTime()) < stuck.PendingAfter
	})
	slices.Reverse(waiting) // oldest first
	waiting = waiting[:min(len(waiting), maxUnclaimed)]
	out := make([]stuck.Node, len(waiting))
	inParallel(len(waiting), func(i int) { out[i] = c.unclaimed(ctx, waiting[i], polled) })
	return out, nil
}

// unclaimed describes an operation that has not claimed its node.
func (c Requests) unclaimed(ctx context.Context, info *workflowpb.WorkflowExecutionInfo, polled bool) stuck.Node {
	st, row := parked(c.operations.converter, info), pendingRow()
	op, host, since := st.Operation, st.Node.Host, info.GetStartTime().AsTime()
	message := fmt.Sprintf("Temporal accepted the %s %s ago, and no worker has claimed the node", op.Action, lifecycle.Span(time.Since(since)))
	if until, err := c.operations.claimBy(ctx, info); err == nil {
		message += map[bool]string{true: "; it expired at ", false: "; it expires at "}[time.Now().After(until)] + until.UTC().Format(time.RFC3339)
	}
	cause := "no gpuaas-worker polls the task queue " + lifecycle.TaskQueue
	if polled {
		cause = c.claimFailure(ctx, info)
		row.Options = nil // workers run
	}
	cancel := lifecycle.DirectOpCommand("cancel", op.Action, host) + " --operation " + op.OperationID + " --reason " + lifecycle.ReasonPlaceholder
	row.Options = append(row.Options, lifecycle.Option{Decision: lifecycle.DecisionCancel, Command: cancel, Harm: lifecycle.HarmNone,
		Does: "Cancel the request: a worker that starts later does not run it"})
	if polled {
		row.Options = slices.Insert(row.Options, 0, lifecycle.Option{Decision: "show", Command: lifecycle.DirectOpCommand("show", op.Action, host), Harm: lifecycle.HarmNone,
			Does: "Show the run without the database; it changes nothing"})
	}
	return stuck.Node{Row: row.Name, NodeID: st.Node.NodeID, Host: host, OperationID: op.OperationID, Action: op.Action,
		Stuck: row.Stuck(host, message, cause, since.UTC()), WebURL: c.operations.WebURL(op.WorkflowID, op.RunID)}
}

func pendingRow() stuck.Row {
	row, _ := stuck.Find(stuck.RowPending, stuck.ScopeRequest)
	row.Options = slices.Clone(row.Options)
	return row
}

// claimFailure is why workers that poll have not claimed the node: the last failure of the run's
// calls, of which the claim is the first.
func (c Requests) claimFailure(ctx context.Context, info *workflowpb.WorkflowExecutionInfo) string {
	run := info.GetExecution()
	d, err := c.operations.sdk.WorkflowService().DescribeWorkflowExecution(ctx, &workflowservice.DescribeWorkflowExecutionRequest{Namespace: c.operations.namespace, Execution: run})
	if err != nil {
		return "workers poll, and Temporal does not describe the run"
	}
	for _, a := range d.GetPendingActivities() {
		return "the call " + a.GetActivityType().GetName() + " does not succeed: " + text.Line(cmp.Or(a.GetLastFailure().GetMessage(), "it has not responded yet"), messageLimit)
	}
	if d.GetPendingWorkflowTask().GetAttempt() >= failedTasks {
		return "the workflow tasks of the run fail; the log of gpuaas-worker has the error"
	}
	return "workers poll, and they have not run the operation: they are too slow, or none is of the current version"
}
