package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Prepare finds the task of the spec's operation and step or plans it, as
// activities.Tasks says. KindFenced when the operation no longer owns the node or
// is over. A new task is stored by Enqueue alone, so that a step costs one
// transaction before its hand-over.
func (s *Store) Prepare(ctx context.Context, t activities.TaskSpec, o task.Owner) (activities.TaskRow, error) {
	var row activities.TaskRow
	doing := "preparing task " + t.Step + " of operation " + t.OperationID
	err := s.read(ctx, doing, func(ctx context.Context) error {
		kind, err := taskKind(t)
		if err != nil {
			return err
		}
		row, err = s.plan(ctx, t, kind)
		return err
	})
	if err != nil || !row.Stored {
		return row, err
	}
	err = s.write(ctx, doing, func(ctx context.Context, u *unit) error {
		if _, _, err := u.owned(ctx, fenceOf(t)); err != nil {
			return err
		}
		if err := u.worksOn(ctx, t.OperationID, o.RunID); err != nil {
			return err
		}
		row, err = u.adopt(ctx, t, o)
		return err
	})
	return row, err
}

func taskKind(t activities.TaskSpec) (task.TypeInfo, error) {
	kind, known := t.Type.Info()
	if !known {
		return kind, schema.Errorf(schema.KindInvalidRequest, "unknown task type %q", t.Type)
	}
	if !schema.IsID(t.OperationID) || !schema.IsID(t.NodeID) {
		return kind, errFenced(fenceOf(t), 0)
	}
	return kind, nil
}

func fenceOf(t activities.TaskSpec) activities.Fence {
	return activities.Fence{NodeID: t.NodeID, OperationID: t.OperationID, OpSeq: t.OpSeq, CorrelationID: t.CorrelationID}
}

// plan is the row that a new task would have, as far as can be known before it
// is stored; of a task that is stored already it says only that.
func (s *Store) plan(ctx context.Context, t activities.TaskSpec, kind task.TypeInfo) (activities.TaskRow, error) {
	p, err := s.q.PlanTask(ctx, t.OperationID, t.Step, t.NodeID)
	switch f := fenceOf(t); {
	case notFound(err):
		return activities.TaskRow{}, errNoNode(t.NodeID)
	case err != nil || p.Stored:
		return activities.TaskRow{Stored: p.Stored}, err
	case p.NodeOpSeq != t.OpSeq || p.OpSeq != t.OpSeq || t.OpSeq == 0:
		return activities.TaskRow{}, errFenced(f, p.NodeOpSeq)
	case p.EndedAt != nil:
		return activities.TaskRow{}, errOver(f)
	}
	return activities.TaskRow{TaskID: lifecycle.TaskID(t.OperationID, t.Step), NodeID: t.NodeID, Incarnation: p.Incarnation,
		Type: t.Type, Effect: kind.Effect, Params: t.Params, Seq: p.TaskSeq + 1, Status: task.Pending}, nil
}

// adopt makes the activity the owner of the stored task.
func (u *unit) adopt(ctx context.Context, t activities.TaskSpec, o task.Owner) (activities.TaskRow, error) {
	found, err := u.GetTaskByStep(ctx, t.OperationID, t.Step)
	if err != nil {
		return activities.TaskRow{}, err
	}
	if found.Type != t.Type {
		return activities.TaskRow{}, schema.Errorf(schema.KindInvalidRequest, "step %s is a %s task already", t.Step, found.Type)
	}
	return taskRow(found), u.SetTaskOwner(ctx, sqlc.SetTaskOwnerParams{TaskID: found.TaskID,
		OwnerWorkflowID: o.WorkflowID, OwnerRunID: o.RunID, OwnerActivityID: o.ActivityID})
}

// Enqueue stores a prepared task with its envelope and wakes the node's poll, as
// activities.Tasks says: one statement, and a second look when it stored nothing.
// KindFenced when the operation lost the node or ended meanwhile, or the task was
// voided.
func (s *Store) Enqueue(ctx context.Context, t activities.TaskSpec, o task.Owner, row activities.TaskRow, envelope []byte) error {
	doing := "storing task " + row.TaskID
	if _, err := taskKind(t); err != nil {
		return err
	}
	p, err := enqueueParams(t, o, row, envelope)
	if err != nil {
		return err
	}
	var rows int64
	err = s.read(ctx, doing, func(ctx context.Context) (err error) {
		rows, err = s.q.EnqueueTask(ctx, p)
		return err
	})
	if err != nil || rows > 0 {
		return err
	}
	return s.write(ctx, doing, func(ctx context.Context, u *unit) error {
		f := fenceOf(t)
		n, err := u.LockNodeForTask(ctx, t.OperationID, t.NodeID)
		switch {
		case notFound(err):
			return errNoNode(t.NodeID)
		case err != nil:
			return err
		case n.NodeOpSeq != t.OpSeq || n.OpSeq != t.OpSeq || t.OpSeq == 0:
			return errFenced(f, n.NodeOpSeq)
		}
		return u.attach(ctx, f, t, n.OperationID != nil && *n.OperationID == t.OperationID, envelope)
	})
}

func enqueueParams(t activities.TaskSpec, o task.Owner, row activities.TaskRow, envelope []byte) (sqlc.EnqueueTaskParams, error) {
	e := taskEvent(fenceOf(t), audit.TaskCreated, row.TaskID, audit.Succeeded, "",
		map[string]string{"type": string(t.Type), "step": t.Step})
	detail, err := detailOf(clean(e))
	body, _ := trust.EnvelopeDigest(envelope) // what is no envelope is told when its result is compared with it
	return sqlc.EnqueueTaskParams{
		Channel: channelNode, TaskID: row.TaskID, NodeID: t.NodeID, Incarnation: row.Incarnation, Seq: row.Seq,
		Type: string(row.Type), Effect: string(row.Effect), Params: row.Params, OperationID: t.OperationID, OpSeq: t.OpSeq,
		Step: t.Step, Deadline: &t.Deadline, CorrelationID: t.CorrelationID,
		OwnerWorkflowID: o.WorkflowID, OwnerRunID: o.RunID, OwnerActivityID: o.ActivityID,
		Envelope: envelope, BodySha256: body, Action: e.Action, Detail: detail,
	}, err
}

// attach signs a task that is stored already: by another run of its activity, or
// unsigned by an older version. Without such a task it says why there is none.
func (u *unit) attach(ctx context.Context, f activities.Fence, t activities.TaskSpec, held bool, envelope []byte) error {
	found, err := u.GetTaskByStep(ctx, t.OperationID, t.Step)
	switch {
	case notFound(err) && !held:
		return errOver(f)
	case notFound(err):
		return schema.NewError(schema.KindServiceUnavailable, "step %s was signed with a sequence that another task has now", t.Step).
			WithReason("seq_taken")
	case err != nil || found.Signed:
		return err
	case found.Status.Terminal():
		return schema.NewError(schema.KindFenced, "task %s was voided before it was signed", found.TaskID).
			WithReason("task_voided")
	}
	if _, err := u.AttachEnvelope(ctx, found.TaskID, envelope, &t.Deadline); err != nil {
		return err
	}
	return u.later.Notify(ctx, channelNode, t.NodeID)
}

// Void ends the operation's unfinished tasks as cancelled and wakes the node.
func (s *Store) Void(ctx context.Context, f activities.Fence) error {
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

// voidTasks cancels the node's unfinished tasks, of one operation or of all, the
// lost ones included, with an audit row each.
func (u *unit) voidTasks(ctx context.Context, nodeID string, operationID *string, actor string) error {
	tasks, err := u.VoidTasks(ctx, nodeID, operationID, nil)
	for _, t := range tasks {
		f := activities.Fence{NodeID: nodeID, OperationID: t.OperationID, Actor: actor, CorrelationID: t.CorrelationID}
		u.note(taskEvent(f, audit.TaskFinished, t.TaskID, audit.Canceled, "voided",
			map[string]string{"type": string(t.Type)}))
	}
	return err
}

// taskRow is a stored task as activities see it.
func taskRow(t sqlc.GetTaskByStepRow) activities.TaskRow {
	return activities.TaskRow{
		TaskID: t.TaskID, NodeID: t.NodeID, Incarnation: t.Incarnation, Type: t.Type, Effect: t.Effect,
		Params: t.Params, Seq: t.Seq, Status: t.Status, Signed: t.Signed, CreatedAt: t.CreatedAt, Stored: true,
		Result: resultOf(t.Status, t.LeaseEpoch, t.Result),
	}
}

// resultOf is what is told of a task to whoever waits for it: its report, or for
// one that ended or was given up without a report what stands instead; nil while
// it is worked on. The row decides at the time it is read.
func resultOf(s task.Status, epoch int64, reported *task.Result) *task.Result {
	if reported != nil || !s.Terminal() && s != task.Lost {
		return reported
	}
	r := task.NoReport(s, epoch)
	return &r
}

func taskEvent(f activities.Fence, action, taskID, result, reason string, detail map[string]string) audit.Event {
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
