package store

import (
	"context"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxTasks bounds what TaskList lists.
const maxTasks = 1000

// TaskList lists tasks, newest first and at most 1000, without what they
// printed: of one node when nodeID is not empty, only those that are not over
// when open. A lost one is not over.
func (s *Store) TaskList(ctx context.Context, nodeID string, open bool) ([]wire.TaskView, error) {
	var filter *string
	if nodeID != "" {
		if !schema.IsID(nodeID) {
			return nil, errNoNode(nodeID)
		}
		filter = &nodeID
	}
	var views []wire.TaskView
	err := s.read(ctx, "listing tasks", func(ctx context.Context) error {
		rows, err := s.q.ListTasks(ctx, filter, open, maxTasks)
		views = make([]wire.TaskView, len(rows))
		for i, r := range rows {
			views[i] = taskView(r)
		}
		return err
	})
	return views, err
}

// Task returns a task with the end of what it printed and the proof of its
// result. KindNotFound otherwise.
func (s *Store) Task(ctx context.Context, taskID string) (wire.TaskView, error) {
	var view wire.TaskView
	err := s.read(ctx, "reading task "+taskID, func(ctx context.Context) error {
		if !schema.IsID(taskID) {
			return errNoTask(taskID)
		}
		row, err := s.q.GetTask(ctx, taskID)
		if notFound(err) {
			return errNoTask(taskID)
		}
		if err != nil {
			return err
		}
		view = taskView(sqlc.ListTasksRow(row))
		view.ResultProof, err = s.resultProof(ctx, taskID)
		return err
	})
	return view, err
}

// resultProof is nil where there is none.
func (s *Store) resultProof(ctx context.Context, taskID string) (*trust.ResultProof, error) {
	row, err := s.q.ResultProof(ctx, taskID)
	if notFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &trust.ResultProof{Serial: *row.ResultSerial, Key: row.ResultKey, Body: row.ResultBody, Signature: row.ResultSignature}, nil
}

func taskView(r sqlc.ListTasksRow) wire.TaskView {
	v := wire.TaskView{
		TaskID: r.TaskID, NodeID: r.NodeID, Host: r.Host, Type: r.Type, Effect: r.Effect, Status: r.Status, Step: r.Step,
		Seq: r.Seq, Incarnation: r.Incarnation, OperationID: r.OperationID, WorkflowID: r.OwnerWorkflowID,
		RunID: r.OwnerRunID, CorrelationID: r.CorrelationID, Attempts: r.LeaseEpoch, Holder: r.Holder,
		LeaseUntil: r.LeaseUntil, Progress: r.Progress, Paused: r.Paused, Deadline: r.Deadline, CreatedAt: r.CreatedAt,
		DispatchedAt: r.DispatchedAt, FinishedAt: r.FinishedAt, Result: r.Result,
	}
	if r.Status == task.Lost {
		v.FinishedAt = r.LostAt
	}
	if !r.Status.Terminal() {
		v.CancelRequested = r.CancelReason
	}
	if v.Result != nil {
		v.Result.OutputTail = r.OutputTail
	}
	return v
}

// LostTasks counts the tasks that are given up and wait for an operator.
func (s *Store) LostTasks(ctx context.Context) (n int64, err error) {
	err = s.read(ctx, "counting lost tasks", func(ctx context.Context) (err error) {
		n, err = s.q.LostTasks(ctx)
		return err
	})
	return n, err
}

// ResumeTask offers a lost task again, under the envelope it has, and tells its
// operation. KindTaskStatus with reason task_not_lost for any other task,
// cancel_requested for one whose cancel was asked for before it was lost and
// envelope_expired when the node would refuse it by now; KindInvalidRequest,
// reason reason_missing, without a reason; KindNotFound.
func (s *Store) ResumeTask(ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error) {
	return s.decideTask(ctx, taskID, reason, by, func(ctx context.Context, u *unit, f activities.Fence, t sqlc.LockTaskRow) error {
		switch {
		case t.Status != task.Lost:
			return schema.NewError(schema.KindTaskStatus, "task %s is %s: only a lost one can be resumed", t.TaskID, t.Status).
				WithReason("task_not_lost")
		case t.Cancelled: // it would be handed to nobody
			return schema.NewError(schema.KindTaskStatus, "task %s is to be cancelled: %s", t.TaskID, t.CancelReason).
				WithReason("cancel_requested").WithNext("gpuaas task cancel " + t.TaskID + " --reason TEXT")
		case t.Expired:
			return schema.NewError(schema.KindTaskStatus, "task %s is past its deadline: the node would refuse it", t.TaskID).
				WithReason("envelope_expired").WithNext("gpuaas op retry " + t.NodeID + " --reason TEXT")
		}
		if err := u.SetTaskStatus(ctx, task.Pending, t.TaskID); err != nil {
			return err
		}
		u.note(taskEvent(f, audit.TaskResume, t.TaskID, audit.Accepted, reason,
			map[string]string{"type": string(t.Type)}))
		if err := u.back(ctx, t); err != nil {
			return err
		}
		return u.later.Notify(ctx, channelNode, t.NodeID)
	})
}

// CancelTask ends a task that no node works on, and asks the node that works on
// it to stop. KindTaskStatus with reason task_over for one that is over;
// KindInvalidRequest, reason reason_missing, without a reason; KindNotFound. Twice is
// once; one that was lost before the node heard of it is ended by the second.
func (s *Store) CancelTask(ctx context.Context, taskID, reason string, by audit.Subject) (wire.TaskView, error) {
	return s.decideTask(ctx, taskID, reason, by, func(ctx context.Context, u *unit, f activities.Fence, t sqlc.LockTaskRow) error {
		if t.Status.Terminal() {
			return schema.NewError(schema.KindTaskStatus, "task %s is %s already", t.TaskID, t.Status).WithReason("task_over")
		}
		worked := slices.Contains([]task.Status{task.Dispatched, task.Running}, t.Status)
		if t.Cancelled && worked {
			return nil
		}
		u.note(taskEvent(f, audit.TaskCancel, t.TaskID, audit.Accepted, reason,
			map[string]string{"type": string(t.Type), "was": string(t.Status)}))
		if worked {
			if err := u.RequestTaskCancel(ctx, t.TaskID, reason); err != nil {
				return err
			}
			return u.later.Notify(ctx, channelNode, t.NodeID)
		}
		if err := u.endCancelled(ctx, f, t, reason); err != nil || t.Status != task.Lost {
			return err
		}
		// Its operation is parked: it hears of the end by trying the step again.
		return u.tellBack(ctx, t)
	})
}

// decideTask carries out an operator's decision about a task, under the locks of
// its node and its row.
func (s *Store) decideTask(ctx context.Context, taskID, reason string, by audit.Subject,
	decide func(context.Context, *unit, activities.Fence, sqlc.LockTaskRow) error,
) (wire.TaskView, error) {
	if strings.TrimSpace(reason) == "" {
		return wire.TaskView{}, schema.NewError(schema.KindInvalidRequest, "a decision needs a reason").WithReason("reason_missing")
	}
	err := s.write(ctx, "deciding about task "+taskID, func(ctx context.Context, u *unit) error {
		if !schema.IsID(taskID) {
			return errNoTask(taskID)
		}
		nodeID, err := u.NodeOfTask(ctx, taskID)
		if notFound(err) {
			return errNoTask(taskID)
		}
		if err != nil {
			return err
		}
		t, err := u.lockTask(ctx, nodeID, taskID)
		if err != nil {
			return err
		}
		f := activities.Fence{NodeID: nodeID, OperationID: t.OperationID, Actor: by.Actor, CorrelationID: by.CorrelationID}
		return decide(ctx, u, f, t)
	})
	if err != nil {
		return wire.TaskView{}, err
	}
	return s.Task(ctx, taskID)
}
