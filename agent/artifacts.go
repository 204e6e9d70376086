package agent

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/host"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// artifactsEvery is the time between two readings of the artifacts.
const artifactsEvery = 10 * time.Minute

// artifacts returns what reads the artifacts of this machine. binary is the agent's.
func (c Config) artifacts(binary string) (func(context.Context) map[string]string, error) {
	files, err := host.ParseArtifacts(c.Artifacts)
	if err != nil {
		return nil, err
	}
	files[inventory.ArtifactCABundle] = c.CABundlePath
	if binary != "" {
		files[inventory.ArtifactAgentBinary] = binary
	}
	return (&host.Artifacts{Host: host.New("/", ""), Files: files}).Read, nil
}

// artifactReports reads the artifacts and decides which heartbeats carry them.
type artifactReports struct {
	read func(context.Context) map[string]string // nil for none
	mu   sync.Mutex
	now  map[string]string
	// sent is what the server has since sentAt. Only the poll loop uses it, and refusedAt, which
	// is when a server refused a heartbeat with artifacts.
	sent              map[string]string
	sentAt, refusedAt time.Time
}

// run reads the artifacts periodically until ctx ends, and calls changed if they differ.
func (r *artifactReports) run(ctx context.Context, changed func()) {
	for r.read != nil {
		found := r.read(ctx)
		if ctx.Err() != nil {
			return // what was read is incomplete
		}
		r.mu.Lock()
		differs := !maps.Equal(r.now, found)
		r.now = found
		r.mu.Unlock()
		if differs {
			changed()
		}
		if wait.Sleep(ctx, artifactsEvery) != nil {
			return
		}
	}
}

// due returns the artifacts for a heartbeat whose answer takes up to wait, nil for none.
func (r *artifactReports) due(now time.Time, wait time.Duration) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	refused := !r.refusedAt.IsZero() && now.Sub(r.refusedAt).Abs() < wire.ArtifactsInterval
	if refused || maps.Equal(r.now, r.sent) && now.Sub(r.sentAt).Abs()+wait < wire.ArtifactsInterval {
		return nil
	}
	return r.now
}

// answered records the answer to a poll with artifacts. retry is true if the heartbeat is sent again
// without them: servers before this version refuse unknown fields.
func (r *artifactReports) answered(sent map[string]string, at time.Time, err error) (retry bool) {
	switch {
	case sent == nil:
	case schema.KindOf(err) == schema.KindInvalidRequest:
		r.refusedAt = at
		return true
	case err == nil:
		r.sent, r.sentAt, r.refusedAt = sent, at, time.Time{}
	}
	return false
}
