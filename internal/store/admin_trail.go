package store

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
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

// ListTasks implements adminapi.Tasks.
func (s *Tasks) ListTasks(ctx context.Context, q adminapi.TaskQuery) (tasks []wire.TaskView, next []string, err error) {
	f := &filter{}
	f.id("t.node_id", q.NodeID, errNoNode)
	anyOf(f, "t.status", q.Statuses)
	anyOf(f, "t.type", q.Types)
	if q.Open {
		f.where("t.finished_at IS NULL")
	}
	if q.Orphaned {
		f.where("EXISTS (SELECT 1 FROM outbox b WHERE b.task_id = t.task_id AND b.orphaned_at IS NOT NULL)")
	}
	f.since("t.created_at", q.Since)
	f.selector(q.Selector)
	f.afterTime("t.created_at, t.task_id", "<", q.After)
	return page(ctx, s.db, listQuery{"listing tasks", "SELECT t.result - 'output' AS result, " + taskColumns + fromTasks,
		"t.created_at DESC, t.task_id DESC", q.Limit}, f,
		func(t wire.TaskView) []string { return timeKey(t.CreatedAt, t.TaskID) })
}

const selectAudit = "SELECT e.* FROM audit_events e"

// selectAuditRows reads events with the host of the node whose stream they are in.
const selectAuditRows = `SELECT e.*, coalesce((SELECT host FROM nodes WHERE node_id =
	CASE WHEN e.stream <> '` + audit.SystemStream + `' THEN e.stream::uuid END), '') AS host FROM audit_events e`

// ListAudit implements adminapi.Trail.
func (s *Admin) ListAudit(ctx context.Context, q adminapi.AuditQuery) (events []audit.Row, next []string, err error) {
	f, selects := &filter{}, selectAuditRows
	if len(q.Selector) > 0 {
		selects += " JOIN nodes n ON n.node_id::text = e.stream"
		f.selector(q.Selector)
	}
	if q.Stream != "" {
		f.where("e.stream = " + f.arg(q.Stream))
	}
	anyOf(f, "e.action", q.Actions)
	anyOf(f, "e.actor", q.Actors)
	anyOf(f, "e.result", q.Results)
	f.since("e.at", q.Since)
	f.afterEvent(q.After)
	return page(ctx, s.db, listQuery{"listing the audit trail", selects, "e.at DESC, e.stream DESC, e.seq DESC", q.Limit}, f,
		func(e audit.Row) []string { return append(timeKey(e.At, e.Stream), strconv.FormatInt(e.Seq, 10)) })
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

// AuditHead implements adminapi.Trail.
func (s *Admin) AuditHead(ctx context.Context, stream string) (audit.Head, error) {
	head, err := query(ctx, s.db, "reading the head of audit stream "+stream, func(ctx context.Context) (sqlc.AuditHeadRow, error) {
		return s.db.q.AuditHead(ctx, stream)
	})
	if err != nil && !postgres.NotFound(err) {
		return audit.Head{}, err
	}
	return audit.Head{Stream: stream, Seq: head.Seq, Hash: head.Hash}, nil
}

// AuditStreams implements adminapi.Trail.
func (s *Admin) AuditStreams(ctx context.Context, p adminapi.Page) (streams, next []string, err error) {
	streams, err = query(ctx, s.db, "listing audit streams", func(ctx context.Context) ([]string, error) {
		return s.db.q.ListAuditStreams(ctx, strings.Join(p.After, ""), int64(p.Limit+1))
	})
	if len(streams) > p.Limit {
		streams = streams[:p.Limit]
		next = streams[p.Limit-1:]
	}
	return streams, next, err
}

// Changes implements adminapi.Trail.
func (s *Admin) Changes(ctx context.Context, after adminapi.Position, limit int) ([]adminapi.Change, error) {
	type changed struct {
		wire.OperationSummary
		ChangedAt time.Time
	}
	return query(ctx, s.db, "reading changes", func(ctx context.Context) (out []adminapi.Change, err error) {
		if after.At.IsZero() {
			if after.At, err = s.db.q.TimeBefore(ctx, adminapi.ChangesOverlap.Seconds()); err != nil {
				return nil, err
			}
		}
		events, err := list[audit.Event](ctx, s.db, selectAudit+" WHERE (e.at, e.stream, e.seq) > ($1, $2, $3) ORDER BY e.at, e.stream, e.seq LIMIT $4",
			after.At, after.Stream, after.Seq, limit)
		if err != nil {
			return nil, err
		}
		for i, e := range events {
			out = append(out, adminapi.Change{Position: adminapi.Position{At: e.At.UTC(), Stream: e.Stream, Seq: e.Seq}, Audit: &events[i]})
		}
		ops, err := list[changed](ctx, s.db, "SELECT o.changed_at, "+operationColumns+fromOperations+
			" WHERE o.changed_at >= $1 AND (o.changed_at, o.operation_id::text) > ($1, $2) ORDER BY o.changed_at, o.operation_id LIMIT $3",
			after.At, after.Stream, limit)
		for i, o := range ops {
			out = append(out, adminapi.Change{Position: adminapi.Position{At: o.ChangedAt.UTC(), Stream: o.OperationID}, Operation: &ops[i].OperationSummary})
		}
		slices.SortFunc(out, func(x, y adminapi.Change) int {
			return cmp.Or(x.At.Compare(y.At), cmp.Compare(x.Stream, y.Stream), cmp.Compare(x.Seq, y.Seq))
		})
		return out[:min(len(out), limit)], err
	})
}
