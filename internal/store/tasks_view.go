package store

import (
	"context"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const selectTask = "SELECT t.result || jsonb_build_object('output_tail', t.output_tail) AS result, " +
	taskColumns + fromTasks + " WHERE t.task_id = $1"

// Task returns a task with the tail of its output and the proof of its result.
// KindNotFound if there is none.
func (s *Tasks) Task(ctx context.Context, taskID string) (wire.TaskView, error) {
	return query(ctx, s.db, "reading task "+taskID, func(ctx context.Context) (wire.TaskView, error) {
		if !schema.IsID(taskID) {
			return wire.TaskView{}, errNoTask(taskID)
		}
		found, err := list[wire.TaskView](ctx, s.db, selectTask, taskID)
		if err != nil {
			return wire.TaskView{}, err
		}
		if len(found) == 0 {
			return wire.TaskView{}, errNoTask(taskID)
		}
		found[0].ResultProof, err = s.resultProof(ctx, taskID)
		return found[0], err
	})
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
