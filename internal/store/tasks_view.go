package store

import (
	"context"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Task returns a task with the tail of its output and the proof of its result.
// KindNotFound if there is none.
func (s *Tasks) Task(ctx context.Context, taskID string) (wire.TaskView, error) {
	var view wire.TaskView
	err := s.db.Read(ctx, "reading task "+taskID, func(ctx context.Context) error {
		if !schema.IsID(taskID) {
			return errNoTask(taskID)
		}
		row, err := s.db.q.GetTask(ctx, taskID)
		if postgres.NotFound(err) {
			return errNoTask(taskID)
		}
		if err != nil {
			return err
		}
		view = taskView(row)
		view.ResultProof, err = s.resultProof(ctx, taskID)
		return err
	})
	return view, err
}

// resultProof returns nil if the task has no signed result.
func (s *Tasks) resultProof(ctx context.Context, taskID string) (*trust.ResultProof, error) {
	row, err := s.db.q.ResultProof(ctx, taskID)
	if postgres.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &trust.ResultProof{Serial: *row.ResultSerial, Key: row.ResultKey, Body: row.ResultBody, Signature: row.ResultSignature}, nil
}

func taskView(r sqlc.GetTaskRow) wire.TaskView {
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
