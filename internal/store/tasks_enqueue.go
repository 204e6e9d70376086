package store

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Prepare finds the task of the spec's operation and step or plans it, as
// activities.Tasks specifies. KindFenced if the operation no longer holds the node
// or has ended. Enqueue alone stores a new task, so a step costs one transaction
// before its dispatch.
func (s *Tasks) Prepare(ctx context.Context, t activities.TaskSpec, o task.Owner) (activities.TaskRow, error) {
	kind, err := checkSpec(t)
	if err != nil {
		return activities.TaskRow{}, err
	}
	doing := "preparing task " + t.Step + " of operation " + t.OperationID
	row, err := query(ctx, s.db, doing, func(ctx context.Context) (activities.TaskRow, error) { return s.plan(ctx, t, o, kind) })
	if err != nil || !row.Stored || row.TaskID != "" {
		return row, err
	}
	return write(ctx, s.db, doing, func(ctx context.Context, tx *tx) (activities.TaskRow, error) {
		op, err := tx.lockHeld(ctx, fenceOf(t))
		if err != nil {
			return row, err
		}
		if t.Clock >= op.Step && o.RunID != op.NewestRunID {
			if err := tx.takeUp(ctx, op, o.RunID); err != nil {
				return row, err
			}
		}
		return setTaskOwner(ctx, tx, t, o)
	})
}

func checkSpec(t activities.TaskSpec) (task.TypeInfo, error) {
	kind, known := t.Type.Info()
	if !known {
		return kind, schema.NewError(schema.KindInvalidRequest, "unknown task type %q", t.Type)
	}
	if !schema.IsID(t.OperationID) || !schema.IsID(t.NodeID) {
		return kind, errFenced(fenceOf(t), 0)
	}
	return kind, nil
}

func fenceOf(t activities.TaskSpec) activities.Fence {
	return activities.Fence{NodeID: t.NodeID, OperationID: t.OperationID, OpSeq: t.OpSeq, CorrelationID: t.CorrelationID}
}

// plan returns the row that Enqueue would store. If the step has a task, it returns an
// unfinished one that already has the owner, and otherwise a row with only Stored set.
func (s *Tasks) plan(ctx context.Context, t activities.TaskSpec, o task.Owner, kind task.TypeInfo) (activities.TaskRow, error) {
	p, err := s.db.q.PlanTask(ctx, t.OperationID, t.Step, t.NodeID)
	switch f := fenceOf(t); {
	case postgres.NotFound(err):
		return activities.TaskRow{}, errFenced(f, 0)
	case err != nil:
		return activities.TaskRow{}, err
	case lifecycle.AfterUndo(t.Phase, p.Phase):
		return activities.TaskRow{}, errUndoBegan(f)
	case p.Stored:
		row, err := s.owned(ctx, t, o)
		if locked := lockOfPlan(p); locked != nil && err == nil && row.TaskID != "" {
			return activities.TaskRow{}, locked
		}
		return row, err
	case p.NodeOpSeq != t.OpSeq || p.OpSeq != t.OpSeq || t.OpSeq == 0:
		return activities.TaskRow{}, errFenced(f, p.NodeOpSeq)
	case p.EndedAt != nil:
		return activities.TaskRow{}, errOperationEnded(f)
	}
	if locked := lockOfPlan(p); locked != nil {
		return activities.TaskRow{}, locked
	}
	return activities.TaskRow{TaskID: lifecycle.TaskID(t.OperationID, t.Step), NodeID: t.NodeID, Incarnation: p.Incarnation,
		Type: t.Type, Effect: kind.Effect, Params: t.Params, Seq: p.NextSeq, Status: task.Pending}, nil
}

// lockOfPlan returns why the node receives no tasks, nil if its identity is not locked.
func lockOfPlan(p sqlc.PlanTaskRow) *schema.Error {
	return refusedLocked(p.Host, lockOf(p.IdentityLockedAt, p.IdentityLockReason, p.IdentityLockedBy, p.IdentityLockNote))
}

// owned returns the stored task if it is unfinished and has the owner, of which no
// heartbeat saw a cancellation or pause: there is nothing to write, and a task of an
// operation that lost its node is finished. The response of an earlier heartbeat may be
// outdated, and NextTask skips a canceled task.
func (s *Tasks) owned(ctx context.Context, t activities.TaskSpec, o task.Owner) (activities.TaskRow, error) {
	found, err := s.db.q.GetTaskByStep(ctx, t.OperationID, t.Step)
	owner := task.Owner{WorkflowID: found.OwnerWorkflowID, RunID: found.OwnerRunID, ActivityID: found.OwnerActivityID}
	if row := taskRow(found); err == nil && row.Result == nil && row.Type == t.Type && owner == o && !found.HeartbeatSeen {
		return row, nil
	}
	return activities.TaskRow{Stored: true}, err
}

// setTaskOwner makes the activity the owner of the stored task.
func setTaskOwner(ctx context.Context, tx *tx, t activities.TaskSpec, o task.Owner) (activities.TaskRow, error) {
	found, err := tx.GetTaskByStep(ctx, t.OperationID, t.Step)
	if err != nil {
		return activities.TaskRow{}, err
	}
	if found.Type != t.Type {
		return activities.TaskRow{}, schema.NewError(schema.KindInvalidRequest, "step %s already has a %s task", t.Step, found.Type)
	}
	return taskRow(found), tx.SetTaskOwner(ctx, sqlc.SetTaskOwnerParams{TaskID: found.TaskID,
		OwnerWorkflowID: o.WorkflowID, OwnerRunID: o.RunID, OwnerActivityID: o.ActivityID})
}

// Enqueue stores a prepared task with its envelope in one statement and wakes the
// node's polls after the commit, as activities.Tasks specifies. KindFenced if the
// operation lost the node or ended meanwhile, or the task was voided.
func (s *Tasks) Enqueue(ctx context.Context, t activities.TaskSpec, o task.Owner, row activities.TaskRow, envelope []byte) error {
	if _, err := checkSpec(t); err != nil {
		return err
	}
	p, err := enqueueParams(t, o, row, envelope)
	if err != nil {
		return err
	}
	doing := "storing task " + row.TaskID
	rows, err := query(ctx, s.db, doing, func(ctx context.Context) (int64, error) { return s.db.q.EnqueueTask(ctx, p) })
	if err != nil {
		return err
	}
	if rows > 0 {
		s.db.notifier.Notify(postgres.Notification{Channel: channelNode, Payload: t.NodeID})
		return nil
	}
	return s.db.write(ctx, doing, func(ctx context.Context, tx *tx) error { return explainNotStored(ctx, tx, t) })
}

func enqueueParams(t activities.TaskSpec, o task.Owner, row activities.TaskRow, envelope []byte) (sqlc.EnqueueTaskParams, error) {
	detail, err := json.Marshal(map[string]string{"type": string(t.Type), "step": cleanText(t.Step)})
	if err != nil {
		return sqlc.EnqueueTaskParams{}, err
	}
	body, _ := trust.EnvelopeDigest(envelope) // a malformed envelope has no digest and matches no result
	return sqlc.EnqueueTaskParams{
		TaskID: row.TaskID, NodeID: t.NodeID, Incarnation: row.Incarnation, Seq: row.Seq,
		Type: string(row.Type), Effect: string(row.Effect), Params: row.Params, OperationID: t.OperationID, OpSeq: t.OpSeq,
		Step: t.Step, Deadline: t.Deadline, CorrelationID: t.CorrelationID,
		OwnerWorkflowID: o.WorkflowID, OwnerRunID: o.RunID, OwnerActivityID: o.ActivityID,
		NotInPhases: excludedPhases(t.Phase), Envelope: envelope, BodySha256: body, KeyID: trust.SigningKey(envelope), Action: audit.TaskCreated, Detail: detail,
	}, nil
}

// excludedPhases returns the recorded phases in which no task of the phase may be stored.
func excludedPhases(phase string) []string {
	return slices.DeleteFunc(lifecycle.Undos(), func(undo string) bool { return !lifecycle.AfterUndo(phase, undo) })
}

// explainNotStored returns why EnqueueTask stored nothing, or nil if the task is
// already stored.
func explainNotStored(ctx context.Context, tx *tx, t activities.TaskSpec) error {
	op, err := tx.lockHeld(ctx, fenceOf(t))
	if err != nil {
		return err
	}
	found, err := tx.GetTaskByStep(ctx, t.OperationID, t.Step)
	switch {
	case postgres.NotFound(err) && op.EndedAt != nil:
		return errOperationEnded(fenceOf(t))
	case postgres.NotFound(err) && lifecycle.AfterUndo(t.Phase, op.Phase):
		return errUndoBegan(fenceOf(t))
	case postgres.NotFound(err) && op.Status == lifecycle.OperationAbandoned:
		return schema.NewError(schema.KindServiceUnavailable, "operation %s is abandoned: no run of it was open", t.OperationID).
			WithReason("operation_abandoned")
	case postgres.NotFound(err):
		return schema.NewError(schema.KindServiceUnavailable, "another task has the sequence number of step %s", t.Step).
			WithReason("seq_taken")
	case err != nil:
		return err
	case found.Status == task.Canceled && found.Result == nil:
		return schema.NewError(schema.KindFenced, "task %s was voided", found.TaskID).WithReason("task_voided")
	}
	return nil
}

// Void ends the operation's unfinished tasks as canceled and wakes the node's
// polls.
func (s *Tasks) Void(ctx context.Context, f activities.Fence) error {
	return s.db.write(ctx, "voiding the tasks of operation "+f.OperationID, func(ctx context.Context, tx *tx) error {
		if _, err := tx.lockHeld(ctx, f); err != nil {
			return err
		}
		tx.wakeNode(f.NodeID)
		return tx.voidTasks(ctx, f.NodeID, &f.OperationID, f.Actor, f.Via)
	})
}

// VoidUndispatched implements activities.Tasks. One statement checks and ends the task,
// because a dispatch does not lock the node.
func (s *Tasks) VoidUndispatched(ctx context.Context, f activities.Fence, step string) (voided bool, err error) {
	return write(ctx, s.db, "voiding task "+step+" of operation "+f.OperationID, func(ctx context.Context, tx *tx) (bool, error) {
		if _, err := tx.lockHeld(ctx, f); err != nil {
			return false, err
		}
		found, err := tx.GetTaskByStep(ctx, f.OperationID, step)
		if err != nil {
			return false, orMissing(err, nil)
		}
		rows, err := tx.VoidUndispatched(ctx, found.TaskID)
		if err != nil || rows == 0 {
			return found.Status == task.Canceled && found.LeaseEpoch == 0 && found.Result == nil && !found.CancelRequested, err
		}
		tx.note(taskEvent(f, audit.TaskFinished, found.TaskID, audit.Canceled, "not_dispatched", map[string]string{"type": string(found.Type)}))
		return true, nil
	})
}

// voidTasks cancels the node's unfinished tasks, lost ones included, with an audit
// row each: those of one operation, or all if operationID is nil.
func (tx *tx) voidTasks(ctx context.Context, nodeID string, operationID *string, actor, via string) error {
	tasks, err := tx.VoidTasks(ctx, nodeID, operationID, nil)
	for _, t := range tasks {
		f := activities.Fence{NodeID: nodeID, OperationID: t.OperationID, Actor: actor, Via: via, CorrelationID: t.CorrelationID}
		tx.note(taskEvent(f, audit.TaskFinished, t.TaskID, audit.Canceled, "voided", map[string]string{"type": string(t.Type)}))
	}
	return err
}

// taskRow is a stored task in the form of activities.
func taskRow(t sqlc.GetTaskByStepRow) activities.TaskRow {
	return activities.TaskRow{
		TaskID: t.TaskID, NodeID: t.NodeID, Incarnation: t.Incarnation, Type: t.Type, Effect: t.Effect,
		Params: t.Params, Seq: t.Seq, Status: t.Status, Stored: true, CancelRequested: t.CancelRequested || t.Status == task.Canceled && t.Result == nil,
		Result: resultOf(t.Status, t.LeaseEpoch, t.Result),
	}
}

// resultOf is the outcome of a task for its activity: the report, or a substitute
// if the task ended or was lost without one; nil while it is unfinished.
func resultOf(s task.Status, epoch int64, reported *task.Result) *task.Result {
	if reported != nil || !s.Terminal() && s != task.Lost {
		return reported
	}
	r := task.NoReport(s, epoch)
	return &r
}
