package store

import (
	"context"
	"slices"
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
	return s.returns.join(ctx, c.NodeID, s.markBack)
}

// markBack moves the nodes among the given ones that are offline to active, with an audit
// row each.
func (s *Inventory) markBack(ctx context.Context, nodeIDs []string) error {
	_, err := s.moveAll(ctx, lifecycle.ActionHeartbeatBack, nodeActor, nodeIDs, nil)
	return err
}

// moveBatch is how many nodes one transaction moves.
const moveBatch = 100

// MarkSilent moves active nodes without a heartbeat for olderThan to offline, with
// an audit row each, and returns their ids. Of concurrent callers, one moves a
// node. A node must have been active for olderThan to be silent, and the node API must
// have received requests for so long.
func (s *Inventory) MarkSilent(ctx context.Context, olderThan time.Duration) ([]string, error) {
	silent, err := query(ctx, s.db, "listing silent nodes", func(ctx context.Context) ([]string, error) {
		return s.db.q.SilentNodes(ctx, olderThan.Seconds())
	})
	var moved []string
	seconds := olderThan.Seconds()
	for batch := range slices.Chunk(silent, moveBatch) {
		ids, err := s.moveAll(ctx, lifecycle.ActionHeartbeatLost, func(string) string { return systemActor }, batch, &seconds)
		if err != nil {
			return moved, err
		}
		moved = append(moved, ids...)
	}
	return moved, err
}

// moveAll makes a move outside any operation of those nodes that may still make it, in one
// transaction, and returns their ids.
func (s *Inventory) moveAll(ctx context.Context, a lifecycle.Action, actor func(nodeID string) string, nodeIDs []string, silentSeconds *float64,
) ([]string, error) {
	move, _ := lifecycle.PlanOf(a, lifecycle.Options{})
	return write(ctx, s.db, string(a)+" of nodes", func(ctx context.Context, tx *tx) ([]string, error) {
		ids, err := tx.LockNodesIn(ctx, nodeIDs, move.From[0], silentSeconds)
		if err != nil || len(ids) == 0 {
			return nil, err
		}
		for _, id := range ids {
			e := nodeEvent(id, audit.ActionName(a), audit.Succeeded, map[string]string{"from": string(move.From[0]), "to": string(move.To)})
			e.Actor = actor(id)
			tx.note(e)
		}
		return ids, tx.SetStateOfNodes(ctx, move.To, ids)
	})
}

// ReceivingEvery is how often a process that serves the node API calls RecordReceiving.
const ReceivingEvery = 10 * time.Second

// RecordReceiving records that the replica of the node API receives requests. nodeCAs is the
// trust.BundleDigest of the node CAs that it accepts, "" if it has not read them.
func (s *Inventory) RecordReceiving(ctx context.Context, replicaID, nodeCAs string) error {
	return s.db.Call(ctx, "recording that the node API receives requests", func(ctx context.Context) error {
		return s.db.q.RecordReceiving(ctx, replicaID, nodeCAs)
	})
}
