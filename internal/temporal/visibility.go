package temporal

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// visibilityPage is the size of a page of a listing, the largest that Temporal allows by
// default (frontend.visibilityMaxPageSize).
const visibilityPage = 1000

// Parked lists the operations that are parked or overdue, oldest first, by their search
// attributes and memo. It needs no worker. complete is false if callBudget ended before
// the last page: Temporal orders its pages by the start of the runs, so older
// operations may be missing then.
func (c Operations) Parked(ctx context.Context) (ops []lifecycle.OperationStatus, complete bool, err error) {
	return listParked(ctx, c, visibilityPage)
}

// listParked lists as Operations.Parked, with pages of a size.
func listParked(ctx context.Context, c Operations, size int32) (ops []lifecycle.OperationStatus, complete bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	var token []byte
	for {
		infos, next, err := c.page(ctx, attentionQuery(time.Now()), size, token)
		if err != nil && len(ops) == 0 {
			return nil, false, err
		}
		for _, info := range infos {
			ops = append(ops, needsAttention(c.converter, info))
		}
		if err != nil || len(next) == 0 {
			slices.SortStableFunc(ops, func(a, b lifecycle.OperationStatus) int {
				return a.Operation.Stuck.Since.Compare(b.Operation.Stuck.Since)
			})
			return ops, err == nil, nil
		}
		token = next
	}
}

// attentionQuery selects the running operations that are parked or overdue.
func attentionQuery(now time.Time) string {
	waiting := []lifecycle.Attention{lifecycle.AttentionAgent, lifecycle.AttentionProvider, lifecycle.AttentionOperator, lifecycle.AttentionCompensation}
	return fmt.Sprintf("ExecutionStatus = 'Running' AND (%s IN (%s) OR %s < '%s')", lifecycle.AttrAttention, quoted(waiting),
		lifecycle.AttrDeadlineAt, now.Add(-lifecycle.OverdueAfter).UTC().Format(time.RFC3339))
}

func quoted[T ~string](values []T) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = "'" + string(v) + "'"
	}
	return strings.Join(words, ",")
}

// needsAttention is parked for a run that may be overdue instead.
func needsAttention(c converter.DataConverter, info *workflowpb.WorkflowExecutionInfo) lifecycle.OperationStatus {
	st := parked(c, info)
	s := st.Operation.Stuck
	if s.WaitingOn != "" && s.WaitingOn != lifecycle.AttentionNone {
		return st
	}
	overdue := lifecycle.Overdue(s.Phase, attribute[time.Time](info.GetSearchAttributes(), lifecycle.AttrDeadlineAt))
	overdue.Next = s.Next
	st.Operation.Status, st.Operation.Stuck = lifecycle.OperationRunning, &overdue
	return st
}

// parked returns what Temporal itself has about a parked operation.
func parked(c converter.DataConverter, info *workflowpb.WorkflowExecutionInfo) lifecycle.OperationStatus {
	attrs, exec, started := info.GetSearchAttributes(), info.GetExecution(), info.GetStartTime().AsTime()
	plan, _ := lifecycle.PlanOfWorkflow(info.GetType().GetName())
	host := attribute[string](attrs, lifecycle.AttrHost)
	s := stuckOf(c, info)
	s.Next = cmp.Or(s.Next, lifecycle.OpCommand("show", plan.Action, host))
	return lifecycle.OperationStatus{
		Operation: lifecycle.Operation{
			OperationID: attribute[string](attrs, lifecycle.AttrOperationID), WorkflowID: exec.GetWorkflowId(), RunID: exec.GetRunId(),
			Action: plan.Action, Status: lifecycle.OperationParked, StartedAt: &started, Stuck: &s,
		},
		Node: lifecycle.NodeRef{NodeID: attribute[string](attrs, lifecycle.AttrNodeID), Host: host},
	}
}

// stuckOf returns why a run is parked: the object in its memo, or what the search
// attributes have of it if the memo is of another park.
func stuckOf(c converter.DataConverter, info *workflowpb.WorkflowExecutionInfo) lifecycle.Stuck {
	attrs := info.GetSearchAttributes()
	s := lifecycle.Stuck{
		Phase:     attribute[string](attrs, lifecycle.AttrPhase),
		WaitingOn: attribute[lifecycle.Attention](attrs, lifecycle.AttrAttention),
		Reason:    attribute[string](attrs, lifecycle.AttrStuckReason),
		Since:     attribute[time.Time](attrs, lifecycle.AttrStuckSince),
	}
	var memo lifecycle.Stuck
	if p := info.GetMemo().GetFields()[lifecycle.MemoStuck]; p != nil {
		_ = c.FromPayload(p, &memo) // another type counts as not set
	}
	if memo.Phase == s.Phase && memo.Reason == s.Reason && memo.WaitingOn == s.WaitingOn {
		memo.Since = s.Since
		return memo
	}
	return s
}

// Described returns what Temporal itself has about the newest run of an operation: enough to
// address a decision while no worker responds. If the run is closed, the operation has an
// end and no status. KindNotFound when there is no run.
func (c Operations) Described(ctx context.Context, workflowID string) (lifecycle.OperationStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	d, err := c.sdk.DescribeWorkflowExecution(ctx, workflowID, "")
	if err != nil {
		return lifecycle.OperationStatus{}, c.interpret(err, "reading the operation's run")
	}
	info := d.GetWorkflowExecutionInfo()
	st := parked(c.converter, info)
	switch {
	case closed(info.GetStatus()):
		st.Operation.Status, st.Operation.EndedAt = "", new(info.GetCloseTime().AsTime())
	case st.Operation.Stuck.WaitingOn == lifecycle.AttentionNone:
		st.Operation.Status, st.Operation.Stuck = lifecycle.OperationAccepted, nil
	}
	return st, nil
}

// FindNode finds a node by its host name or id among the operations that Temporal
// retains, for use without the admin API: the node that is not removed, if several had
// the name. KindNotFound when there is none.
func (c Operations) FindNode(ctx context.Context, name string) (lifecycle.NodeRef, error) {
	key := lifecycle.AttrHost
	if schema.IsID(name) {
		key = lifecycle.AttrNodeID
	}
	infos, err := c.list(ctx, fmt.Sprintf("%s = %q", key, name), findPage)
	if err != nil {
		return lifecycle.NodeRef{}, err
	}
	if len(infos) == 0 {
		return lifecycle.NodeRef{}, schema.NewError(schema.KindNotFound, "Temporal retains no operation of node %q", name)
	}
	attrs := newestLive(infos).GetSearchAttributes()
	return lifecycle.NodeRef{NodeID: attribute[string](attrs, lifecycle.AttrNodeID), Host: attribute[string](attrs, lifecycle.AttrHost)}, nil
}

// findPage is how many operations FindNode looks at.
const findPage = 50

// newestLive returns the newest operation of a node whose newest operation did not remove
// it, of operations sorted by time, newest first. Without one it is the newest.
func newestLive(infos []*workflowpb.WorkflowExecutionInfo) *workflowpb.WorkflowExecutionInfo {
	removed := map[string]bool{}
	for _, info := range infos {
		nodeID := attribute[string](info.GetSearchAttributes(), lifecycle.AttrNodeID)
		plan, _ := lifecycle.PlanOfWorkflow(info.GetType().GetName())
		if plan.Action == lifecycle.ActionRemove && info.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
			removed[nodeID] = true
		}
		if !removed[nodeID] {
			return info
		}
	}
	return infos[0]
}

// list returns up to limit of the runs that match, the newest first.
func (c *connection) list(ctx context.Context, query string, limit int32) ([]*workflowpb.WorkflowExecutionInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	infos, _, err := c.page(ctx, query, limit, nil)
	return infos, err
}

// page returns a page of the runs that match, and the token of the next page.
func (c *connection) page(ctx context.Context, query string, size int32, token []byte) (infos []*workflowpb.WorkflowExecutionInfo, next []byte, err error) {
	answer, err := c.sdk.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Query: query, PageSize: size, NextPageToken: token})
	if err != nil {
		return nil, nil, c.interpret(err, "listing operations")
	}
	return answer.GetExecutions(), answer.GetNextPageToken(), nil
}

// operationOf returns the id of a run's operation.
func operationOf(info *workflowpb.WorkflowExecutionInfo) string {
	return attribute[string](info.GetSearchAttributes(), lifecycle.AttrOperationID)
}

// attribute reads a search attribute; the zero value when it is not set.
func attribute[T any](attrs *commonpb.SearchAttributes, name string) (value T) {
	if p := attrs.GetIndexedFields()[name]; p != nil {
		_ = converter.GetDefaultDataConverter().FromPayload(p, &value) // another type counts as not set
	}
	return value
}
