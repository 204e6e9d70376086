package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
)

// Prepare finds or makes the task of the spec's operation and step and sets its
// owner, as activities.Tasks says. KindFenced when the operation no longer owns
// the node or is over.
func (s *Store) Prepare(ctx context.Context, t schema.TaskSpec, o schema.TaskOwner) (schema.TaskRow, error) {
	var row schema.TaskRow
	err := s.write(ctx, "preparing task "+t.Step+" of operation "+t.OperationID,
		func(ctx context.Context, u *unit) (err error) {
			row, err = u.prepare(ctx, t, o)
			return err
		})
	return row, err
}

func (u *unit) prepare(ctx context.Context, t schema.TaskSpec, o schema.TaskOwner) (schema.TaskRow, error) {
	kind, known := t.Type.Row()
	if !known {
		return schema.TaskRow{}, schema.Errorf(schema.KindInvalidRequest, "unknown task type %q", t.Type)
	}
	f := schema.Fence{NodeID: t.NodeID, OperationID: t.OperationID, OpSeq: t.OpSeq, CorrelationID: t.CorrelationID}
	node, op, err := u.owned(ctx, f)
	if err != nil {
		return schema.TaskRow{}, err
	}
	f.Actor = op.Actor
	found, err := u.GetTaskByStep(ctx, t.OperationID, t.Step)
	switch {
	case err == nil && found.Type != t.Type:
		return schema.TaskRow{}, schema.Errorf(schema.KindInvalidRequest, "step %s is a %s task already", t.Step, found.Type)
	case err == nil:
		return taskRow(found), u.SetTaskOwner(ctx, sqlc.SetTaskOwnerParams{TaskID: found.TaskID,
			OwnerWorkflowID: o.WorkflowID, OwnerRunID: o.RunID, OwnerActivityID: o.ActivityID})
	case !notFound(err):
		return schema.TaskRow{}, err
	case op.EndedAt != nil:
		return schema.TaskRow{}, errOver(f)
	}
	row := schema.TaskRow{TaskID: schema.TaskID(t.OperationID, t.Step), NodeID: t.NodeID,
		Incarnation: node.Incarnation, Type: t.Type, Effect: kind.Effect, Params: t.Params, Status: schema.TaskPending}
	if row.Seq, err = u.NextTaskSeq(ctx, t.NodeID); err != nil {
		return row, err
	}
	row.CreatedAt, err = u.InsertTask(ctx, sqlc.InsertTaskParams{
		TaskID: row.TaskID, NodeID: t.NodeID, Incarnation: row.Incarnation, Seq: row.Seq, Type: t.Type,
		Effect: row.Effect, Params: t.Params, OperationID: t.OperationID, OpSeq: t.OpSeq, Step: t.Step,
		Deadline: optional(t.Deadline), CorrelationID: t.CorrelationID,
		OwnerWorkflowID: o.WorkflowID, OwnerRunID: o.RunID, OwnerActivityID: o.ActivityID,
	})
	u.note(taskEvent(f, schema.AuditTaskCreated, row.TaskID, schema.AuditSucceeded, "",
		map[string]string{"type": string(t.Type), "step": t.Step}))
	return row, err
}

// Attach stores the signed envelope and wakes the node's poll. Twice is once:
// the first envelope stays. KindFenced when the task was voided meanwhile.
func (s *Store) Attach(ctx context.Context, taskID string, envelope []byte, expiresAt time.Time) error {
	return s.write(ctx, "attaching the envelope of task "+taskID, func(ctx context.Context, u *unit) error {
		nodeID, err := u.AttachEnvelope(ctx, taskID, envelope, &expiresAt)
		if err == nil {
			return u.later.Notify(ctx, channelNode, nodeID)
		}
		if !notFound(err) {
			return err
		}
		signed, err := u.TaskSigned(ctx, taskID)
		switch {
		case notFound(err):
			return schema.Errorf(schema.KindNotFound, "no task %q", taskID)
		case err == nil && !signed:
			return schema.NewError(schema.KindFenced, "task %s was voided before it was signed", taskID).
				WithReason("task_voided")
		}
		return err
	})
}

// Void ends the operation's unfinished tasks as cancelled and wakes the node.
func (s *Store) Void(ctx context.Context, f schema.Fence) error {
	return s.write(ctx, "voiding the tasks of operation "+f.OperationID, func(ctx context.Context, u *unit) error {
		if _, _, err := u.owned(ctx, f); err != nil {
			return err
		}
		if err := u.voidTasks(ctx, f.NodeID, &f.OperationID, f.Actor); err != nil {
			return err
		}
		return u.later.Notify(ctx, channelNode, f.NodeID)
	})
}

// voidTasks cancels the node's unfinished tasks, of one operation or of all,
// with an audit row each.
func (u *unit) voidTasks(ctx context.Context, nodeID string, operationID *string, actor string) error {
	tasks, err := u.VoidTasks(ctx, nodeID, operationID)
	for _, t := range tasks {
		f := schema.Fence{NodeID: nodeID, OperationID: t.OperationID, Actor: actor, CorrelationID: t.CorrelationID}
		u.note(taskEvent(f, schema.AuditTaskFinished, t.TaskID, schema.AuditCancelled, "voided",
			map[string]string{"type": string(t.Type)}))
	}
	return err
}

// taskRow is a stored task as activities see it. A task that ended without a
// report has a result all the same, so that nobody waits for one.
func taskRow(t sqlc.GetTaskByStepRow) schema.TaskRow {
	row := schema.TaskRow{
		TaskID: t.TaskID, NodeID: t.NodeID, Incarnation: t.Incarnation, Type: t.Type, Effect: t.Effect,
		Params: t.Params, Seq: t.Seq, Status: t.Status, Signed: t.Signed, CreatedAt: t.CreatedAt, Result: t.Result,
	}
	if t.Status.Terminal() && t.Result == nil {
		row.Result = &schema.TaskResult{LeaseEpoch: t.LeaseEpoch, Status: t.Status,
			Code: schema.KindFenced, Message: "the task was voided"}
	}
	return row
}

func taskEvent(f schema.Fence, action, taskID, result, reason string, detail map[string]string) schema.AuditEvent {
	e := event(f, action, result, reason, detail)
	e.Target = taskID
	return e
}

// optional is the time as a nullable column takes it.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
