package store

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
)

// NextTask hands over the node's next task under a new lease, or returns nil,
// as nodeapi.Store says. A task whose envelope expired is not offered.
func (s *Store) NextTask(ctx context.Context, c schema.Caller, ask schema.TaskAsk, lease time.Duration) (*schema.TaskOffer, error) {
	var offer *schema.TaskOffer
	err := s.write(ctx, "handing a task to node "+c.NodeID, func(ctx context.Context, u *unit) error {
		t, err := u.NextTask(ctx, sqlc.NextTaskParams{
			NodeID: c.NodeID, Incarnation: c.Incarnation, LeaseSeconds: lease.Seconds(), Have: append([]string{}, ask.Have...),
		})
		if notFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if t.LeaseEpoch == 1 {
			u.note(taskEvent(callerFence(c, t.OperationID, t.CorrelationID), schema.AuditTaskDispatched, t.TaskID,
				schema.AuditSucceeded, "", map[string]string{"type": string(t.Type)}))
		}
		offer = &schema.TaskOffer{TaskID: t.TaskID, Envelope: t.Envelope, ServerTime: t.ServerTime,
			Lease: schema.Lease{Epoch: t.LeaseEpoch, ExpiresAt: t.LeaseUntil}, Type: t.Type, CreatedAt: t.CreatedAt}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return offer, nil
}

// Progress extends the lease, or answers KindLeaseLost.
func (s *Store) Progress(ctx context.Context, c schema.Caller, taskID string, p schema.TaskProgress, lease time.Duration,
) (schema.Progressed, error) {
	var a schema.Progressed
	err := s.read(ctx, "recording progress of task "+taskID, func(ctx context.Context) error {
		if !schema.IsID(taskID) {
			return errNoTask(taskID)
		}
		until, err := s.q.ExtendLease(ctx, sqlc.ExtendLeaseParams{
			TaskID: taskID, NodeID: c.NodeID, Incarnation: c.Incarnation, LeaseEpoch: p.LeaseEpoch,
			Progress: cleanText(p.Message), LeaseSeconds: lease.Seconds(),
		})
		if !notFound(err) {
			a.Answer.Lease = schema.Lease{Epoch: p.LeaseEpoch, ExpiresAt: until}
			return err
		}
		known, err := s.q.TaskExists(ctx, taskID, c.NodeID)
		switch {
		case err != nil:
			return err
		case !known:
			return errNoTask(taskID)
		}
		return errLeaseLost(taskID)
	})
	return a, err
}

// Told notes what an activity's heartbeat answered, as nodeapi.Store says.
func (s *Store) Told(context.Context, string, schema.BeatAnswer) error { return nil }

// Result stores the result and the completion to deliver, as nodeapi.Store
// says. What a workload.* task reports about the node's work is true from then
// on, so that a retire need not wait for the next heartbeat.
func (s *Store) Result(ctx context.Context, c schema.Caller, taskID string, r schema.TaskResult) (schema.TaskType, error) {
	if !slices.Contains([]schema.TaskStatus{schema.TaskSucceeded, schema.TaskFailed, schema.TaskCancelled}, r.Status) {
		return "", schema.Errorf(schema.KindInvalidRequest, "a task cannot end as %q", r.Status)
	}
	var stored schema.TaskType
	err := s.write(ctx, "storing the result of task "+taskID, func(ctx context.Context, u *unit) error {
		node, err := u.lockNode(ctx, c.NodeID)
		if err != nil {
			return err
		}
		if !schema.IsID(taskID) {
			return errNoTask(taskID)
		}
		t, err := u.GetTask(ctx, taskID, c.NodeID)
		if notFound(err) {
			return errNoTask(taskID)
		}
		if err != nil {
			return err
		}
		if t.Result != nil && sameResult(*t.Result, r) {
			return nil
		}
		rows, err := u.FinishTask(ctx, sqlc.FinishTaskParams{TaskID: taskID, NodeID: c.NodeID,
			Incarnation: c.Incarnation, LeaseEpoch: r.LeaseEpoch, Status: r.Status, Result: &r})
		if err != nil {
			return err
		}
		f := callerFence(c, t.OperationID, t.CorrelationID)
		if rows == 0 {
			return refuse(errLeaseLost(taskID), taskEvent(f, schema.AuditTaskLate, taskID, "", "",
				map[string]string{"type": string(t.Type), "task_status": string(t.Status), "status": string(r.Status)}))
		}
		stored = t.Type
		return u.finishTask(ctx, f, node, t, r)
	})
	if err != nil {
		return "", err
	}
	return stored, nil
}

func (u *unit) finishTask(ctx context.Context, f schema.Fence, n sqlc.LockNodeRow, t sqlc.GetTaskRow, r schema.TaskResult) error {
	if err := u.applyWork(ctx, n, t.Type, r); err != nil {
		return err
	}
	if err := u.InsertResultMessage(ctx, &t.TaskID, t.OwnerWorkflowID); err != nil {
		return err
	}
	result := map[schema.TaskStatus]string{schema.TaskSucceeded: schema.AuditSucceeded,
		schema.TaskFailed: schema.AuditFailed, schema.TaskCancelled: schema.AuditCancelled}[r.Status]
	u.note(taskEvent(f, schema.AuditTaskFinished, t.TaskID, result, string(r.Code),
		map[string]string{"type": string(t.Type), "message": r.Message}))
	return u.Notify(ctx, channelOutbox, "")
}

// applyWork takes over what a workload.* task says about cordon and workloads.
func (u *unit) applyWork(ctx context.Context, n sqlc.LockNodeRow, kind schema.TaskType, r schema.TaskResult) error {
	if r.Status != schema.TaskSucceeded {
		return nil
	}
	p := sqlc.SetNodeWorkParams{NodeID: n.NodeID, Cordoned: n.Cordoned, WorkloadsAt: optional(r.FinishedAt)}
	switch kind {
	case schema.TaskWorkloadCordon, schema.TaskWorkloadUncordon:
		var out schema.CordonResult
		if err := json.Unmarshal(r.Output, &out); err != nil {
			return schema.Wrap(schema.KindInvalidRequest, err, "the output of %s is malformed", kind)
		}
		p.Cordoned, p.Workloads = out.Cordoned, out.Workloads
	case schema.TaskWorkloadDrain:
		var out schema.DrainResult
		if err := json.Unmarshal(r.Output, &out); err != nil {
			return schema.Wrap(schema.KindInvalidRequest, err, "the output of %s is malformed", kind)
		}
		p.Workloads = slices.DeleteFunc(slices.Clone(n.Workloads), func(w schema.Workload) bool {
			return slices.Contains(out.Stopped, w.Name)
		})
	default:
		return nil
	}
	p.Workloads = append([]schema.Workload{}, p.Workloads...)
	return u.SetNodeWork(ctx, p)
}

// sameResult reports whether the stored result is the one that is posted again.
// The output is compared by value: the database may space it differently.
func sameResult(stored, posted schema.TaskResult) bool {
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

// callerFence names the operation a node works for, with the node as actor.
func callerFence(c schema.Caller, operationID, correlationID string) schema.Fence {
	return schema.Fence{NodeID: c.NodeID, OperationID: operationID, Actor: nodeActor(c.NodeID), CorrelationID: correlationID}
}

func errNoTask(id string) error { return schema.Errorf(schema.KindNotFound, "no task %q", id) }

func errLeaseLost(taskID string) error {
	return schema.Errorf(schema.KindLeaseLost, "task %s is not yours any more", taskID)
}
