package store

import (
	"cmp"
	"context"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

const (
	// redeliverAfter is how long a result may wait for its delivery before the
	// reclaimer makes it due at once, and the least time until it does so again.
	redeliverAfter = 10 * time.Minute
	// maxReclaim bounds a batch.
	maxReclaim = 500
	// noTask sorts before every task id.
	noTask = "00000000-0000-0000-0000-000000000000"
)

// Reclaim reconciles one batch of tasks, as activities.Reclaimer specifies. The first
// batch also prunes the records of refusals. A failure of that or of a task does not stop
// the others: the first such error is returned with the report.
func (s *Tasks) Reclaim(ctx context.Context, r activities.ReclaimRequest) (activities.ReclaimReport, error) {
	var report activities.ReclaimReport
	var failed error
	if r.After == "" {
		failed = s.db.Call(ctx, "pruning the records of refusals", s.db.q.PruneRefusals)
	}
	after, limit := cmp.Or(r.After, noTask), min(max(r.Limit, 1), maxReclaim)
	found, err := query(ctx, s.db, "listing tasks to reclaim", func(ctx context.Context) ([]sqlc.ReclaimableTasksRow, error) {
		return s.db.q.ReclaimableTasks(ctx, sqlc.ReclaimableTasksParams{After: after, MaxRows: int32(limit),
			GraceSeconds: task.StaleGrace.Seconds(), ReturnSeconds: task.ReturnTime.Seconds(), OverdueSeconds: redeliverAfter.Seconds()})
	})
	if err != nil {
		return report, err
	}
	for _, t := range found {
		d, err := s.reclaim(ctx, t.TaskID)
		if schema.KindOf(err) == schema.KindServiceUnavailable {
			return report, err
		}
		if err != nil && failed == nil {
			failed = err
		}
		if d != nil {
			report.Decisions = append(report.Decisions, *d)
		}
	}
	if len(found) == limit {
		report.Next = found[limit-1].TaskID
	}
	return report, failed
}

// reclaim decides one task under its lock. The decision is nil if the task needs
// none.
func (s *Tasks) reclaim(ctx context.Context, taskID string) (*activities.ReclaimDecision, error) {
	return write(ctx, s.db, "reclaiming task "+taskID, func(ctx context.Context, tx *tx) (*activities.ReclaimDecision, error) {
		t, err := tx.lockTask(ctx, taskID, nil)
		if err != nil {
			return nil, err
		}
		op, err := tx.GetOperation(ctx, t.OperationID)
		if err != nil && !postgres.NotFound(err) {
			return nil, err
		}
		over := err != nil || op.EndedAt != nil || op.Status == lifecycle.OperationAbandoned
		if err != nil { // the task may be a rotation's
			rotating, err := tx.RotationIsOpen(ctx, t.OperationID)
			if err != nil {
				return nil, err
			}
			over = !rotating
		}
		result, err := decideReclaim(ctx, tx, t, over)
		if err != nil || result == "" {
			return nil, err
		}
		return &activities.ReclaimDecision{TaskID: taskID, NodeID: t.NodeID, Host: t.Host, Type: t.Type, Result: result}, nil
	})
}

// decideReclaim is the reclaimer's decision table: the first matching row applies.
func decideReclaim(ctx context.Context, tx *tx, t sqlc.LockTaskRow, operationOver bool) (activities.ReclaimResult, error) {
	f := activities.Fence{NodeID: t.NodeID, OperationID: t.OperationID, Actor: systemActor, CorrelationID: t.CorrelationID}
	detail := map[string]string{"type": string(t.Type)}
	switch {
	case operationOver && !t.Status.Terminal():
		tx.note(taskEvent(f, audit.TaskFinished, t.TaskID, audit.Canceled, lifecycle.ReasonOperationOver, detail))
		tx.wakeNode(t.NodeID)
		_, err := tx.VoidTasks(ctx, t.NodeID, nil, &t.TaskID)
		return activities.ReclaimVoided, err
	case t.Stale && !t.Repeatable:
		tx.note(taskEvent(f, audit.TaskLost, t.TaskID, audit.Failed, lifecycle.ReasonTaskLost, detail))
		if err := tx.SetTaskStatus(ctx, string(task.Lost), t.TaskID); err != nil {
			return "", err
		}
		return activities.ReclaimLost, tx.enqueueResult(ctx, t.TaskID, t.OwnerWorkflowID)
	case t.Stale && t.Canceled:
		return activities.ReclaimVoided, endCanceled(ctx, tx, f, t, t.CancelReason)
	case t.Stale:
		tx.note(taskEvent(f, audit.TaskRequeued, t.TaskID, audit.Succeeded, "lease_ended", detail))
		tx.wakeNode(t.NodeID)
		return activities.ReclaimRequeued, tx.SetTaskStatus(ctx, string(task.Pending), t.TaskID)
	}
	return redeliver(ctx, tx, f, t)
}

// endCanceled ends a task that an operator canceled and delivers that to its
// activity.
func endCanceled(ctx context.Context, tx *tx, f activities.Fence, t sqlc.LockTaskRow, reason string) error {
	r := task.Result{LeaseEpoch: t.LeaseEpoch, Status: task.Canceled, Code: schema.KindTaskFailed,
		Message: "canceled: " + reason}
	if err := tx.EndTask(ctx, t.TaskID, &r, reason); err != nil {
		return err
	}
	tx.note(taskEvent(f, audit.TaskFinished, t.TaskID, audit.Canceled, reason, map[string]string{"type": string(t.Type)}))
	return tx.enqueueResult(ctx, t.TaskID, t.OwnerWorkflowID)
}

// redeliver makes an overdue result due at once.
func redeliver(ctx context.Context, tx *tx, f activities.Fence, t sqlc.LockTaskRow) (activities.ReclaimResult, error) {
	rows, err := tx.RedeliverOutbox(ctx, &t.TaskID, redeliverAfter.Seconds())
	if err != nil || rows == 0 {
		return "", err
	}
	tx.note(taskEvent(f, audit.TaskRedelivered, t.TaskID, audit.Succeeded, "not_delivered", map[string]string{"type": string(t.Type)}))
	tx.notify(channelOutbox, "")
	return activities.ReclaimRedelivered, nil
}
