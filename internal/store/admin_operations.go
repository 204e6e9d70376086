package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
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
	o.correlation_id, o.workflow_id, coalesce(o.latest_run_id, o.run_id), o.outcome, o.started_at, o.ended_at,
	(o.document #>> '{operation,deadline_at}')::timestamptz`

func operationDest(o *wire.OperationSummary) []any {
	return []any{&o.OperationID, &o.NodeID, &o.Host, &o.OpSeq, &o.Action, &o.Status, &o.Phase, &o.Stuck, &o.Actor, &o.Reason,
		&o.CorrelationID, &o.WorkflowID, &o.RunID, &o.Outcome, &o.StartedAt, &o.EndedAt, &o.DeadlineAt}
}

// whose sets who must act, which the row holds only in its stuck object.
func whose(o wire.OperationSummary) wire.OperationSummary {
	o.WaitingOn = lifecycle.AttentionNone
	if o.Stuck != nil {
		o.WaitingOn = o.Stuck.WaitingOn
	}
	return o
}

func (s *Admin) operations(ctx context.Context, f *filter, order string, limit int) ([]wire.OperationSummary, error) {
	rows, err := s.db.Pool().Query(ctx, f.sql("SELECT "+operationColumns+fromOperations, order, limit), f.args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (wire.OperationSummary, error) {
		var o wire.OperationSummary
		err := row.Scan(operationDest(&o)...)
		return whose(o), err
	})
}

// openFilter selects the open operations of nodes.
func openFilter(nodeIDs []string) *filter {
	f := &filter{}
	f.where("o.ended_at IS NULL AND o.node_id = ANY (" + f.arg(nodeIDs) + "::uuid[])")
	return f
}

// ListOperations implements adminapi.Views.
func (s *Admin) ListOperations(ctx context.Context, q adminapi.OperationQuery) (ops []wire.OperationSummary, next []string, err error) {
	f, err := operationFilter(q)
	if err == nil {
		err = f.afterTime("o.started_at, o.operation_id", "<", q.After)
	}
	if err != nil {
		return nil, nil, err
	}
	err = s.db.Read(ctx, "listing operations", func(ctx context.Context) (err error) {
		ops, err = s.operations(ctx, f, "o.started_at DESC, o.operation_id DESC", q.Limit)
		ops, next = trim(ops, q.Limit, func(o wire.OperationSummary) []string { return timeKey(o.StartedAt, o.OperationID) })
		return err
	})
	return ops, next, err
}

// The conditions of an operation that needs attention. One that no worker moves
// is overdue: its phase's deadline passed and it has not parked.
const (
	isOverdue = `o.ended_at IS NULL AND o.status <> 'parked' AND
		coalesce((o.document #>> '{operation,deadline_at}')::timestamptz, o.started_at + interval '10 minutes') < now() - interval '1 minute'`
	isStuck = `o.status = 'parked' OR ` + isOverdue + ` OR o.status = 'abandoned' AND NOT EXISTS (
		SELECT 1 FROM operations later WHERE later.node_id = o.node_id AND later.started_at > o.started_at AND later.op_seq > 0)`
	stuckSince = `coalesce((o.stuck ->> 'since')::timestamptz, (o.document #>> '{operation,deadline_at}')::timestamptz, o.started_at)`
)

func operationFilter(q adminapi.OperationQuery) (*filter, error) {
	f := &filter{}
	if q.NodeID != "" {
		if !schema.IsID(q.NodeID) {
			return nil, errNoNode(q.NodeID)
		}
		f.where("o.node_id = " + f.arg(q.NodeID) + "::uuid")
	}
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
		f.where(isStuck)
	}
	f.since("o.started_at", q.Since)
	f.selector(q.Selector)
	return f, nil
}

// ListStuck implements adminapi.Views.
func (s *Admin) ListStuck(ctx context.Context, q adminapi.OperationQuery) (ops []wire.StuckOperation, next []string, err error) {
	q.Stuck = true
	f, err := operationFilter(q)
	if err == nil {
		err = f.afterTime(stuckSince+", o.operation_id", ">", q.After)
	}
	if err != nil {
		return nil, nil, err
	}
	err = s.db.Read(ctx, "listing stuck operations", func(ctx context.Context) error {
		sql := f.sql("SELECT n.state, "+stuckSince+", "+operationColumns+fromOperations,
			stuckSince+", o.operation_id", q.Limit)
		rows, err := s.db.Pool().Query(ctx, sql, f.args...)
		if err != nil {
			return err
		}
		ops, err = pgx.CollectRows(rows, scanStuck)
		ops, next = trim(ops, q.Limit, func(o wire.StuckOperation) []string { return timeKey(o.Stuck.Since, o.OperationID) })
		return err
	})
	return ops, next, err
}

func scanStuck(row pgx.CollectableRow) (wire.StuckOperation, error) {
	var o wire.StuckOperation
	var since time.Time
	err := row.Scan(append([]any{&o.State, &since}, operationDest(&o.OperationSummary)...)...)
	if o.Stuck == nil {
		o.Stuck = stuckOf(o.OperationSummary, since)
	}
	o.Stuck.Since = since
	o.OperationSummary = whose(o.OperationSummary)
	return o, err
}

// stuckOf says why an operation that did not park needs attention.
func stuckOf(o wire.OperationSummary, since time.Time) *lifecycle.Stuck {
	s := &lifecycle.Stuck{Phase: o.Phase, WaitingOn: lifecycle.AttentionOperator, Since: since}
	if o.Status == operationAbandoned {
		s.Reason, s.Message = "abandoned", "its workflow ended without recording an outcome"
		s.Cause, s.Next = "the run was terminated, or Temporal lost it", "gpuaas node rehydrate "+o.Host
		return s
	}
	s.Reason, s.Message = "overdue", "it runs longer than its phase may and has not parked"
	s.Cause, s.Next = "no worker is running", lifecycle.OpCommand("show", o.Action, o.Host)
	return s
}

// operationAbandoned is the status of an operation whose run is gone.
const operationAbandoned lifecycle.OperationState = "abandoned"

// Operation implements adminapi.Views. The row is written in every change of an
// operation and the document in most, so the row wins where both say something.
func (s *Admin) Operation(ctx context.Context, operationID string) (lifecycle.OperationStatus, error) {
	var st lifecycle.OperationStatus
	err := s.db.Read(ctx, "reading operation "+operationID, func(ctx context.Context) error {
		if !schema.IsID(operationID) {
			return errNoOperation(operationID)
		}
		var o wire.OperationSummary
		var state lifecycle.NodeState
		var document *lifecycle.OperationStatus
		row := s.db.Pool().QueryRow(ctx, "SELECT o.document, n.state, "+operationColumns+
			fromOperations+" WHERE o.operation_id = $1", operationID)
		err := row.Scan(append([]any{&document, &state}, operationDest(&o)...)...)
		if postgres.NotFound(err) {
			return errNoOperation(operationID)
		}
		st = operationStatus(document, o, state)
		return err
	})
	return st, err
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
