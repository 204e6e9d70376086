package store

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// openOrder puts the operation that holds the node before its reissue.
const (
	fromOperations = " FROM operations o JOIN nodes n USING (node_id)"
	openOrder      = "o.op_seq DESC, o.started_at DESC"
)

const operationColumns = `o.operation_id, o.node_id, n.host, o.op_seq, o.action, o.status, o.phase, o.stuck, o.actor, o.reason,
	o.correlation_id, o.workflow_id, coalesce(o.latest_run_id, o.run_id) AS run_id, o.outcome, o.started_at, o.ended_at,
	o.deadline_at, coalesce(o.claim ->> 'prior', '') AS prior_state, coalesce(o.stuck ->> 'waiting_on', '` + string(lifecycle.AttentionNone) + `') AS waiting_on`

// openOperations reads the open operations of nodes.
const openOperations = "SELECT " + operationColumns + fromOperations +
	" WHERE o.ended_at IS NULL AND o.node_id = ANY ($1::uuid[]) ORDER BY " + openOrder

// ListOperations implements adminapi.Operations.
func (s *Admin) ListOperations(ctx context.Context, q adminapi.OperationQuery) (ops []wire.OperationSummary, next []string, err error) {
	f := operationFilter(q)
	f.afterTime("o.started_at, o.operation_id", "<", q.After)
	return page(ctx, s.db, listQuery{"listing operations", "SELECT " + operationColumns + fromOperations,
		"o.started_at DESC, o.operation_id DESC", q.Limit}, f,
		func(o wire.OperationSummary) []string { return timeKey(o.StartedAt, o.OperationID) })
}

const stuckSince = `coalesce((o.stuck ->> 'since')::timestamptz, o.deadline_at, o.started_at)`

// topCause is the first candidate of the stored cause of an operation's park.
const topCause = `(SELECT c.report #> '{candidates,0}' FROM operation_causes c WHERE c.operation_id = o.operation_id AND c.stuck_since = (o.stuck ->> 'since')::timestamptz)
	AS probable_cause, `

// isStuck is the condition of an operation that needs attention: it is parked, abandoned
// or overdue.
func isStuck() string {
	return fmt.Sprintf(`o.ended_at IS NULL AND (o.status IN ('parked', 'abandoned') OR
		coalesce(o.deadline_at, o.started_at + interval '10 minutes') < now() - interval '%.0f seconds')`, lifecycle.OverdueAfter.Seconds())
}

func operationFilter(q adminapi.OperationQuery) *filter {
	f := &filter{}
	f.id("o.node_id", q.NodeID, errNoNode)
	anyOf(f, "o.action", q.Actions)
	anyOf(f, "o.status", q.Statuses)
	anyOf(f, "o.stuck ->> 'waiting_on'", q.WaitingOn)
	anyOf(f, "o.stuck ->> 'reason'", q.Reasons)
	if q.Open {
		f.where("o.ended_at IS NULL")
	}
	if q.Holds != nil {
		f.where("(o.op_seq > 0) = " + f.arg(*q.Holds))
	}
	if q.Stuck {
		f.where(isStuck())
	}
	f.since("o.started_at", q.Since)
	f.selector(q.Selector)
	return f
}

// ListStuck implements adminapi.Operations.
func (s *Admin) ListStuck(ctx context.Context, q adminapi.OperationQuery) (ops []wire.StuckOperation, next []string, err error) {
	f := stuckFilter(q)
	type row struct {
		wire.StuckOperation
		Since time.Time
	}
	rows, next, err := page(ctx, s.db, listQuery{"listing stuck operations", "SELECT n.state, " + stuckSince + " AS since, " + topCause +
		operationColumns + fromOperations, stuckSince + ", o.operation_id", q.Limit}, f,
		func(r row) []string { return timeKey(r.Since, r.OperationID) })
	for _, r := range rows {
		if r.Stuck == nil {
			overdue := lifecycle.Overdue(r.Phase, r.Since)
			overdue.Next = lifecycle.OpCommand("show", r.Action, r.Host)
			r.Stuck = &overdue
		}
		r.Stuck.Since, r.WaitingOn = r.Since, r.Stuck.WaitingOn
		ops = append(ops, r.StuckOperation)
	}
	return ops, next, err
}

// CountStuck implements adminapi.Operations.
func (s *Admin) CountStuck(ctx context.Context, q adminapi.OperationQuery) (int, error) {
	f := stuckFilter(q)
	if f.err != nil {
		return 0, f.err
	}
	type row struct{ Operations int }
	sql := f.sql("SELECT count(*) AS operations"+fromOperations, "1", 0)
	rows, err := query(ctx, s.db, "counting stuck operations", func(ctx context.Context) ([]row, error) {
		return list[row](ctx, s.db, sql, f.args...)
	})
	if err != nil {
		return 0, err
	}
	return rows[0].Operations, nil
}

// stuckFilter selects the operations that need attention after the query's position.
func stuckFilter(q adminapi.OperationQuery) *filter {
	q.Stuck = true
	f := operationFilter(q)
	f.afterTime(stuckSince+", o.operation_id", ">", q.After)
	return f
}

// Operation implements adminapi.Operations. The row is written in every change of an
// operation and the document in most, so the row wins where both say something.
func (s *Admin) Operation(ctx context.Context, operationID string) (lifecycle.OperationStatus, error) {
	type row struct {
		wire.OperationSummary
		State    lifecycle.NodeState
		Document *lifecycle.OperationStatus
	}
	if !schema.IsID(operationID) {
		return lifecycle.OperationStatus{}, errNoOperation(operationID)
	}
	found, err := query(ctx, s.db, "reading operation "+operationID, func(ctx context.Context) ([]row, error) {
		return list[row](ctx, s.db, "SELECT o.document, n.state, "+operationColumns+fromOperations+" WHERE o.operation_id = $1", operationID)
	})
	switch {
	case err != nil:
		return lifecycle.OperationStatus{}, err
	case len(found) == 0:
		return lifecycle.OperationStatus{}, errNoOperation(operationID)
	}
	return operationStatus(found[0].Document, found[0].OperationSummary, found[0].State), nil
}

func operationStatus(document *lifecycle.OperationStatus, o wire.OperationSummary, state lifecycle.NodeState) lifecycle.OperationStatus {
	st := lifecycle.OperationStatus{Operation: lifecycle.Operation{Phases: []lifecycle.Phase{}}}
	if document != nil {
		st = *document
	}
	st.Node = lifecycle.NodeRef{NodeID: o.NodeID, Host: o.Host, State: state}
	op := &st.Operation
	started := o.StartedAt
	op.OperationID, op.WorkflowID, op.RunID, op.Action, op.Status = o.OperationID, o.WorkflowID, o.RunID, o.Action, o.Status
	op.Stuck, op.Actor, op.Reason, op.CorrelationID, op.OpSeq = o.Stuck, o.Actor, o.Reason, o.CorrelationID, o.OpSeq
	op.StartedAt, op.EndedAt, op.Outcome = &started, o.EndedAt, o.Outcome
	if o.EndedAt != nil {
		op.DeadlineAt = nil
	}
	return st
}

func errNoOperation(id string) error {
	return schema.NewError(schema.KindNotFound, "no operation %q", id).WithNext("gpuaas op list")
}
