package store

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// taskColumns are the columns of a task's view. A lost task shows when it was lost,
// and a request to cancel only shows until the task ends.
const (
	taskColumns = `t.task_id, t.node_id, n.host, t.type, t.effect, t.status, t.step, t.seq, t.incarnation, t.operation_id,
	t.owner_workflow_id AS workflow_id, t.owner_run_id AS run_id, t.correlation_id, t.lease_epoch AS attempts, t.holder,
	t.lease_until, t.progress, t.paused, t.deadline, t.created_at, t.dispatched_at, coalesce(t.finished_at, t.lost_at) AS finished_at,
	CASE WHEN t.finished_at IS NULL THEN t.cancel_reason ELSE '' END AS cancel_requested`
	fromTasks = " FROM node_tasks t JOIN nodes n USING (node_id)"
)

// ListTasks implements adminapi.Views.
func (s *Admin) ListTasks(ctx context.Context, q adminapi.TaskQuery) (tasks []wire.TaskView, next []string, err error) {
	f := &filter{}
	f.id("t.node_id", q.NodeID, errNoNode)
	anyOf(f, "t.status", q.Statuses)
	anyOf(f, "t.type", q.Types)
	if q.Open {
		f.where("t.finished_at IS NULL")
	}
	f.since("t.created_at", q.Since)
	f.afterTime("t.created_at, t.task_id", "<", q.After)
	return page(ctx, s.db, listQuery{"listing tasks", "SELECT t.result, " + taskColumns + fromTasks,
		"t.created_at DESC, t.task_id DESC", q.Limit}, f,
		func(t wire.TaskView) []string { return timeKey(t.CreatedAt, t.TaskID) })
}

const selectAudit = "SELECT * FROM audit_events e"

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
	f.afterEvent(q.After)
	return page(ctx, s.db, listQuery{"listing the audit trail", selectAudit, "e.at DESC, e.stream DESC, e.seq DESC", q.Limit}, f,
		func(e audit.Event) []string { return append(timeKey(e.At, e.Stream), strconv.FormatInt(e.Seq, 10)) })
}

// afterEvent continues the audit list.
func (f *filter) afterEvent(after []string) {
	if len(after) == 0 {
		return
	}
	at, malformed := time.Parse(time.RFC3339Nano, after[0])
	seq, err := strconv.ParseInt(after[2], 10, 64)
	if malformed != nil || err != nil {
		f.err = errPageToken()
		return
	}
	f.where("(e.at, e.stream, e.seq) < (" + f.arg(at) + ", " + f.arg(after[1]) + ", " + f.arg(seq) + ")")
}

// AuditStream returns up to limit events of a stream after seq, in order.
func (s *Admin) AuditStream(ctx context.Context, stream string, after int64, limit int) ([]audit.Event, error) {
	return query(ctx, s.db, "reading audit stream "+stream, func(ctx context.Context) ([]audit.Event, error) {
		return list[audit.Event](ctx, s.db, selectAudit+" WHERE e.stream = $1 AND e.seq > $2 ORDER BY e.seq LIMIT $3",
			stream, after, min(limit, maxAuditPage))
	})
}

// AuditStreams lists the audit streams.
func (s *Admin) AuditStreams(ctx context.Context) ([]string, error) {
	return query(ctx, s.db, "listing audit streams", s.db.q.ListAuditStreams)
}

// Changes implements adminapi.Views.
func (s *Admin) Changes(ctx context.Context, since time.Time, limit int) ([]adminapi.Change, error) {
	type changed struct {
		wire.OperationSummary
		ChangedAt time.Time
	}
	var out []adminapi.Change
	err := s.db.Read(ctx, "reading changes", func(ctx context.Context) error {
		events, err := list[audit.Event](ctx, s.db, selectAudit+" WHERE e.at >= $1 ORDER BY e.at, e.stream, e.seq LIMIT $2", since, limit)
		if err != nil {
			return err
		}
		for i, e := range events {
			out = append(out, adminapi.Change{At: e.At, Audit: &events[i]})
		}
		ops, err := list[changed](ctx, s.db, "SELECT o.changed_at, "+operationColumns+fromOperations+
			" WHERE o.changed_at >= $1 ORDER BY o.changed_at LIMIT $2", since, limit)
		for i, o := range ops {
			out = append(out, adminapi.Change{At: o.ChangedAt, Operation: &ops[i].OperationSummary})
		}
		return err
	})
	slices.SortStableFunc(out, func(x, y adminapi.Change) int { return x.At.Compare(y.At) })
	return out[:min(len(out), limit)], err
}

// keyLifetime is how long an idempotency key is kept.
const keyLifetime = 24 * time.Hour

// UseKey implements adminapi.Views. It deletes the keys that expired.
func (s *Admin) UseKey(ctx context.Context, scope, key, subject string) (result string, fresh bool, err error) {
	err = s.db.Exec(ctx, "using an idempotency key", func(ctx context.Context) error {
		if err := s.db.q.ExpireRequestKeys(ctx, keyLifetime.Seconds()); err != nil {
			return err
		}
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
