package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
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
// nodeapi.Store specifies. It skips a task whose envelope expired, whose cancel
// was requested or whose operation no longer holds the node.
func (s *Tasks) NextTask(ctx context.Context, c nodeapi.Caller, poll nodeapi.PollRequest, lease time.Duration) (*wire.TaskOffer, error) {
	var offer *wire.TaskOffer
	err := s.db.Exec(ctx, "dispatching a task to node "+c.NodeID, func(ctx context.Context) error {
		t, err := s.db.q.NextTask(ctx, sqlc.NextTaskParams{NodeID: c.NodeID, Incarnation: c.Incarnation,
			LeaseSeconds: lease.Seconds(), Have: append([]string{}, poll.Have...), Holder: cleanText(poll.Holder),
			PollNumber: poll.Number, MaxDispatches: maxDispatches, Actor: nodeActor(c.NodeID), Action: audit.TaskDispatched,
		})
		if postgres.NotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		offer = &wire.TaskOffer{TaskID: t.TaskID, Envelope: t.Envelope, ServerTime: t.ServerTime,
			Lease: task.Lease{Epoch: t.LeaseEpoch, ExpiresAt: t.LeaseUntil}, Type: task.Type(t.Type), CreatedAt: t.CreatedAt,
			NodeState: lifecycle.NodeState(t.NodeState), OpSeq: t.NodeOpSeq}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return offer, nil
}

// TaskNews returns the tasks in have that were canceled or whose cancel was
// requested, as nodeapi.Store specifies.
func (s *Tasks) TaskNews(ctx context.Context, c nodeapi.Caller, have []string) (canceled []string, err error) {
	err = s.db.Read(ctx, "reading the cancellations of node "+c.NodeID, func(ctx context.Context) (err error) {
		canceled, err = s.db.q.TaskNews(ctx, c.NodeID, have)
		return err
	})
	return canceled, err
}
