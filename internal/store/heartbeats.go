package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// heartbeatMaxWait is the least time between two batches of this process, so it
	// bounds how long a heartbeat waits.
	heartbeatMaxWait = 200 * time.Millisecond
	// heartbeatMinWait is how long the first heartbeat of a batch waits at least.
	heartbeatMinWait = 10 * time.Millisecond
	// maxHeartbeats bounds a batch.
	maxHeartbeats = 512
)

// heartbeat is an item of a batch.
type heartbeat struct {
	id     trust.Identity
	cert   trust.CertFacts
	report wire.HeartbeatRequest
	// stored is set by the flush: the heartbeat, or a later one of the same
	// identity, is stored.
	stored bool
}

func newHeartbeats(s *Inventory) *batcher[heartbeat] {
	return &batcher[heartbeat]{minWait: heartbeatMinWait, maxWait: heartbeatMaxWait, maxSize: maxHeartbeats, flush: s.storeHeartbeats}
}

// Heartbeat stores the agent's report, as nodeapi.Heartbeats specifies: in a batch if
// the identity is valid and the node's row is unlocked, and otherwise alone, with
// the refusals and moves that this may cause.
func (s *Inventory) Heartbeat(ctx context.Context, id trust.Identity, cert trust.CertFacts, h wire.HeartbeatRequest) error {
	if h.At.IsZero() {
		h.At = time.Now()
	}
	b := &heartbeat{id: id, cert: cert, report: h}
	if err := s.heartbeats.Do(ctx, b); err != nil {
		return s.db.Interpret(err, "storing the heartbeat of node "+id.NodeID)
	}
	if b.stored {
		return nil
	}
	c, err := s.identities.Authenticate(ctx, id, cert)
	if err != nil {
		return err
	}
	return s.storeHeartbeat(ctx, c, h)
}

// storeHeartbeats stores a batch with one statement, which skips doubtful
// identities and locked rows. If the database rejects a value of one heartbeat,
// each is stored alone; if it is unavailable, all fail.
func (s *Inventory) storeHeartbeats(ctx context.Context, batch []*heartbeat) error {
	latest := latestByNode(batch)
	p, err := heartbeatColumns(latest)
	var nodes []string
	if err == nil {
		err = s.db.Exec(ctx, "storing heartbeats", func(ctx context.Context) (err error) {
			nodes, err = s.db.q.StoreHeartbeats(ctx, p)
			return err
		})
	}
	if schema.KindOf(err) == schema.KindServiceUnavailable {
		return err
	}
	for _, id := range nodes {
		if b := latest[id]; b != nil { // nil if the id was sent in another spelling
			b.stored = true
		}
	}
	for _, b := range batch {
		if l := latest[b.id.NodeID]; l != nil && l.id == b.id && l.cert.Serial == b.cert.Serial && l.cert.Fingerprint == b.cert.Fingerprint {
			b.stored = l.stored
		}
	}
	return nil
}

// latestByNode returns the last heartbeat of each node.
func latestByNode(batch []*heartbeat) map[string]*heartbeat {
	latest := make(map[string]*heartbeat, len(batch))
	for _, b := range batch {
		if schema.IsID(b.id.NodeID) {
			latest[b.id.NodeID] = b
		}
	}
	return latest
}

// heartbeatColumns turns heartbeats into one array per column.
func heartbeatColumns(latest map[string]*heartbeat) (sqlc.StoreHeartbeatsParams, error) {
	var p sqlc.StoreHeartbeatsParams
	for id, b := range latest {
		h := heartbeatParams(b.id.NodeID, b.id.Incarnation, b.report)
		workloads, err := json.Marshal(h.Workloads)
		if err != nil {
			return p, err
		}
		p.NodeIds, p.Incarnations = append(p.NodeIds, id), append(p.Incarnations, h.Incarnation)
		p.Serials, p.Fingerprints = append(p.Serials, b.cert.Serial), append(p.Fingerprints, b.cert.Fingerprint)
		p.AgentVersions, p.AgentPhases = append(p.AgentVersions, h.AgentVersion), append(p.AgentPhases, h.AgentPhase)
		p.BootIds, p.Uptimes = append(p.BootIds, h.BootID), append(p.Uptimes, h.UptimeSeconds)
		p.Cordons, p.Workloads = append(p.Cordons, h.Cordoned), append(p.Workloads, string(workloads))
		p.Ats = append(p.Ats, h.At)
	}
	return p, nil
}

func heartbeatParams(nodeID string, incarnation int64, h wire.HeartbeatRequest) sqlc.HeartbeatParams {
	return sqlc.HeartbeatParams{
		NodeID: nodeID, Incarnation: incarnation, AgentVersion: cleanText(h.AgentVersion), AgentPhase: cleanText(h.Phase),
		BootID: cleanText(h.BootID), UptimeSeconds: h.UptimeSeconds, Cordoned: h.Cordoned,
		Workloads: append([]task.Workload{}, h.Workloads...), At: h.At,
	}
}

// storeHeartbeat stores one heartbeat. The first one of an offline node moves it to
// active, with an audit row. One of an older incarnation is
// KindInvalidNodeIdentity.
func (s *Inventory) storeHeartbeat(ctx context.Context, c nodeapi.Caller, h wire.HeartbeatRequest) error {
	var state lifecycle.NodeState
	err := s.db.Exec(ctx, "storing the heartbeat of node "+c.NodeID, func(ctx context.Context) (err error) {
		state, err = s.db.q.Heartbeat(ctx, heartbeatParams(c.NodeID, c.Incarnation, h))
		if postgres.NotFound(err) {
			return errIdentity(schema.ReasonIdentityMismatch, "the heartbeat is for another incarnation of the node")
		}
		return err
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
	var silent, moved []string
	err := s.db.Read(ctx, "listing silent nodes", func(ctx context.Context) (err error) {
		silent, err = s.db.q.SilentNodes(ctx, olderThan.Seconds())
		return err
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
