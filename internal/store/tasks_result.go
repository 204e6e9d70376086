package store

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Result stores the result and the message for the relay, as nodeapi.Tasks
// specifies. The result of a workload task also updates the node's cordon and
// workloads, so that a retire need not wait for the next heartbeat.
func (s *Tasks) Result(ctx context.Context, c nodeapi.Caller, taskID string, r nodeapi.ReceivedResult) (task.Type, error) {
	if _, ends := auditResults[r.Status]; !ends {
		return "", schema.NewError(schema.KindInvalidRequest, "a task cannot end as %q", r.Status)
	}
	return write(ctx, s.db, "storing the result of task "+taskID, func(ctx context.Context, tx *tx) (task.Type, error) {
		t, err := tx.lockTask(ctx, taskID, &c.NodeID)
		r.Result = accepted(t.Type, r.Result)
		if err != nil || t.Result != nil && sameResult(*t.Result, r.Result) {
			return "", err
		}
		f := nodeFence(c, t.OperationID, t.CorrelationID)
		if err := checkResult(c, f, t, r.Result); err != nil {
			return "", err
		}
		if err := applyNodeWork(ctx, tx, t, r.Result); err != nil {
			return "", err
		}
		tx.note(finishedEvent(f, t, r))
		tx.notify(channelOutbox, "")
		if err := tx.FinishTask(ctx, finishParams(taskID, r)); err != nil || t.Status != task.Lost {
			return t.Type, err
		}
		return t.Type, tx.enqueueSignal(ctx, t.OwnerWorkflowID, returnedEvent(t.NodeID, t.Incarnation, t.Step, t.OperationID))
	})
}

// Find returns the stored task of a step, as activities.Tasks specifies.
func (s *Tasks) Find(ctx context.Context, t activities.TaskSpec) (activities.TaskRow, error) {
	return query(ctx, s.db, "reading task "+t.Step+" of operation "+t.OperationID, func(ctx context.Context) (activities.TaskRow, error) {
		missing := schema.NewError(schema.KindNotFound, "operation %s has no task %s on node %s", t.OperationID, t.Step, t.NodeID)
		if !schema.IsID(t.OperationID) {
			return activities.TaskRow{}, missing
		}
		found, err := s.db.q.GetTaskByStep(ctx, t.OperationID, t.Step)
		if err == nil && (found.NodeID != t.NodeID || found.Type != t.Type) {
			return activities.TaskRow{}, missing
		}
		if err == nil && found.Result == nil { // pending, lost, or voided because the node is another operation's
			row := taskRow(found)
			row.Locked, err = s.holds(ctx, t)
			return row, orMissing(err, missing)
		}
		return taskRow(found), orMissing(err, missing)
	})
}

// First returns the operation's first task of a type, as activities.Tasks specifies.
func (s *Tasks) First(ctx context.Context, f activities.Fence, t task.Type) (activities.TaskRow, error) {
	doing := "reading the first " + string(t) + " task of operation " + f.OperationID
	return query(ctx, s.db, doing, func(ctx context.Context) (activities.TaskRow, error) {
		missing := schema.NewError(schema.KindNotFound, "operation %s has no %s task", f.OperationID, t)
		if !schema.IsID(f.OperationID) {
			return activities.TaskRow{}, missing
		}
		found, err := s.db.q.GetFirstTask(ctx, f.OperationID, t)
		return taskRow(sqlc.GetTaskByStepRow(found)), orMissing(err, missing)
	})
}

// holds returns KindFenced if the operation no longer holds the node or has ended. Otherwise it
// returns why the node receives no tasks, nil if its identity is not locked.
func (s *Tasks) holds(ctx context.Context, t activities.TaskSpec) (locked *schema.Error, err error) {
	p, err := s.db.q.PlanTask(ctx, t.OperationID, t.Step, t.NodeID)
	switch {
	case err != nil:
		return nil, err
	case p.NodeOpSeq != t.OpSeq || p.OpSeq != t.OpSeq:
		return nil, errFenced(fenceOf(t), p.NodeOpSeq)
	case p.EndedAt != nil:
		return nil, errOperationEnded(fenceOf(t))
	}
	return lockOfPlan(p), nil
}

// setFacts stores the facts that a task of the operation reported; "" changes nothing,
// and neither does a task that is missing, as after a restore.
func setFacts(ctx context.Context, tx *tx, f activities.Fence, step string) error {
	if step == "" {
		return nil
	}
	found, err := tx.GetTaskByStep(ctx, f.OperationID, step)
	if err != nil || found.Result == nil {
		return orMissing(err, nil)
	}
	var facts inventory.Facts
	if err := found.Result.Decode(&facts); err != nil {
		return err
	}
	facts = facts.Bounded()
	return tx.SetNodeFacts(ctx, f.NodeID, f.OpSeq, &facts)
}

// accepted returns a result as it is stored. A success with an output that does not
// have the form of the task's type is a failure: the operation parks with it.
func accepted(t task.Type, r task.Result) task.Result {
	if r.Status != task.Succeeded || task.CheckOutput(t, r.Output) == nil {
		return r
	}
	r.Status, r.Code, r.Output = task.Failed, schema.KindTaskFailed, nil
	r.Message = "success, with an output that does not have the form of " + string(t)
	return r
}

// auditResults are the statuses that end a task, with their results in the audit.
//
//nolint:gochecknoglobals // read-only table
var auditResults = map[task.Status]string{
	task.Succeeded: audit.Succeeded, task.Failed: audit.Failed, task.Canceled: audit.Canceled,
}

// checkResult refuses a result from a lost lease, for an ended task or of another
// body than the signed one. The audit row of a mismatch keeps the claimed outcome,
// since the agent drops a refused result; a destructive task becomes lost then and
// an operator decides.
func checkResult(c nodeapi.Caller, f activities.Fence, t sqlc.LockTaskRow, r task.Result) error {
	detail := map[string]string{"type": string(t.Type), "status": string(r.Status)}
	if r.EnvelopeSHA256 != "" && r.EnvelopeSHA256 != t.BodySha256 {
		detail["signed"], detail["ran"] = t.BodySha256, r.EnvelopeSHA256
		detail["code"], detail["message"] = string(r.Code), r.Message
		return refuseTask(schema.NewError(schema.KindInvalidRequest, "task %s was signed with the body %s, but the result is for %s",
			t.TaskID, t.BodySha256, r.EnvelopeSHA256).WithReason("envelope_mismatch"),
			taskEvent(f, audit.TaskMismatched, t.TaskID, "", "", detail))
	}
	if t.Status.Terminal() || t.Incarnation != c.Incarnation || t.LeaseEpoch == 0 || t.LeaseEpoch != r.LeaseEpoch {
		detail["task_status"] = string(t.Status)
		return refuseTask(errLeaseLost(t.TaskID), taskEvent(f, audit.TaskLate, t.TaskID, "", "", detail))
	}
	return nil
}

func finishedEvent(f activities.Fence, t sqlc.LockTaskRow, r nodeapi.ReceivedResult) audit.Event {
	detail := map[string]string{"type": string(t.Type), "message": r.Message}
	if r.Proof != nil {
		detail["serial"] = r.Proof.Serial
	}
	if t.Status != task.Dispatched && t.Status != task.Running {
		detail["was"] = string(t.Status)
	}
	return taskEvent(f, audit.TaskFinished, t.TaskID, auditResults[r.Status], string(r.Code), detail)
}

// finishParams stores the output's tail in its own column, which deliveries do not
// read.
func finishParams(taskID string, r nodeapi.ReceivedResult) sqlc.FinishTaskParams {
	p := sqlc.FinishTaskParams{TaskID: taskID, Status: r.Status, OutputTail: tail(r.OutputTail)}
	if by := r.Proof; by != nil {
		p.ResultSerial, p.ResultKey, p.ResultBody, p.ResultSignature = &by.Serial, by.Key, by.Body, by.Signature
	}
	r.OutputTail = ""
	p.Result = &r.Result
	return p
}

// tail is the end of a text as the database stores it: at most
// task.MaxOutputTail bytes of UTF-8.
func tail(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
	if len(s) <= task.MaxOutputTail {
		return s
	}
	return strings.ToValidUTF8(s[len(s)-task.MaxOutputTail:], "")
}

// applyNodeWork updates the node's cordon and workloads from the output of a
// workload task.
func applyNodeWork(ctx context.Context, tx *tx, t sqlc.LockTaskRow, r task.Result) error {
	p, err := nodeWork(t, r)
	if err != nil || p == nil {
		return err
	}
	p.Workloads = append([]task.Workload{}, p.Workloads...)
	return tx.SetNodeWork(ctx, *p)
}

// nodeWork is the node's cordon and workloads after the task, nil if it does not
// change them. A list of workloads that a heartbeat could not contain is ignored: the
// cordon still counts, and the next heartbeat reports the workloads.
func nodeWork(t sqlc.LockTaskRow, r task.Result) (*sqlc.SetNodeWorkParams, error) {
	var cordon task.CordonResult
	var drain task.DrainResult
	var out any
	switch {
	case r.Status != task.Succeeded:
		return nil, nil //nolint:nilnil // nothing changes
	case t.Type == task.WorkloadCordon || t.Type == task.WorkloadUncordon:
		out = &cordon
	case t.Type == task.WorkloadDrain:
		out = &drain
	default:
		return nil, nil //nolint:nilnil // nothing changes
	}
	if err := json.Unmarshal(r.Output, out); err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "the output of %s is malformed", t.Type)
	}
	p := &sqlc.SetNodeWorkParams{NodeID: t.NodeID, Cordoned: t.Cordoned, WorkloadsAt: optional(r.FinishedAt)}
	if err := json.Unmarshal(t.Workloads, &p.Workloads); err != nil {
		return nil, err
	}
	if t.Type == task.WorkloadDrain && len(drain.Blocked)+len(drain.Ignored) == 0 { // the drain ended when nothing ran
		p.Workloads = nil
		return p, nil
	}
	if t.Type == task.WorkloadDrain {
		p.Workloads = slices.DeleteFunc(p.Workloads, func(w task.Workload) bool { return slices.Contains(drain.Stopped, w.Name) })
		return p, nil
	}
	p.Cordoned = cordon.Cordoned
	if wire.CheckWorkloads(cordon.Workloads) == nil {
		p.Workloads = cordon.Workloads
	}
	return p, nil
}

// sameResult reports whether the stored result was posted again. It compares the
// output by value, since jsonb does not keep its bytes.
func sameResult(stored, posted task.Result) bool {
	var a, b any
	if json.Unmarshal(orNull(stored.Output), &a) != nil || json.Unmarshal(orNull(posted.Output), &b) != nil {
		return false
	}
	return reflect.DeepEqual(a, b) && stored.LeaseEpoch == posted.LeaseEpoch && stored.Status == posted.Status &&
		stored.Code == posted.Code && stored.Message == posted.Message &&
		stored.StartedAt.Equal(posted.StartedAt) && stored.FinishedAt.Equal(posted.FinishedAt)
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}
