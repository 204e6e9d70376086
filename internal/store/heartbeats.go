package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// beatWindow is how long heartbeats are gathered after a batch of them was
	// stored: what one waits at most, and how often this process stores any.
	beatWindow = 200 * time.Millisecond
	// beatPause is how long the first of a batch waits for others at least.
	beatPause = 10 * time.Millisecond
	// maxBeats bounds what one statement stores.
	maxBeats = 512
)

// beat is one heartbeat on its way.
type beat struct {
	id   trust.Identity
	cert trust.CertFacts
	said wire.HeartbeatRequest
	// stored is set before the batch is done: the heartbeat, or a later one of
	// the same identity, is on record.
	stored bool
}

// newBeats gathers heartbeats.
func newBeats() *gathering[beat] {
	return &gathering[beat]{pause: beatPause, window: beatWindow, most: maxBeats}
}

// Heartbeat stores what the agent reports, as nodeapi.Store says: together with
// those of other nodes where the identity is clearly good and the node's row is
// free, and else by itself, with its refusals and moves.
func (s *Store) Heartbeat(ctx context.Context, id trust.Identity, cert trust.CertFacts, h wire.HeartbeatRequest) error {
	if h.At.IsZero() {
		h.At = time.Now()
	}
	b := &beat{id: id, cert: cert, said: h}
	if err := s.beats.bring(ctx, b, s.storeBeats); err != nil {
		return interpretError(err, s.address, "storing the heartbeat of node "+id.NodeID)
	}
	if b.stored {
		return nil
	}
	c, err := s.Authenticate(ctx, id, cert)
	if err != nil {
		return err
	}
	return s.heartbeat(ctx, c, h)
}

// storeBeats stores heartbeats with one statement, which takes those it can
// without a doubt and without a wait. A value that the database does not take is
// one heartbeat's fault: then each goes by itself. That the database is away is
// everybody's.
func (s *Store) storeBeats(ctx context.Context, beats []*beat) error {
	last := lastOfEach(beats)
	p, err := beatParams(last)
	var nodes []string
	if err == nil {
		err = s.read(ctx, "storing heartbeats", func(ctx context.Context) (err error) {
			nodes, err = s.q.StoreHeartbeats(ctx, p)
			return err
		})
	}
	if schema.KindOf(err) == schema.KindServiceUnavailable {
		return err
	}
	for _, id := range nodes {
		if b := last[id]; b != nil { // nil for an id that is spelled another way
			b.stored = true
		}
	}
	for _, b := range beats {
		if l := last[b.id.NodeID]; l != nil && l.id == b.id && l.cert.Serial == b.cert.Serial && l.cert.Fingerprint == b.cert.Fingerprint {
			b.stored = l.stored
		}
	}
	return nil
}

// lastOfEach returns the last heartbeat of each node, by its id.
func lastOfEach(beats []*beat) map[string]*beat {
	last := make(map[string]*beat, len(beats))
	for _, b := range beats {
		if schema.IsID(b.id.NodeID) {
			last[b.id.NodeID] = b
		}
	}
	return last
}

// beatParams is what the statement is told, a column each.
func beatParams(last map[string]*beat) (sqlc.StoreHeartbeatsParams, error) {
	var p sqlc.StoreHeartbeatsParams
	for id, b := range last {
		h := heartbeatParams(b.id.NodeID, b.id.Incarnation, b.said)
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

// heartbeatParams is what a heartbeat sets, as the database keeps it.
func heartbeatParams(nodeID string, incarnation int64, h wire.HeartbeatRequest) sqlc.HeartbeatParams {
	return sqlc.HeartbeatParams{
		NodeID: nodeID, Incarnation: incarnation, AgentVersion: cleanText(h.AgentVersion), AgentPhase: cleanText(h.Phase),
		BootID: cleanText(h.BootID), UptimeSeconds: h.UptimeSeconds, Cordoned: h.Cordoned,
		Workloads: append([]task.Workload{}, h.Workloads...), At: h.At,
	}
}

// heartbeat stores one heartbeat. The first one of an offline node brings it back
// to active, with an audit row. One of an older incarnation is
// KindInvalidNodeIdentity.
func (s *Store) heartbeat(ctx context.Context, c nodeapi.Caller, h wire.HeartbeatRequest) error {
	var state lifecycle.NodeState
	err := s.read(ctx, "storing the heartbeat of node "+c.NodeID, func(ctx context.Context) (err error) {
		state, err = s.q.Heartbeat(ctx, heartbeatParams(c.NodeID, c.Incarnation, h))
		if notFound(err) {
			return errIdentity(schema.ReasonIdentityMismatch, "the heartbeat is of another incarnation of the node")
		}
		return err
	})
	if err != nil || state != lifecycle.NodeOffline {
		return err
	}
	_, err = s.watch(ctx, c.NodeID, lifecycle.ActionHeartbeatBack, nodeActor(c.NodeID),
		func(context.Context, *unit) (bool, error) { return true, nil })
	return err
}
