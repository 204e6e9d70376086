package store

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
)

const (
	// beatWindow is how long heartbeats are gathered after a batch of them was
	// stored: what one waits at most, and how often this process stores any.
	beatWindow = 200 * time.Millisecond
	// maxBeats bounds what one statement stores.
	maxBeats = 512
)

// beat is one heartbeat on its way.
type beat struct {
	id   schema.Identity
	cert schema.CertFacts
	said schema.HeartbeatRequest
	// stored is set before the batch is done: the heartbeat, or a later one of
	// the same identity, is on record.
	stored bool
}

// beatBatch are the heartbeats of one statement. The first one's caller leads:
// it waits for the others, stores them all and tells them.
type beatBatch struct {
	beats []*beat       // by arrival; the leader's once the batch is closed
	full  chan struct{} // closed when there is no room left
	done  chan struct{} // closed when err and every beat's stored are set
	err   error         // of all of them
}

// gathering makes batches of what comes within a window. Nothing runs between two
// batches, and a heartbeat that comes alone does not wait.
type gathering struct {
	mu   sync.Mutex
	open *beatBatch // takes more, nil for none
	last time.Time  // when the batch before was closed
}

// bring adds a heartbeat to a batch and returns once that was stored, or failed,
// as a whole.
func (g *gathering) bring(ctx context.Context, b *beat, store func(context.Context, []*beat) error) error {
	batch, wait, leads := g.join(b)
	if leads {
		g.lead(ctx, batch, wait, store)
		return batch.err
	}
	select {
	case <-batch.done:
		return batch.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join puts a heartbeat into the open batch, or into one of its own, which its
// caller leads after the wait.
func (g *gathering) join(b *beat) (batch *beatBatch, wait time.Duration, leads bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if leads = g.open == nil; leads {
		g.open = &beatBatch{full: make(chan struct{}), done: make(chan struct{})}
		wait = beatWindow - time.Since(g.last)
	}
	batch = g.open
	if batch.beats = append(batch.beats, b); len(batch.beats) == maxBeats {
		close(batch.full)
		g.open = nil
	}
	return batch, wait, leads
}

// lead waits until the batch is full or its window over, and stores it. The time
// that the leader has is everybody's, but its client's going away is not.
func (g *gathering) lead(ctx context.Context, batch *beatBatch, wait time.Duration, store func(context.Context, []*beat) error) {
	defer close(batch.done)
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-batch.full:
		}
	}
	own := context.WithoutCancel(ctx)
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		own, cancel = context.WithDeadline(own, end)
		defer cancel()
	}
	batch.err = store(own, g.close(batch))
}

// close lets nobody more into the batch and returns what it holds.
func (g *gathering) close(batch *beatBatch) []*beat {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == batch {
		g.open = nil
	}
	g.last = time.Now()
	return batch.beats
}

// Heartbeat stores what the agent reports, as nodeapi.Store says: together with
// those of other nodes where the identity is clearly good and the node's row is
// free, and else by itself, with its refusals and moves.
func (s *Store) Heartbeat(ctx context.Context, id schema.Identity, cert schema.CertFacts, h schema.HeartbeatRequest) error {
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
func heartbeatParams(nodeID string, incarnation int64, h schema.HeartbeatRequest) sqlc.HeartbeatParams {
	return sqlc.HeartbeatParams{
		NodeID: nodeID, Incarnation: incarnation, AgentVersion: cleanText(h.AgentVersion), AgentPhase: cleanText(h.Phase),
		BootID: cleanText(h.BootID), UptimeSeconds: h.UptimeSeconds, Cordoned: h.Cordoned,
		Workloads: append([]schema.Workload{}, h.Workloads...), At: h.At,
	}
}

// heartbeat stores one heartbeat. The first one of an offline node brings it back
// to active, with an audit row. One of an older incarnation is
// KindInvalidNodeIdentity.
func (s *Store) heartbeat(ctx context.Context, c schema.Caller, h schema.HeartbeatRequest) error {
	var state schema.NodeState
	err := s.read(ctx, "storing the heartbeat of node "+c.NodeID, func(ctx context.Context) (err error) {
		state, err = s.q.Heartbeat(ctx, heartbeatParams(c.NodeID, c.Incarnation, h))
		if notFound(err) {
			return errIdentity(schema.ReasonIdentityMismatch, "the heartbeat is of another incarnation of the node")
		}
		return err
	})
	if err != nil || state != schema.NodeOffline {
		return err
	}
	_, err = s.watch(ctx, c.NodeID, schema.ActionHeartbeatBack, nodeActor(c.NodeID),
		func(context.Context, *unit) (bool, error) { return true, nil })
	return err
}
