package activities

import (
	"context"
	"encoding/json"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Tasks is the queue of node tasks.
type Tasks interface {
	// Prepare finds the task of the spec's operation and step (id
	// lifecycle.TaskID) and sets its owner, the activity that the result completes.
	// If there is no task, it returns the row that Enqueue would store, with the
	// next seq, and stores nothing. KindInvalidRequest, reason node_locked, while the node's
	// identity is locked and the task is not done: the node cannot receive it.
	Prepare(ctx context.Context, s TaskSpec, o task.Owner) (TaskRow, error)
	// Enqueue stores the prepared row with its signed envelope and wakes the
	// node's poll. A repeated call keeps the first envelope. KindServiceUnavailable,
	// reason seq_taken, when another task has taken the row's seq: prepare again; reason
	// operation_abandoned for a new task of an operation that is marked as abandoned: the
	// watcher marks it as running again if a run of it is open.
	Enqueue(ctx context.Context, s TaskSpec, o task.Owner, row TaskRow, envelope []byte) error
	// Find returns the task of the spec's operation and step. KindNotFound if there is
	// none, or it is of another node or type; KindFenced if it has no result and the
	// operation no longer holds the node.
	Find(ctx context.Context, s TaskSpec) (TaskRow, error)
	// First returns the operation's first task of a type, whatever its status and which run
	// enqueued it. KindNotFound if there is none.
	First(ctx context.Context, f Fence, t task.Type) (TaskRow, error)
	// Void ends the operation's unfinished tasks as canceled and notifies the
	// agent. A late result is recorded, not applied.
	Void(ctx context.Context, f Fence) error
	// VoidUndispatched ends the task of the operation's step if it was never dispatched,
	// so that the node cannot have begun it and never will. It reports whether the task
	// ended this way, in this call or in an earlier one. Otherwise it changes nothing.
	VoidUndispatched(ctx context.Context, f Fence, step string) (voided bool, err error)
}

// TaskSpec describes a task that a workflow runs on a node.
type TaskSpec struct {
	OperationID string `json:"operation_id"`
	OpSeq       int64  `json:"op_seq"`
	NodeID      string `json:"node_id"`
	Step        string `json:"step"` // unique within the operation
	// Phase is the phase of the step. Once the undo is recorded, a task of another phase is
	// KindFenced, reason undo_began. Empty in specs of earlier versions.
	Phase    string          `json:"phase,omitempty"`
	Type     task.Type       `json:"type"`
	Params   json.RawMessage `json:"params,omitempty"`
	Deadline time.Time       `json:"deadline"` // after it the envelope is void
	// Attempt counts the tries of the step within the operation, from 1; 0
	// means 1. Expect.OpSeq is filled in from OpSeq.
	Attempt       int64            `json:"attempt,omitempty"`
	Expect        task.Expectation `json:"expect,omitzero"`
	CorrelationID string           `json:"correlation_id"`
	// Clock orders the spec among the operation's advances (Advance.Step): the run of an
	// older spec is not the operation's newest.
	Clock int64 `json:"clock,omitempty"`
}

// TaskRow is the part of a stored task that RunNodeTask needs.
type TaskRow struct {
	TaskID      string
	NodeID      string
	Incarnation int64
	Type        task.Type
	Effect      task.Effect
	Params      json.RawMessage
	Seq         int64
	Status      task.Status
	// Stored is false for a task that Prepare proposes and Enqueue has not stored.
	Stored bool
	// CancelRequested is true if an operator asked for the end of the task, or if the
	// control plane voided it.
	CancelRequested bool
	Result          *task.Result // set when Status is terminal or lost
	// Locked is set by Find for a task without a report if the node's identity is locked: why
	// the node receives no tasks.
	Locked *schema.Error
}

// Task has the activities that run tasks on a node.
type Task struct {
	Records Records
	Tasks   Tasks
	// NewTasks signs each new task.
	NewTasks TaskSigner
}

// EnqueueInput is the input of EnqueueNodeTask.
type EnqueueInput struct {
	Fence Fence `json:"fence"`
	// Progress is recorded first, if it is set. If the database cannot record it now
	// and nothing but the operation's status changes, the next write repeats it. The beginning
	// of an undo is always recorded before the undo's task.
	Progress *Advance `json:"progress,omitempty"`
	Task     TaskSpec `json:"task"`
}

// EnqueueNodeTask signs and stores a task for RunNodeTask, which waits for its
// result. It is short, so that a worker that ends meanwhile is noticed after the
// timeout of a workflow task, not after the heartbeat timeout of RunNodeTask. A
// second run finds the stored task.
func (t *Task) EnqueueNodeTask(ctx context.Context, in EnqueueInput) error {
	if p := in.Progress; p != nil {
		err := t.Records.Advance(ctx, in.Fence, activity.GetInfo(ctx).WorkflowExecution.RunID, *p)
		if err != nil && (!schema.KindOf(err).Info().Retry || p.Instance != "" || p.FactsTask != "" || lifecycle.IsUndo(p.Phase)) {
			return Fail(err)
		}
	}
	_, err := t.find(ctx, in.Task)
	return Fail(err)
}

// RunNodeTask waits until a task of the node ends, which EnqueueNodeTask stored, and
// leaves the activity open. The relay completes it by id with the task's reference when
// the result is stored, so that the task holds no worker slot. Each run, even one after
// a heartbeat timeout, finds the same row and ends if the task has ended or is lost.
//
// The completion is a hint: everyone who can write to Temporal can send one. The
// workflow reads the result with ReadTaskResult.
//
// The activity's ID must be the spec's Step; the stored owner has the same.
func (t *Task) RunNodeTask(ctx context.Context, spec TaskSpec) (task.Reference, error) {
	row, err := t.find(ctx, spec)
	switch {
	case err != nil:
		return task.Reference{}, Fail(err)
	case row.Result != nil:
		return task.Reference{TaskID: row.TaskID, Status: row.Status}, nil
	}
	return task.Reference{}, activity.ErrResultPending
}

// ReadTaskResult reads the outcome of the task of the spec's step from the database. A
// task that did not succeed is its error (task.Result.Failure), which is final, because
// only an operator's decision repeats the step. A task that has not ended is open, and
// KindInvalidRequest, reason node_locked, while the node's identity is locked. One that
// the database does not have is neither done nor open.
func (t *Task) ReadTaskResult(ctx context.Context, spec TaskSpec) (task.Outcome, error) {
	row, err := t.Tasks.Find(ctx, spec)
	switch {
	case schema.KindOf(err) == schema.KindNotFound:
		return task.Outcome{}, nil
	case err != nil:
		return task.Outcome{}, Fail(err)
	case row.Result == nil && row.Locked != nil:
		return task.Outcome{}, Failure(row.Locked, true)
	case row.Result == nil:
		return task.Outcome{Open: true}, nil
	}
	if e := row.Result.Failure(); e != nil {
		if e.Reason == lifecycle.ReasonTaskCanceled && !row.CancelRequested { // by the node alone
			e.Reason = ""
		}
		if row.Locked != nil && e.Reason == lifecycle.ReasonTaskLost {
			e.Message, e.Next = e.Message+"; "+row.Locked.Message, row.Locked.Next
		}
		return task.Outcome{}, Failure(e, true)
	}
	output, err := row.Result.Brief(spec.Type)
	return task.Outcome{Done: true, Output: output}, Fail(err)
}

// FirstTask is what a workflow reads of an operation's first task of a type.
type FirstTask struct {
	// Exists is set if the operation has a task of the type, whatever became of it.
	Exists bool `json:"exists"`
	// Output is the brief form of the output of a task that succeeded; see task.Result.Brief.
	Output json.RawMessage `json:"output,omitempty"`
}

// ReadFirstTask reads the operation's first task of a type from the database; see
// Tasks.First. A run that was reset does not know the tasks of the run before.
func (t *Task) ReadFirstTask(ctx context.Context, f Fence, kind task.Type) (FirstTask, error) {
	row, err := t.Tasks.First(ctx, f, kind)
	switch {
	case schema.KindOf(err) == schema.KindNotFound:
		return FirstTask{}, nil
	case err != nil || row.Status != task.Succeeded:
		return FirstTask{Exists: true}, Fail(err)
	}
	output, err := row.Result.Brief(kind)
	return FirstTask{Exists: true, Output: output}, Fail(err)
}

// find returns the task of the spec's step. It enqueues the task if there is none.
func (t *Task) find(ctx context.Context, spec TaskSpec) (TaskRow, error) {
	run := activity.GetInfo(ctx).WorkflowExecution
	owner := task.Owner{WorkflowID: run.ID, RunID: run.RunID, ActivityID: spec.Step}
	row, err := t.Tasks.Prepare(ctx, spec, owner)
	if err != nil || row.Stored {
		return row, err
	}
	return row, t.enqueue(ctx, spec, owner, row)
}

// enqueue signs the task and stores it with its envelope. It signs first, so that
// every stored row can be dispatched immediately.
func (t *Task) enqueue(ctx context.Context, spec TaskSpec, o task.Owner, row TaskRow) error {
	expect := spec.Expect
	expect.OpSeq = spec.OpSeq
	envelope, err := t.NewTasks.envelope(ctx, task.Payload{
		TaskID: row.TaskID, NodeID: row.NodeID, Incarnation: row.Incarnation, Type: row.Type, Params: row.Params,
		Seq: row.Seq, Attempt: max(spec.Attempt, 1), Expect: expect, ExpiresAt: spec.Deadline,
		OperationID: spec.OperationID, WorkflowID: activity.GetInfo(ctx).WorkflowExecution.ID, CorrelationID: spec.CorrelationID,
	})
	if err != nil {
		return err
	}
	return t.Tasks.Enqueue(ctx, spec, o, row, envelope)
}

// VoidTasks ends the operation's unfinished tasks; see Tasks.Void. A second run
// changes nothing.
func (t *Task) VoidTasks(ctx context.Context, f Fence) error {
	return Fail(t.Tasks.Void(ctx, f))
}

// VoidStep ends the operation's unfinished tasks, as VoidTasks, if that of the spec's step is
// unfinished. A second run changes nothing, even if another step's task was enqueued since.
func (t *Task) VoidStep(ctx context.Context, f Fence, spec TaskSpec) error {
	row, err := t.Tasks.Find(ctx, spec)
	if schema.KindOf(err) == schema.KindNotFound || err == nil && row.Status.Terminal() {
		return nil
	}
	if err == nil {
		err = t.Tasks.Void(ctx, f)
	}
	return Fail(err)
}

// VoidInput is the input of VoidUndispatched.
type VoidInput struct {
	Fence Fence  `json:"fence"`
	Step  string `json:"step"`
}

// VoidUndispatched ends the task of a step that was never dispatched; see
// Tasks.VoidUndispatched. A second run changes nothing.
func (t *Task) VoidUndispatched(ctx context.Context, in VoidInput) (voided bool, err error) {
	voided, err = t.Tasks.VoidUndispatched(ctx, in.Fence, in.Step)
	return voided, Fail(err)
}
