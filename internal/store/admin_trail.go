package store

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const taskColumns = `t.task_id, t.node_id, n.host, t.type, t.effect, t.status, t.step, t.seq, t.incarnation, t.operation_id,
	t.owner_workflow_id, t.owner_run_id, t.correlation_id, t.lease_epoch, t.holder, t.lease_until, t.progress,
	t.paused, t.deadline, t.created_at, t.dispatched_at, t.finished_at, t.lost_at, t.cancel_reason, t.result,
	''::text AS output_tail`

// ListTasks implements adminapi.Views.
func (s *Admin) ListTasks(ctx context.Context, q adminapi.TaskQuery) (tasks []wire.TaskView, next []string, err error) {
	f := &filter{}
	if q.NodeID != "" {
		f.where("t.node_id = " + f.arg(q.NodeID) + "::uuid")
	}
	anyOf(f, "t.status", q.Statuses)
	anyOf(f, "t.type", q.Types)
	if q.Open {
		f.where("t.finished_at IS NULL")
	}
	f.since("t.created_at", q.Since)
	if err := f.afterTime("t.created_at, t.task_id", "<", q.After); err != nil {
		return nil, nil, err
	}
	err = s.db.Read(ctx, "listing tasks", func(ctx context.Context) error {
		rows, err := s.db.Pool().Query(ctx, f.sql("SELECT "+taskColumns+" FROM node_tasks t JOIN nodes n USING (node_id)",
			"t.created_at DESC, t.task_id DESC", q.Limit), f.args...)
		if err != nil {
			return err
		}
		tasks, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (wire.TaskView, error) {
			r, err := pgx.RowToStructByPos[sqlc.GetTaskRow](row)
			return taskView(r), err
		})
		tasks, next = trim(tasks, q.Limit, func(t wire.TaskView) []string { return timeKey(t.CreatedAt, t.TaskID) })
		return err
	})
	return tasks, next, err
}

const auditColumns = `e.stream, e.seq, e.at, e.actor, e.via, e.action, e.target, e.result,
	e.reason, e.correlation_id, e.operation_id, e.detail, e.prev_hash, e.hash`

func scanAudit(row pgx.CollectableRow) (audit.Event, error) {
	var e audit.Event
	err := row.Scan(&e.Stream, &e.Seq, &e.At, &e.Actor, &e.Via, &e.Action, &e.Target, &e.Result, &e.Reason,
		&e.CorrelationID, &e.OperationID, &e.Detail, &e.PrevHash, &e.Hash)
	return e, err
}

// ListAudit implements adminapi.Views.
func (s *Admin) ListAudit(ctx context.Context, q adminapi.AuditQuery) (events []audit.Event, next []string, err error) {
	f := &filter{}
	if q.Stream != "" {
		f.where("e.stream = " + f.arg(q.Stream))
	}
	anyOf(f, "e.action", q.Actions)
	anyOf(f, "e.actor", q.Actors)
	anyOf(f, "e.result", q.Results)
	f.since("e.at", q.Since)
	if err := f.afterEvent(q.After); err != nil {
		return nil, nil, err
	}
	err = s.db.Read(ctx, "listing the audit trail", func(ctx context.Context) error {
		events, err = s.auditRows(ctx, f, "e.at DESC, e.stream DESC, e.seq DESC", q.Limit)
		events, next = trim(events, q.Limit, func(e audit.Event) []string {
			return []string{e.At.UTC().Format(time.RFC3339Nano), e.Stream, strconv.FormatInt(e.Seq, 10)}
		})
		return err
	})
	return events, next, err
}

// afterEvent continues the audit list.
func (f *filter) afterEvent(after []string) error {
	if len(after) == 0 {
		return nil
	}
	at, err := time.Parse(time.RFC3339Nano, after[0])
	if err != nil {
		return errPageToken()
	}
	seq, err := strconv.ParseInt(after[2], 10, 64)
	if err != nil {
		return errPageToken()
	}
	f.where("(e.at, e.stream, e.seq) < (" + f.arg(at) + ", " + f.arg(after[1]) + ", " + f.arg(seq) + ")")
	return nil
}

func (s *Admin) auditRows(ctx context.Context, f *filter, order string, limit int) ([]audit.Event, error) {
	rows, err := s.db.Pool().Query(ctx, f.sql("SELECT "+auditColumns+" FROM audit_events e", order, limit), f.args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanAudit)
}

// Changes implements adminapi.Views.
func (s *Admin) Changes(ctx context.Context, since time.Time, limit int) ([]adminapi.Change, error) {
	var out []adminapi.Change
	err := s.db.Read(ctx, "reading changes", func(ctx context.Context) error {
		f := &filter{}
		f.where("e.at >= " + f.arg(since))
		events, err := s.auditRows(ctx, f, "e.at, e.stream, e.seq", limit)
		if err != nil {
			return err
		}
		for i, e := range events {
			out = append(out, adminapi.Change{At: e.At, Audit: &events[i]})
		}
		rows, err := s.db.Pool().Query(ctx, "SELECT o.changed_at, "+operationColumns+fromOperations+`
			WHERE o.changed_at >= $1 ORDER BY o.changed_at LIMIT $2`, since, limit)
		if err != nil {
			return err
		}
		changed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (adminapi.Change, error) {
			var c adminapi.Change
			var o wire.OperationSummary
			err := row.Scan(append([]any{&c.At}, operationDest(&o)...)...)
			o = whose(o)
			c.Operation = &o
			return c, err
		})
		out = append(out, changed...)
		return err
	})
	slices.SortStableFunc(out, func(x, y adminapi.Change) int { return x.At.Compare(y.At) })
	return out[:min(len(out), limit)], err
}

// UseKey implements adminapi.Views.
func (s *Admin) UseKey(ctx context.Context, scope, key, subject string) (result string, fresh bool, err error) {
	err = s.db.Exec(ctx, "using an idempotency key", func(ctx context.Context) error {
		rows, err := s.db.q.UseRequestKey(ctx, scope, key, subject)
		if fresh = rows == 1; fresh || err != nil {
			return err
		}
		first, err := s.db.q.RequestKey(ctx, scope, key)
		if err == nil && first.Subject != subject {
			return schema.NewError(schema.KindInvalidRequest, "the idempotency key was used by another subject").WithReason("key_in_use")
		}
		result = first.Result
		return err
	})
	return result, fresh, err
}

// KeepResult implements adminapi.Views.
func (s *Admin) KeepResult(ctx context.Context, scope, key, result string) error {
	return s.db.Exec(ctx, "keeping an idempotency key's result", func(ctx context.Context) error {
		return s.db.q.KeepRequestResult(ctx, scope, key, result)
	})
}

// DropKey implements adminapi.Views.
func (s *Admin) DropKey(ctx context.Context, scope, key string) error {
	return s.db.Exec(ctx, "dropping an idempotency key", func(ctx context.Context) error {
		return s.db.q.DropRequestKey(ctx, scope, key)
	})
}
