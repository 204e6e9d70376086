package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Progress extends the lease, or returns KindLeaseLost, as nodeapi.Tasks specifies. A
// requeued or lost task that continues leaves an audit row.
func (s *Tasks) Progress(ctx context.Context, c nodeapi.Caller, taskID string, p task.Progress, lease time.Duration,
) (nodeapi.ProgressResult, error) {
	if !schema.IsID(taskID) {
		return nodeapi.ProgressResult{}, errNoTask(taskID)
	}
	extended, err := write(ctx, s.db, "recording progress of task "+taskID, func(ctx context.Context, tx *tx) (sqlc.ExtendLeaseRow, error) {
		extended, err := tx.ExtendLease(ctx, sqlc.ExtendLeaseParams{
			TaskID: taskID, NodeID: c.NodeID, Incarnation: c.Incarnation, LeaseEpoch: p.LeaseEpoch,
			Progress: cleanText(p.Message), LeaseSeconds: lease.Seconds(), HeartbeatSeconds: task.HeartbeatInterval.Seconds(),
		})
		if postgres.NotFound(err) {
			if _, err := tx.lockTask(ctx, taskID, &c.NodeID); err != nil {
				return extended, err // no such task of the node
			}
			return extended, errLeaseLost(taskID)
		}
		if err != nil {
			return extended, err
		}
		return extended, noteReturned(ctx, tx, c, taskID, extended)
	})
	if err != nil {
		return nodeapi.ProgressResult{}, err
	}
	result := nodeapi.ProgressResult{Response: wire.ProgressResponse{
		Lease:  task.Lease{Epoch: p.LeaseEpoch, ExpiresAt: extended.LeaseUntil},
		Cancel: extended.Cancel, Paused: extended.Paused}}
	if extended.HeartbeatDue && extended.OwnerWorkflowID != "" {
		result.Owner = &task.Owner{WorkflowID: extended.OwnerWorkflowID, RunID: extended.OwnerRunID, ActivityID: extended.OwnerActivityID}
	}
	return result, nil
}

// noteReturned audits that a requeued or lost task continues. The operation of a
// lost task gets a signal.
func noteReturned(ctx context.Context, tx *tx, c nodeapi.Caller, taskID string, r sqlc.ExtendLeaseRow) error {
	if was := task.Status(r.Was); was == task.Dispatched || was == task.Running {
		return nil
	}
	tx.note(taskEvent(nodeFence(c, r.OperationID, r.CorrelationID), audit.TaskReturned, taskID,
		audit.Succeeded, "", map[string]string{"type": string(r.Type), "was": r.Was}))
	if r.Was != string(task.Lost) {
		return nil
	}
	if err := tx.DropResultMessage(ctx, &taskID); err != nil {
		return err
	}
	return tx.enqueueSignal(ctx, r.OwnerWorkflowID, returnedEvent(c.NodeID, c.Incarnation, r.Step, r.OperationID))
}

// returnedEvent signals an operation that a lost task of it runs or ended.
func returnedEvent(nodeID string, incarnation int64, step, operationID string) lifecycle.AgentEvent {
	return lifecycle.AgentEvent{Event: lifecycle.EventTaskReturned, NodeID: nodeID, Incarnation: incarnation,
		Step: step, OperationID: operationID}
}

// SetActivityState stores the state of the task's activity, as nodeapi.Tasks
// specifies.
func (s *Tasks) SetActivityState(ctx context.Context, taskID string, a nodeapi.ActivityState) error {
	return s.db.Call(ctx, "recording the state of the activity of task "+taskID, func(ctx context.Context) error {
		if !schema.IsID(taskID) {
			return errNoTask(taskID)
		}
		return s.db.q.SetActivityState(ctx, a.Cancel, a.Paused, taskID)
	})
}

// lockTask locks the task's node and then the task. KindNotFound if there is no
// such task, or if it belongs to another node than nodeID.
func (tx *tx) lockTask(ctx context.Context, taskID string, nodeID *string) (sqlc.LockTaskRow, error) {
	if !schema.IsID(taskID) {
		return sqlc.LockTaskRow{}, errNoTask(taskID)
	}
	t, err := tx.LockTask(ctx, task.StaleGrace.Seconds(), taskID, nodeID)
	return t, orMissing(err, errNoTask(taskID))
}

// nodeFence names the operation of a node's task, with the node as actor.
func nodeFence(c nodeapi.Caller, operationID, correlationID string) activities.Fence {
	return activities.Fence{NodeID: c.NodeID, OperationID: operationID, Actor: nodeActor(c.NodeID), CorrelationID: correlationID}
}

func errNoTask(id string) error { return schema.NewError(schema.KindNotFound, "no task %q", id) }

func errLeaseLost(taskID string) error {
	return schema.NewError(schema.KindLeaseLost, "the lease on task %s was lost", taskID)
}
