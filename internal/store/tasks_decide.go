package store

import (
	"context"
	"strings"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// ResumeTask queues a lost task again under its envelope and signals its
// operation. KindTaskStatus, reason task_not_lost, if the task is not lost,
// cancel_requested if its cancel was requested before it was lost, and
// envelope_expired if the node would reject it; KindInvalidRequest, reason
// reason_missing, without a reason; KindNotFound.
func (s *Tasks) ResumeTask(ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error) {
	return s.decide(ctx, taskID, reason, by, func(ctx context.Context, tx *tx, f activities.Fence, t sqlc.LockTaskRow) error {
		switch {
		case t.Status != task.Lost:
			return schema.NewError(schema.KindTaskStatus, "task %s is %s: only a lost task can be resumed", t.TaskID, t.Status).
				WithReason("task_not_lost")
		case t.Canceled: // no poll would get it
			return schema.NewError(schema.KindTaskStatus, "the cancel of task %s was requested: %s", t.TaskID, t.CancelReason).
				WithReason("cancel_requested").WithNext("gpuaas task cancel " + t.TaskID + " --reason TEXT")
		case t.Expired:
			return schema.NewError(schema.KindTaskStatus, "task %s is past its deadline: the node would reject it", t.TaskID).
				WithReason("envelope_expired").WithNext("gpuaas op retry " + t.NodeID + " --operation " + t.OperationID + " --reason TEXT")
		}
		if err := tx.SetTaskStatus(ctx, string(task.Pending), t.TaskID); err != nil {
			return err
		}
		if err := tx.DropResultMessage(ctx, &t.TaskID); err != nil {
			return err
		}
		tx.note(taskEvent(f, audit.TaskResume, t.TaskID, audit.Accepted, reason, map[string]string{"type": string(t.Type)}))
		tx.wakeNode(t.NodeID)
		return tx.enqueueSignal(ctx, t.OwnerWorkflowID, returnedEvent(t.NodeID, t.Incarnation, t.Step, t.OperationID))
	})
}

// CancelTask ends a task that has no lease, or asks the lease's holder to stop.
// KindTaskStatus, reason task_over, if the task ended; KindInvalidRequest, reason
// reason_missing, without a reason; KindNotFound. A second call while the holder
// works is a no-op; once the task is lost it ends the task.
func (s *Tasks) CancelTask(ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error) {
	return s.decide(ctx, taskID, reason, by, func(ctx context.Context, tx *tx, f activities.Fence, t sqlc.LockTaskRow) error {
		if t.Status.Terminal() {
			return schema.NewError(schema.KindTaskStatus, "task %s is already %s", t.TaskID, t.Status).WithReason("task_over")
		}
		return cancelTask(ctx, tx, f, t, audit.Accepted, reason)
	})
}

// cancelTask ends an open task that has no lease, or asks the lease's holder to stop.
func cancelTask(ctx context.Context, tx *tx, f activities.Fence, t sqlc.LockTaskRow, result, reason string) error {
	leased := t.Status == task.Dispatched || t.Status == task.Running
	if t.Canceled && leased {
		return nil
	}
	tx.note(taskEvent(f, audit.TaskCancel, t.TaskID, result, reason, map[string]string{"type": string(t.Type), "was": string(t.Status)}))
	if leased {
		tx.wakeNode(t.NodeID)
		return tx.RequestTaskCancel(ctx, t.TaskID, reason)
	}
	if err := endCanceled(ctx, tx, f, t, reason); err != nil || t.Status != task.Lost {
		return err
	}
	// The operation is parked and learns of the end when it retries the step.
	return tx.enqueueSignal(ctx, t.OwnerWorkflowID, returnedEvent(t.NodeID, t.Incarnation, t.Step, t.OperationID))
}

// decide applies an operator's decision to a task under its lock.
func (s *Tasks) decide(ctx context.Context, taskID, reason string, by audit.Subject,
	apply func(context.Context, *tx, activities.Fence, sqlc.LockTaskRow) error,
) (wire.TaskView, error) {
	if strings.TrimSpace(reason) == "" {
		return wire.TaskView{}, schema.NewError(schema.KindInvalidRequest, "a decision needs a reason").WithReason("reason_missing")
	}
	err := s.db.write(ctx, "deciding task "+taskID, func(ctx context.Context, tx *tx) error {
		t, err := tx.lockTask(ctx, taskID, nil)
		if err != nil {
			return err
		}
		f := activities.Fence{NodeID: t.NodeID, OperationID: t.OperationID, Actor: by.Actor, Via: by.Via, CorrelationID: by.CorrelationID}
		return apply(ctx, tx, f, t)
	})
	if err != nil {
		return wire.TaskView{}, err
	}
	return s.Task(ctx, taskID)
}
