package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
)

const (
	// nudgeAfter is how long a result may wait for its delivery before the
	// reclaimer makes it due at once, and how long until it does so again.
	nudgeAfter = 10 * time.Minute
	// maxReclaim bounds a batch.
	maxReclaim = 500
	// noTask is below every task id.
	noTask = "00000000-0000-0000-0000-000000000000"
)

// Reclaim looks at one batch of tasks and decides each, as
// activities.Reclaimer says. A task that cannot be decided keeps none of the
// others from it: the first such failure is returned with the whole report.
func (s *Store) Reclaim(ctx context.Context, r activities.ReclaimRequest) (activities.ReclaimReport, error) {
	var report activities.ReclaimReport
	found, limit, err := s.reclaimable(ctx, r)
	if err != nil {
		return report, err
	}
	var failed error
	for _, t := range found {
		d, err := s.reclaim(ctx, t.NodeID, t.TaskID)
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

func (s *Store) reclaimable(ctx context.Context, r activities.ReclaimRequest) (rows []sqlc.ReclaimableTasksRow, limit int, err error) {
	after := r.After
	if after == "" {
		after = noTask
	}
	if !schema.IsID(after) && after != noTask {
		return nil, 0, errNoTask(after)
	}
	limit = min(max(r.Limit, 1), maxReclaim)
	err = s.read(ctx, "looking for tasks that nobody holds", func(ctx context.Context) (err error) {
		rows, err = s.q.ReclaimableTasks(ctx, sqlc.ReclaimableTasksParams{After: after, MaxRows: int32(limit),
			GraceSeconds: task.StaleGrace.Seconds(), NudgeSeconds: nudgeAfter.Seconds()})
		return err
	})
	return rows, limit, err
}

// reclaim decides one task by what its row says under its lock; nil when there
// is nothing to decide any more.
func (s *Store) reclaim(ctx context.Context, nodeID, taskID string) (*activities.ReclaimDecision, error) {
	var decided *activities.ReclaimDecision
	err := s.write(ctx, "reclaiming task "+taskID, func(ctx context.Context, u *unit) error {
		decided = nil
		node, err := u.lockNode(ctx, nodeID)
		if err != nil {
			return err
		}
		t, err := u.LockTask(ctx, task.StaleGrace.Seconds(), taskID)
		if err != nil {
			return err
		}
		op, err := u.GetOperation(ctx, t.OperationID)
		if err != nil {
			return err
		}
		result, err := u.decideReclaim(ctx, t, op.EndedAt != nil)
		if err == nil && result != "" {
			decided = &activities.ReclaimDecision{TaskID: taskID, NodeID: nodeID, Host: node.Host, Type: t.Type, Result: result}
		}
		return err
	})
	return decided, err
}

// decideReclaim is the reclaimer's table: the first row that fits.
func (u *unit) decideReclaim(ctx context.Context, t sqlc.LockTaskRow, over bool) (activities.ReclaimResult, error) {
	f := activities.Fence{NodeID: t.NodeID, OperationID: t.OperationID, Actor: systemActor, CorrelationID: t.CorrelationID}
	detail := map[string]string{"type": string(t.Type)}
	switch {
	case over && !t.Status.Terminal():
		if _, err := u.VoidTasks(ctx, t.NodeID, nil, &t.TaskID); err != nil {
			return "", err
		}
		u.note(taskEvent(f, audit.TaskFinished, t.TaskID, audit.Canceled, "operation_over", detail))
		return activities.ReclaimVoided, u.later.Notify(ctx, channelNode, t.NodeID)
	case t.Stale && t.Effect == task.EffectDestructive:
		u.note(taskEvent(f, audit.TaskLost, t.TaskID, audit.Failed, task.ReasonLost, detail))
		return activities.ReclaimLost, u.lose(ctx, t)
	case t.Stale && t.Cancelled:
		return activities.ReclaimVoided, u.endCancelled(ctx, f, t, t.CancelReason)
	case t.Stale:
		u.note(taskEvent(f, audit.TaskRequeued, t.TaskID, audit.Succeeded, "lease_ended", detail))
		if err := u.SetTaskStatus(ctx, task.Pending, t.TaskID); err != nil {
			return "", err
		}
		return activities.ReclaimRequeued, u.later.Notify(ctx, channelNode, t.NodeID)
	}
	return u.nudge(ctx, f, t)
}

// lose gives a task up and tells its activity.
func (u *unit) lose(ctx context.Context, t sqlc.LockTaskRow) error {
	if err := u.SetTaskStatus(ctx, task.Lost, t.TaskID); err != nil {
		return err
	}
	if err := u.InsertResultMessage(ctx, &t.TaskID, t.OwnerWorkflowID); err != nil {
		return err
	}
	return u.later.Notify(ctx, channelOutbox, "")
}

// endCancelled ends a task that an operator cancelled and tells its activity.
func (u *unit) endCancelled(ctx context.Context, f activities.Fence, t sqlc.LockTaskRow, reason string) error {
	r := task.Result{LeaseEpoch: t.LeaseEpoch, Status: task.Canceled, Code: schema.KindTaskFailed,
		Message: "cancelled: " + reason}
	if err := u.EndTask(ctx, t.TaskID, &r, reason); err != nil {
		return err
	}
	if err := u.InsertResultMessage(ctx, &t.TaskID, t.OwnerWorkflowID); err != nil {
		return err
	}
	u.note(taskEvent(f, audit.TaskFinished, t.TaskID, audit.Canceled, reason,
		map[string]string{"type": string(t.Type)}))
	return u.later.Notify(ctx, channelOutbox, "")
}

// nudge makes an undelivered result due at once.
func (u *unit) nudge(ctx context.Context, f activities.Fence, t sqlc.LockTaskRow) (activities.ReclaimResult, error) {
	rows, err := u.NudgeOutbox(ctx, &t.TaskID, nudgeAfter.Seconds())
	if err != nil || rows == 0 {
		return "", err
	}
	u.note(taskEvent(f, audit.TaskRedelivered, t.TaskID, audit.Succeeded, "not_delivered",
		map[string]string{"type": string(t.Type)}))
	return activities.ReclaimRedelivered, u.later.Notify(ctx, channelOutbox, "")
}
