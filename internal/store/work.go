package store

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// NextTask hands over the node's next task under a new lease, or returns nil,
// as the port says. Not offered are a task whose envelope expired, one that
// is to be cancelled, and one of an operation that lost the node.
func (s *Store) NextTask(ctx context.Context, c nodeapi.Caller, poll wire.PollRequest, lease time.Duration) (*nodeapi.Dispatch, error) {
	var offer *nodeapi.Dispatch
	err := s.read(ctx, "handing a task to node "+c.NodeID, func(ctx context.Context) error {
		t, err := s.q.NextTask(ctx, sqlc.NextTaskParams{NodeID: c.NodeID, Incarnation: c.Incarnation,
			LeaseSeconds: lease.Seconds(), Have: append([]string{}, poll.HeldTasks...), Holder: cleanText(poll.AgentSession), PollNumber: poll.PollSeq,
			Actor: nodeActor(c.NodeID), Action: audit.TaskDispatched,
		})
		if notFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		offer = &nodeapi.Dispatch{
			TaskOffer: wire.TaskOffer{TaskID: t.TaskID, Envelope: t.Envelope, ServerTime: t.ServerTime,
				Lease: task.Lease{Epoch: t.LeaseEpoch, ExpiresAt: t.LeaseUntil}},
			Type: task.Type(t.Type), CreatedAt: t.CreatedAt, NodeState: lifecycle.NodeState(t.NodeState), OpSeq: t.NodeOpSeq,
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return offer, nil
}

// Progress extends the lease, or answers KindLeaseLost, as the port says.
func (s *Store) Progress(ctx context.Context, c nodeapi.Caller, taskID string, p task.Progress, lease time.Duration,
) (nodeapi.ProgressResult, error) {
	if !schema.IsID(taskID) {
		return nodeapi.ProgressResult{}, errNoTask(taskID)
	}
	a, err := s.extend(ctx, c, taskID, p, lease)
	if schema.KindOf(err) != schema.KindLeaseLost {
		return a, err
	}
	if err := s.takeUp(ctx, c, taskID, p.LeaseEpoch); err != nil {
		return nodeapi.ProgressResult{}, err
	}
	return s.extend(ctx, c, taskID, p, lease)
}

// CanceledTasks returns which tasks in have are not wanted any more, as nodeapi.Tasks
// says.
func (s *Store) CanceledTasks(ctx context.Context, c nodeapi.Caller, have []string) (news []string, err error) {
	err = s.read(ctx, "reading the news of node "+c.NodeID, func(ctx context.Context) (err error) {
		news, err = s.q.TaskNews(ctx, c.NodeID, have)
		return err
	})
	return news, err
}

// extend is the common case: one statement, no notification.
func (s *Store) extend(ctx context.Context, c nodeapi.Caller, taskID string, p task.Progress, lease time.Duration,
) (nodeapi.ProgressResult, error) {
	var a nodeapi.ProgressResult
	err := s.read(ctx, "recording progress of task "+taskID, func(ctx context.Context) error {
		r, err := s.q.ExtendLease(ctx, sqlc.ExtendLeaseParams{
			TaskID: taskID, NodeID: c.NodeID, Incarnation: c.Incarnation, LeaseEpoch: p.LeaseEpoch,
			Progress: cleanText(p.Message), LeaseSeconds: lease.Seconds(), BeatSeconds: task.HeartbeatInterval.Seconds(),
		})
		if notFound(err) {
			return errLeaseLost(taskID)
		}
		a.Response = wire.ProgressResponse{Lease: task.Lease{Epoch: p.LeaseEpoch, ExpiresAt: r.LeaseUntil},
			Cancel: r.Cancel, Paused: r.Paused}
		if r.Beat {
			a.Owner = &task.Owner{WorkflowID: r.OwnerWorkflowID, RunID: r.OwnerRunID, ActivityID: r.OwnerActivityID}
		}
		return err
	})
	return a, err
}

// takeUp lets the holder of the newest lease go on with a task that was given up
// or requeued meanwhile, and was handed to nobody since.
func (s *Store) takeUp(ctx context.Context, c nodeapi.Caller, taskID string, epoch int64) error {
	return s.write(ctx, "taking up task "+taskID, func(ctx context.Context, u *unit) error {
		t, err := u.lockTask(ctx, c.NodeID, taskID)
		if err != nil {
			return err
		}
		if t.Incarnation != c.Incarnation {
			return errLeaseLost(taskID)
		}
		if _, err := u.TakeUpTask(ctx, taskID, epoch); notFound(err) {
			return errLeaseLost(taskID)
		} else if err != nil {
			return err
		}
		u.note(taskEvent(callerFence(c, t.OperationID, t.CorrelationID), audit.TaskReturned, taskID,
			audit.Succeeded, "", map[string]string{"type": string(t.Type), "was": string(t.Status)}))
		if t.Status != task.Lost {
			return nil
		}
		return u.back(ctx, t)
	})
}

// back tells the operation of a task that is lost no more, and takes back what
// was not told yet.
func (u *unit) back(ctx context.Context, t sqlc.LockTaskRow) error {
	if err := u.DropResultMessage(ctx, &t.TaskID); err != nil {
		return err
	}
	return u.tellBack(ctx, t)
}

func (u *unit) tellBack(ctx context.Context, t sqlc.LockTaskRow) error {
	return u.tellEvent(ctx, t.OwnerWorkflowID, lifecycle.AgentEvent{Event: lifecycle.EventTaskReturned, NodeID: t.NodeID,
		Incarnation: t.Incarnation, Step: t.Step, OperationID: t.OperationID})
}

// lockTask locks the node and then its task, or answers KindNotFound.
func (u *unit) lockTask(ctx context.Context, nodeID, taskID string) (sqlc.LockTaskRow, error) {
	if _, err := u.lockNode(ctx, nodeID); err != nil {
		return sqlc.LockTaskRow{}, err
	}
	t, err := u.LockTask(ctx, task.StaleGrace.Seconds(), taskID)
	if notFound(err) || err == nil && t.NodeID != nodeID {
		return t, errNoTask(taskID)
	}
	return t, err
}

// SetActivityState notes what an activity's heartbeat answered, as the port says.
func (s *Store) SetActivityState(ctx context.Context, taskID string, b nodeapi.ActivityState) error {
	return s.read(ctx, "noting a heartbeat's answer for task "+taskID, func(ctx context.Context) error {
		if !schema.IsID(taskID) {
			return errNoTask(taskID)
		}
		return s.q.ToldTask(ctx, b.Cancel, b.Paused, taskID)
	})
}

// Result stores the result and the completion to deliver, as nodeapi.Tasks
// says. What a workload.* task reports about the node's work is true from then
// on, so that a retire need not wait for the next heartbeat.
func (s *Store) Result(ctx context.Context, c nodeapi.Caller, taskID string, r nodeapi.ReceivedResult) (task.Type, error) {
	if !slices.Contains([]task.Status{task.Succeeded, task.Failed, task.Canceled}, r.Status) {
		return "", schema.Errorf(schema.KindInvalidRequest, "a task cannot end as %q", r.Status)
	}
	if !schema.IsID(taskID) {
		return "", errNoTask(taskID)
	}
	doing := "storing the result of task " + taskID
	stored, err := s.finish(ctx, doing, c, taskID, r)
	if err != nil || stored != "" {
		return stored, err
	}
	if stored, err = s.finishLocked(ctx, doing, c, taskID, r); err != nil {
		return "", err
	}
	s.wakeRelay()
	return stored, nil
}

// finish is the common case, one statement: a task that is worked on, whose body
// is the signed one and whose end changes nothing but itself. It stores nothing,
// and returns "", of any other. Where this process has a relay it gets the
// message at once.
func (s *Store) finish(ctx context.Context, doing string, c nodeapi.Caller, taskID string, r nodeapi.ReceivedResult) (stored task.Type, err error) {
	p := s.finishParams(c, taskID, r)
	p.Open = []string{string(task.Dispatched), string(task.Running)}
	p.BodySha256 = r.EnvelopeSHA256
	if r.Status == task.Succeeded {
		p.OtherTypes = []string{string(task.WorkloadCordon), string(task.WorkloadUncordon), string(task.WorkloadDrain)}
	}
	relayed := s.relay.Load()
	p.HoldSeconds = relayed.hold().Seconds()
	var row sqlc.FinishTaskRow
	err = s.read(ctx, doing, func(ctx context.Context) (err error) {
		if row, err = s.q.FinishTask(ctx, p); notFound(err) {
			return nil
		}
		return err
	})
	switch {
	case err != nil || row.Type == "":
		return "", err
	case p.HoldSeconds > 0:
		relayed.hand(relay.Message{ID: row.MessageID, CreatedAt: row.CreatedAt, Result: p.Result,
			Owner: task.Owner{WorkflowID: row.OwnerWorkflowID, RunID: row.OwnerRunID, ActivityID: row.OwnerActivityID}})
	default:
		s.wakeRelay()
	}
	return task.Type(row.Type), nil
}

// finishLocked looks at the node and the task under their locks, for what the
// result changes beside the task and for why it is not taken.
func (s *Store) finishLocked(ctx context.Context, doing string, c nodeapi.Caller, taskID string, r nodeapi.ReceivedResult) (stored task.Type, err error) {
	err = s.write(ctx, doing, func(ctx context.Context, u *unit) error {
		node, err := u.lockNode(ctx, c.NodeID)
		if err != nil {
			return err
		}
		t, err := u.LockTask(ctx, task.StaleGrace.Seconds(), taskID)
		if notFound(err) || err == nil && t.NodeID != c.NodeID {
			return errNoTask(taskID)
		}
		if err != nil || t.Result != nil && sameResult(*t.Result, r.Result) {
			return err
		}
		f := callerFence(c, t.OperationID, t.CorrelationID)
		if err := sameBody(f, t, r.Result); err != nil {
			return err
		}
		if err := u.apply(ctx, node, t, r.Result); err != nil {
			return err
		}
		p := s.finishParams(c, taskID, r)
		p.Open = []string{string(task.Pending), string(task.Dispatched), string(task.Running), string(task.Lost)}
		if !slices.Contains([]task.Status{task.Dispatched, task.Running}, t.Status) {
			p.Was = string(t.Status)
		}
		row, err := u.FinishTask(ctx, p)
		if notFound(err) {
			return refuse(errLeaseLost(taskID), taskEvent(f, audit.TaskLate, taskID, "", "",
				map[string]string{"type": string(t.Type), "task_status": string(t.Status), "status": string(r.Status)}))
		}
		stored = task.Type(row.Type)
		return err
	})
	return stored, err
}

// sameBody refuses the result of another body than the one that was signed for
// the task. Nothing of it is taken over: what the node ran is not what was asked
// for. The audit row keeps what it said, since the agent drops a result that is
// refused so; a destructive task is lost then, and an operator decides.
func sameBody(f activities.Fence, t sqlc.LockTaskRow, r task.Result) error {
	if r.EnvelopeSHA256 == "" || t.Envelope == nil {
		return nil
	}
	signed, err := trust.EnvelopeDigest(t.Envelope)
	if err != nil || signed == r.EnvelopeSHA256 {
		return err
	}
	refused := schema.NewError(schema.KindInvalidRequest, "task %s was signed with the body %s, and the result is of %s",
		t.TaskID, signed, r.EnvelopeSHA256).WithReason("envelope_mismatch")
	return refuse(refused, taskEvent(f, audit.TaskMismatched, t.TaskID, "", "", map[string]string{"type": string(t.Type),
		"signed": signed, "ran": r.EnvelopeSHA256, "status": string(r.Status), "code": string(r.Code), "message": r.Message}))
}

// finishParams keeps the output's tail beside the result, where no delivery
// reads it.
func (s *Store) finishParams(c nodeapi.Caller, taskID string, r nodeapi.ReceivedResult) sqlc.FinishTaskParams {
	p := sqlc.FinishTaskParams{Channel: s.resultChannel(), TaskID: taskID, NodeID: c.NodeID, Incarnation: c.Incarnation, LeaseEpoch: r.LeaseEpoch,
		Status: r.Status, OutputTail: tail(r.OutputTail), OtherTypes: []string{},
		Actor: nodeActor(c.NodeID), Action: audit.TaskFinished, Reason: cleanText(string(r.Code)), Message: cleanText(r.Message),
		AuditResult: map[task.Status]string{task.Succeeded: audit.Succeeded,
			task.Failed: audit.Failed, task.Canceled: audit.Canceled}[r.Status]}
	if by := r.Proof; by != nil {
		p.ResultSerial, p.ResultKey, p.ResultBody, p.ResultSignature = &by.Serial, by.Key, by.Body, by.Signature
	}
	r.OutputTail = ""
	p.Result = &r.Result
	return p
}

// tail is the end of a text as the database keeps it: at most
// task.MaxOutputTail bytes of UTF-8.
func tail(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
	if len(s) <= task.MaxOutputTail {
		return s
	}
	return strings.ToValidUTF8(s[len(s)-task.MaxOutputTail:], "")
}

// apply carries out what a result changes beside its task.
func (u *unit) apply(ctx context.Context, n sqlc.LockNodeRow, t sqlc.LockTaskRow, r task.Result) error {
	if t.Status == task.Lost {
		if err := u.tellBack(ctx, t); err != nil {
			return err
		}
	}
	return u.applyWork(ctx, n, t.Type, r)
}

// applyWork takes over what a workload.* task says about cordon and workloads.
func (u *unit) applyWork(ctx context.Context, n sqlc.LockNodeRow, kind task.Type, r task.Result) error {
	if r.Status != task.Succeeded {
		return nil
	}
	p := sqlc.SetNodeWorkParams{NodeID: n.NodeID, Cordoned: n.Cordoned, WorkloadsAt: optional(r.FinishedAt)}
	switch kind {
	case task.WorkloadCordon, task.WorkloadUncordon:
		var out task.CordonResult
		if err := json.Unmarshal(r.Output, &out); err != nil {
			return schema.Wrap(schema.KindInvalidRequest, err, "the output of %s is malformed", kind)
		}
		p.Cordoned, p.Workloads = out.Cordoned, out.Workloads
	case task.WorkloadDrain:
		var out task.DrainResult
		if err := json.Unmarshal(r.Output, &out); err != nil {
			return schema.Wrap(schema.KindInvalidRequest, err, "the output of %s is malformed", kind)
		}
		p.Workloads = slices.DeleteFunc(slices.Clone(n.Workloads), func(w task.Workload) bool {
			return slices.Contains(out.Stopped, w.Name)
		})
	default:
		return nil
	}
	p.Workloads = append([]task.Workload{}, p.Workloads...)
	return u.SetNodeWork(ctx, p)
}

// sameResult reports whether the stored result is the one that is posted again.
// The output is compared by value: the database may space it differently.
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

// callerFence names the operation a node works for, with the node as actor.
func callerFence(c nodeapi.Caller, operationID, correlationID string) activities.Fence {
	return activities.Fence{NodeID: c.NodeID, OperationID: operationID, Actor: nodeActor(c.NodeID), CorrelationID: correlationID}
}

func errNoTask(id string) error { return schema.Errorf(schema.KindNotFound, "no task %q", id) }

func errLeaseLost(taskID string) error {
	return schema.Errorf(schema.KindLeaseLost, "task %s is not yours any more", taskID)
}
