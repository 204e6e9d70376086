package storetest

import (
	"context"
	"encoding/json"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// queued is a task as stored.
type queued struct {
	activities.TaskRow
	spec  activities.TaskSpec
	owner task.Owner
	epoch int64
	// finished is set once the task ended, canceled once an operator asked for its end.
	finished, canceled bool
}

// row is the task in the form of activities: one that ended or was lost without a report
// has a substitute as its result.
func (t *queued) row() activities.TaskRow {
	r := t.TaskRow
	r.CancelRequested = t.canceled || r.Status == task.Canceled && r.Result == nil
	if r.Result == nil && (r.Status.Terminal() || r.Status == task.Lost) {
		none := task.NoReport(r.Status, t.epoch)
		r.Result = &none
	}
	return r
}

func specFence(t activities.TaskSpec) activities.Fence {
	return activities.Fence{NodeID: t.NodeID, OperationID: t.OperationID, OpSeq: t.OpSeq, CorrelationID: t.CorrelationID}
}

// Prepare implements activities.Tasks.
func (s *taskQueue) Prepare(_ context.Context, t activities.TaskSpec, o task.Owner) (activities.TaskRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, known := t.Type.Info()
	if !known {
		return activities.TaskRow{}, schema.NewError(schema.KindInvalidRequest, "unknown task type %q", t.Type)
	}
	f, id := specFence(t), lifecycle.TaskID(t.OperationID, t.Step)
	if op, ok := s.ops[t.OperationID]; ok && lifecycle.AfterUndo(t.Phase, op.Phase) {
		return activities.TaskRow{}, errUndoBegan(f)
	}
	if found, ok := s.tasks[id]; ok {
		if found.finished || found.Status == task.Lost || found.owner != o {
			if _, _, err := s.held(f); err != nil {
				return activities.TaskRow{}, err
			}
		}
		if found.Type != t.Type {
			return activities.TaskRow{}, schema.NewError(schema.KindInvalidRequest, "step %s already has a %s task", t.Step, found.Type)
		}
		found.owner = o
		return found.row(), nil
	}
	n, op, err := s.held(f)
	switch {
	case err != nil:
		return activities.TaskRow{}, err
	case op.EndedAt != nil:
		return activities.TaskRow{}, errEnded(f)
	}
	return activities.TaskRow{TaskID: id, NodeID: t.NodeID, Incarnation: n.Incarnation, Type: t.Type, Effect: kind.Effect,
		Params: t.Params, Seq: int64(len(s.tasks) + 1), Status: task.Pending}, nil
}

// Enqueue implements activities.Tasks.
func (s *taskQueue) Enqueue(_ context.Context, t activities.TaskSpec, o task.Owner, row activities.TaskRow, _ []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := specFence(t)
	n, op, err := s.held(f)
	if err != nil {
		return err
	}
	found, stored := s.tasks[row.TaskID]
	switch {
	case stored && found.Status == task.Canceled && found.Result == nil:
		return schema.NewError(schema.KindFenced, "task %s was voided", row.TaskID).WithReason("task_voided")
	case stored:
		return nil
	case op.EndedAt != nil:
		return errEnded(f)
	case lifecycle.AfterUndo(t.Phase, op.Phase):
		return errUndoBegan(f)
	case op.Status == lifecycle.OperationAbandoned:
		return schema.NewError(schema.KindServiceUnavailable, "operation %s is abandoned", f.OperationID).WithReason("operation_abandoned")
	case row.Incarnation != n.Incarnation:
		return schema.NewError(schema.KindServiceUnavailable, "the node has a new identity").WithReason("seq_taken")
	}
	row.Stored = true
	s.tasks[row.TaskID] = &queued{TaskRow: row, spec: t, owner: o}
	s.note(f, audit.TaskCreated, row.TaskID, audit.Succeeded, "")
	return nil
}

// Find implements activities.Tasks.
func (s *taskQueue) Find(_ context.Context, t activities.TaskSpec) (activities.TaskRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.tasks[lifecycle.TaskID(t.OperationID, t.Step)]
	if !ok || found.NodeID != t.NodeID || found.Type != t.Type {
		return activities.TaskRow{}, schema.NewError(schema.KindNotFound, "operation %s has no task %s", t.OperationID, t.Step)
	}
	if found.Result == nil {
		_, op, err := s.held(specFence(t))
		if err == nil && op.EndedAt != nil {
			err = errEnded(specFence(t))
		}
		if err != nil {
			return activities.TaskRow{}, err
		}
	}
	return found.row(), nil
}

// First implements activities.Tasks.
func (s *taskQueue) First(_ context.Context, f activities.Fence, t task.Type) (activities.TaskRow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first *queued
	for _, q := range s.tasks {
		if q.spec.OperationID == f.OperationID && q.Type == t && (first == nil || q.Seq < first.Seq) {
			first = q
		}
	}
	if first == nil {
		return activities.TaskRow{}, schema.NewError(schema.KindNotFound, "operation %s has no %s task", f.OperationID, t)
	}
	return first.row(), nil
}

// Void implements activities.Tasks.
func (s *taskQueue) Void(_ context.Context, f activities.Fence) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, _, err := s.held(f); err != nil {
		return err
	}
	s.void(f, func(t *queued) bool { return t.spec.OperationID == f.OperationID })
	return nil
}

// VoidUndispatched implements activities.Tasks.
func (s *taskQueue) VoidUndispatched(_ context.Context, f activities.Fence, step string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, _, err := s.held(f); err != nil {
		return false, err
	}
	t, ok := s.tasks[lifecycle.TaskID(f.OperationID, step)]
	if !ok || t.epoch > 0 || t.canceled {
		return false, nil
	}
	if t.finished {
		return t.Status == task.Canceled && t.Result == nil, nil
	}
	s.endTask(f, t, "not_dispatched")
	return true, nil
}

// Task returns a task and its result, whether it exists or not.
func (s *taskQueue) Task(id string) (activities.TaskRow, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[id]
	if !ok {
		return activities.TaskRow{}, false
	}
	return t.row(), true
}

// Dispatch gives a pending task to its node under a new lease. ok is false if no poll
// would get the task: it is not pending, it expired, or the node has another identity.
func (s *taskQueue) Dispatch(id string) (spec activities.TaskSpec, epoch int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[id]
	if t == nil || t.Status != task.Pending || t.canceled || s.Now().After(t.spec.Deadline) || t.Incarnation != s.nodes[t.NodeID].Incarnation {
		return activities.TaskSpec{}, 0, false
	}
	t.epoch++
	t.Status = task.Dispatched
	return t.spec, t.epoch, true
}

// Leased reports whether the node may begin the task: the lease is the newest one and the
// task has not ended.
func (s *taskQueue) Leased(id string, epoch int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[id]
	return t != nil && t.epoch == epoch && t.Status == task.Dispatched && !t.canceled
}

// Report stores the node's result. KindLeaseLost if the task ended or has a newer lease.
func (s *taskQueue) Report(id string, r task.Result) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[id]
	switch {
	case t == nil:
		return schema.NewError(schema.KindNotFound, "no task %q", id)
	case t.Result != nil && t.Result.LeaseEpoch == r.LeaseEpoch: // a repeated request
		return nil
	case t.finished || t.epoch == 0 || t.epoch != r.LeaseEpoch || t.Incarnation != s.nodes[t.NodeID].Incarnation:
		return schema.NewError(schema.KindLeaseLost, "task %s has no such lease", id)
	}
	if r.Status == task.Succeeded && task.CheckOutput(t.Type, r.Output) != nil {
		r.Status, r.Code, r.Output, r.Message = task.Failed, schema.KindTaskFailed, nil, "success, with a malformed output"
	}
	wasLost := t.Status == task.Lost
	t.Status, t.Result, t.finished = r.Status, &r, true
	s.applyWork(t, r)
	s.note(specFence(t.spec), audit.TaskFinished, id, string(r.Status), string(r.Code))
	s.outbox = append(s.outbox, Message{TaskID: id, Owner: t.owner})
	if wasLost {
		s.returned(t)
	}
	return nil
}

// applyWork updates the node's cordon from the output of a workload task.
func (s *taskQueue) applyWork(t *queued, r task.Result) {
	var out task.CordonResult
	if r.Status != task.Succeeded || t.Type != task.WorkloadCordon && t.Type != task.WorkloadUncordon || json.Unmarshal(r.Output, &out) != nil {
		return
	}
	s.nodes[t.NodeID].Cordoned = out.Cordoned
}

func (s *taskQueue) returned(t *queued) {
	s.signal(t.owner.WorkflowID, lifecycle.AgentEvent{Event: lifecycle.EventTaskReturned, NodeID: t.NodeID,
		Incarnation: t.Incarnation, Step: t.spec.Step, OperationID: t.spec.OperationID})
}

// Expire ends the lease of a task, as the reclaimer does: a destructive task is lost,
// every other one is pending again.
func (s *taskQueue) Expire(id string, epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[id]
	if t == nil || t.epoch != epoch || t.Status != task.Dispatched {
		return
	}
	if t.Effect != task.EffectDestructive {
		t.Status = task.Pending
		return
	}
	t.Status = task.Lost
	s.outbox = append(s.outbox, Message{TaskID: id, Owner: t.owner})
}

// Resume makes a lost task pending again, as an operator's decision.
func (s *taskQueue) Resume(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[id]
	switch {
	case t == nil:
		return schema.NewError(schema.KindNotFound, "no task %q", id)
	case t.Status != task.Lost:
		return schema.NewError(schema.KindTaskStatus, "task %s is %s", id, t.Status).WithReason("task_not_lost")
	case t.canceled:
		return schema.NewError(schema.KindTaskStatus, "the cancel of task %s was requested", id).WithReason("cancel_requested").
			WithNext("gpuaas task cancel " + id + " --reason TEXT")
	case s.Now().After(t.spec.Deadline):
		return schema.NewError(schema.KindTaskStatus, "task %s is past its deadline", id).WithReason("envelope_expired").
			WithNext("gpuaas op retry " + t.NodeID + " --reason TEXT")
	}
	t.Status = task.Pending
	s.note(specFence(t.spec), audit.TaskResume, id, audit.Accepted, "")
	s.returned(t)
	return nil
}

// CancelTask ends a task without a lease, or asks the node to stop.
func (s *taskQueue) CancelTask(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[id]
	if t == nil || t.finished {
		return
	}
	t.canceled = true
	if t.Status == task.Dispatched {
		return
	}
	wasLost := t.Status == task.Lost
	s.endTask(specFence(t.spec), t, "canceled")
	s.outbox = append(s.outbox, Message{TaskID: id, Owner: t.owner})
	if wasLost {
		s.returned(t)
	}
}

// OpenDestructive returns the number of the operation's destructive tasks that have not ended.
func (s *taskQueue) OpenDestructive(operationID string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		if t.spec.OperationID == operationID && t.Effect == task.EffectDestructive && !t.finished {
			n++
		}
	}
	return n
}
