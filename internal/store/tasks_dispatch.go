package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxDispatches is how often a task is dispatched at once after a lost response;
// after that its lease expires.
const maxDispatches = 4

// NextTask dispatches the node's next task under a new lease, or returns nil, as
// nodeapi.Tasks specifies. It skips a task whose envelope expired, whose cancel
// was requested or whose operation no longer holds the node.
func (s *Tasks) NextTask(ctx context.Context, c nodeapi.Caller, poll wire.PollRequest, lease time.Duration, keys []string) (*nodeapi.Dispatch, error) {
	return query(ctx, s.db, "dispatching a task to node "+c.NodeID, func(ctx context.Context) (*nodeapi.Dispatch, error) {
		t, err := s.db.q.NextTask(ctx, sqlc.NextTaskParams{NodeID: c.NodeID, Incarnation: c.Incarnation,
			LeaseSeconds: lease.Seconds(), Have: append([]string{}, poll.HeldTasks...), Keys: keys, Holder: cleanText(poll.AgentSession),
			PollNumber: poll.PollSeq, MaxDispatches: maxDispatches, Actor: nodeActor(c.NodeID), Action: audit.TaskDispatched,
		})
		if err != nil {
			return nil, orMissing(err, nil)
		}
		return &nodeapi.Dispatch{
			TaskOffer: wire.TaskOffer{TaskID: t.TaskID, Envelope: t.Envelope, ServerTime: t.ServerTime,
				Lease: task.Lease{Epoch: t.LeaseEpoch, ExpiresAt: t.LeaseUntil}},
			Type: task.Type(t.Type), CreatedAt: t.CreatedAt, NodeState: lifecycle.NodeState(t.NodeState), OpSeq: t.NodeOpSeq,
		}, nil
	})
}

// CanceledTasks returns the held tasks that were canceled or whose cancel was
// requested, as nodeapi.Tasks specifies.
func (s *Tasks) CanceledTasks(ctx context.Context, c nodeapi.Caller, held []string) ([]string, error) {
	return query(ctx, s.db, "reading the cancellations of node "+c.NodeID, func(ctx context.Context) ([]string, error) {
		return s.db.q.CanceledTasks(ctx, c.NodeID, held)
	})
}
