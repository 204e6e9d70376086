package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Heartbeat stores the state that a node reported, as nodeapi.Heartbeats specifies. The
// first heartbeat of an offline node moves it to active, with an audit row.
func (s *Inventory) Heartbeat(ctx context.Context, c nodeapi.Caller, h wire.Heartbeat) error {
	if h.At.IsZero() {
		h.At = time.Now()
	}
	state, err := query(ctx, s.db, "storing the heartbeat of node "+c.NodeID, func(ctx context.Context) (lifecycle.NodeState, error) {
		state, err := s.db.q.Heartbeat(ctx, sqlc.HeartbeatParams{
			NodeID: c.NodeID, Incarnation: c.Incarnation, AgentVersion: cleanText(h.AgentVersion),
			BootID: cleanText(h.BootID), AgentFault: cleanText(h.Fault), UptimeSeconds: h.UptimeSeconds, Cordoned: h.Cordoned,
			Driver: cleanText(h.Driver), DriverFault: cleanText(h.DriverFault),
			Workloads: append([]task.Workload{}, h.Workloads...), At: h.At,
		})
		return state, orMissing(err, errIdentity(schema.ReasonIdentityMismatch, "the heartbeat is for another incarnation of the node"))
	})
	if err != nil || state != lifecycle.NodeOffline {
		return err
	}
	_, err = s.moveIfDue(ctx, c.NodeID, lifecycle.ActionHeartbeatBack, nodeActor(c.NodeID),
		func(context.Context, *tx) (bool, error) { return true, nil })
	return err
}

// MarkSilent moves active nodes without a heartbeat for olderThan to offline, with
// an audit row each, and returns their ids. Of concurrent callers, one moves a
// node. A node must have been active for olderThan to be silent.
func (s *Inventory) MarkSilent(ctx context.Context, olderThan time.Duration) ([]string, error) {
	var moved []string
	silent, err := query(ctx, s.db, "listing silent nodes", func(ctx context.Context) ([]string, error) {
		return s.db.q.SilentNodes(ctx, olderThan.Seconds())
	})
	for _, id := range silent {
		ok, err := s.moveIfDue(ctx, id, lifecycle.ActionHeartbeatLost, systemActor, func(ctx context.Context, tx *tx) (bool, error) {
			return tx.StillSilent(ctx, id, olderThan.Seconds())
		})
		if err != nil {
			return moved, err
		}
		if ok {
			moved = append(moved, id)
		}
	}
	return moved, err
}

// moveIfDue makes a move outside any operation if it is still due under the node's
// lock, and reports whether it did. It leaves a node alone that changed its state
// meanwhile.
func (s *Inventory) moveIfDue(ctx context.Context, nodeID string, a lifecycle.Action, actor string,
	due func(context.Context, *tx) (bool, error),
) (moved bool, err error) {
	err = s.db.write(ctx, string(a)+" of node "+nodeID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNode(ctx, nodeID)
		if err != nil {
			return err
		}
		move, err := lifecycle.CheckStart(a, node.State)
		if err != nil {
			return nil //nolint:nilerr // an operation or another replica moved it
		}
		if ok, err := due(ctx, tx); err != nil || !ok {
			return err
		}
		e := nodeEvent(nodeID, audit.ActionName(a), audit.Succeeded, map[string]string{"from": string(node.State), "to": string(move.To)})
		e.Actor = actor
		tx.note(e)
		moved = true
		return tx.moveNode(ctx, node, move.To)
	})
	return moved && err == nil, err
}
