package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Heartbeat stores the state that a node reported, as nodeapi.Heartbeats specifies. The
// first heartbeat of an offline node moves it to active, with an audit row. The first one after
// silence and the first one with another boot ID are signals.
func (s *Inventory) Heartbeat(ctx context.Context, c nodeapi.Caller, h wire.Heartbeat) error {
	if h.At.IsZero() {
		h.At = time.Now()
	}
	p := sqlc.HeartbeatParams{
		NodeID: c.NodeID, Incarnation: c.Incarnation, AgentVersion: cleanText(h.AgentVersion),
		BootID: cleanText(h.BootID), AgentFault: cleanText(h.Fault), UptimeSeconds: h.UptimeSeconds, Cordoned: h.Cordoned,
		Driver: cleanText(h.Driver), DriverFault: cleanText(h.DriverFault),
		Workloads: append([]task.Workload{}, h.Workloads...), At: h.At,
	}
	doing := "storing the heartbeat of node " + c.NodeID
	row, err := query(ctx, s.db, doing, func(ctx context.Context) (sqlc.HeartbeatRow, error) { return s.db.q.Heartbeat(ctx, p) })
	if postgres.NotFound(err) {
		p.AnyBoot = true
		row, err = write(ctx, s.db, doing, func(ctx context.Context, tx *tx) (sqlc.HeartbeatRow, error) { return heartbeatOfBoot(ctx, tx, p) })
	}
	if err == nil && h.Health != nil {
		r := healthReport{Report: *h.Health, nodeID: c.NodeID, source: health.SourceAgent, incarnation: c.Incarnation, fenced: true}
		r.BootID = cmp.Or(r.BootID, p.BootID)
		_, err = storeHealth(ctx, s.db, r)
	}
	if err == nil && h.Artifacts != nil {
		err = storeArtifacts(ctx, s.db, c.NodeID, c.Incarnation, h.Artifacts)
	}
	if err != nil || row.State != lifecycle.NodeOffline && !row.Silent {
		return err
	}
	return s.returns.join(ctx, c.NodeID, s.markBack)
}

// heartbeatOfBoot stores a heartbeat that may have another boot ID than the one before, with a
// signal if it has. The first boot ID of a machine is no signal.
func heartbeatOfBoot(ctx context.Context, tx *tx, p sqlc.HeartbeatParams) (sqlc.HeartbeatRow, error) {
	node, err := tx.lockNode(ctx, p.NodeID)
	if schema.KindOf(err) == schema.KindNotFound || err == nil && node.Incarnation != p.Incarnation {
		err = errOtherIncarnation()
	}
	if err != nil {
		return sqlc.HeartbeatRow{}, err
	}
	before, err := tx.BootOf(ctx, p.NodeID)
	if err != nil {
		return sqlc.HeartbeatRow{}, err
	}
	if before != "" && p.BootID != "" && before != p.BootID {
		booted := health.Signal{Type: health.SignalBooted, Source: health.SourceHeartbeat, BootID: p.BootID, Detail: "the boot before was " + before}
		if err := recordLimited(ctx, tx, p.NodeID, []health.Signal{booted}); err != nil {
			return sqlc.HeartbeatRow{}, err
		}
	}
	return tx.Heartbeat(ctx, p)
}

// markBack moves the nodes among the given ones that are offline to active, with an audit
// row each, and records a signal for each that was silent.
func (s *Inventory) markBack(ctx context.Context, nodeIDs []string) error {
	move, _ := lifecycle.PlanOf(lifecycle.ActionHeartbeatBack, lifecycle.Options{})
	return s.db.write(ctx, "recording that nodes returned", func(ctx context.Context, tx *tx) error {
		nodes, err := tx.LockReturnedNodes(ctx, nodeIDs)
		if err != nil {
			return err
		}
		var offline, silent []string
		for _, n := range nodes {
			if n.SilentAt != nil {
				silent = append(silent, n.NodeID)
				if err := recordSignal(ctx, tx, health.Signal{Type: health.SignalReturned, Source: health.SourceHeartbeat, NodeID: n.NodeID,
					Detail: "it was silent since " + n.SilentAt.UTC().Format(time.RFC3339)}); err != nil {
					return err
				}
			}
			if n.State == move.From[0] {
				offline = append(offline, n.NodeID)
			}
		}
		if err := tx.SetSilent(ctx, false, silent); err != nil {
			return err
		}
		return moveAll(ctx, tx, move, nodeActor, offline)
	})
}

// moveBatch is how many nodes one transaction moves.
const moveBatch = 100

// MarkSilent moves active nodes that are silent, as lifecycle.Silent defines it, to offline, with an
// audit row each, and returns their ids. Each silence after a heartbeat is one signal, whatever the
// node's state. Of concurrent callers, one moves a node. The node API must have received requests for
// lifecycle.SilentAfter.
func (s *Inventory) MarkSilent(ctx context.Context) ([]string, error) {
	silent, err := query(ctx, s.db, "listing silent nodes", func(ctx context.Context) ([]string, error) {
		return s.db.q.SilentNodes(ctx, lifecycle.SilentAfter.Seconds())
	})
	var moved []string
	for batch := range slices.Chunk(silent, moveBatch) {
		ids, err := s.markSilent(ctx, batch)
		if err != nil {
			return moved, err
		}
		moved = append(moved, ids...)
	}
	return moved, err
}

// markSilent records those of the nodes that are still silent, and returns the ids of those that
// it moved.
func (s *Inventory) markSilent(ctx context.Context, nodeIDs []string) ([]string, error) {
	move, _ := lifecycle.PlanOf(lifecycle.ActionHeartbeatLost, lifecycle.Options{})
	return write(ctx, s.db, "recording silent nodes", func(ctx context.Context, tx *tx) ([]string, error) {
		nodes, err := tx.LockSilentNodes(ctx, nodeIDs, lifecycle.SilentAfter.Seconds())
		if err != nil {
			return nil, err
		}
		var active, silent []string
		for _, n := range nodes {
			if n.SilentAt == nil && n.LastHeartbeatAt != nil {
				silent = append(silent, n.NodeID)
				if err := recordSignal(ctx, tx, health.Signal{Type: health.SignalSilent, Source: health.SourceWatch, NodeID: n.NodeID,
					Detail: fmt.Sprintf("%s; its last heartbeat was at %s", n.State, n.LastHeartbeatAt.UTC().Format(time.RFC3339))}); err != nil {
					return nil, err
				}
			}
			if n.State == move.From[0] {
				active = append(active, n.NodeID)
			}
		}
		if err := tx.SetSilent(ctx, true, silent); err != nil {
			return nil, err
		}
		return active, moveAll(ctx, tx, move, func(string) string { return systemActor }, active)
	})
}

// moveAll makes a move outside any operation of the nodes, which the caller has locked.
func moveAll(ctx context.Context, tx *tx, move lifecycle.Plan, actor func(nodeID string) string, nodeIDs []string) error {
	for _, id := range nodeIDs {
		e := nodeEvent(id, audit.ActionName(move.Action), audit.Succeeded, map[string]string{"from": string(move.From[0]), "to": string(move.To)})
		e.Actor = actor(id)
		tx.note(e)
	}
	return tx.SetStateOfNodes(ctx, move.To, nodeIDs)
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
