package nodeapi

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

const (
	// refusalPause is the least time between two recordings of refused requests.
	refusalPause = time.Minute
	// maxRefusalNetworks bounds the networks of one recording. The requests of all others
	// are counted under otherNetworks.
	maxRefusalNetworks = 20
	otherNetworks      = "other networks"
)

// RefusedRequests are refused requests that no token, key or certificate authenticated,
// for the same reason and from the same network.
type RefusedRequests struct {
	// Action is the audit action, Reason the reason of the refusal.
	Action, Reason string
	// Network is the /24 or /64 of the clients, or the words "other networks".
	Network     string
	Requests    int64
	First, Last time.Time
	// RemoteAddr, PathNode and CorrelationID are those of the first request. PathNode is
	// "malformed" if the path contains no node id.
	RemoteAddr, PathNode, CorrelationID string
}

// refusals counts refused requests that any client can send, and records the counts: the
// first at once, and all that follow within a minute together. So the rows that clients
// cause do not depend on the number of their requests or addresses.
type refusals struct {
	cfg  *Config
	wake chan struct{}

	mu   sync.Mutex
	held map[refusalKey]*RefusedRequests
}

type refusalKey struct{ action, reason, network string }

func newRefusals(cfg *Config) *refusals {
	return &refusals{cfg: cfg, wake: make(chan struct{}, 1), held: map[refusalKey]*RefusedRequests{}}
}

// actionOf is the audit action of a refused request for a certificate.
func actionOf(method trust.IssueMethod) string {
	if method == trust.IssuedByRecover {
		return audit.RecoveryRefused
	}
	return audit.TokenRefused
}

// countRefusal counts a refusal, unless the store audits it: the store does that
// for a token that was verified, in the stream of its node.
func (f *refusals) countRefusal(r *http.Request, action string, err error) {
	e := schema.AsError(err)
	if !slices.Contains([]schema.Kind{schema.KindUnauthenticated, schema.KindInvalidRequest, schema.KindInvalidNodeIdentity}, e.Kind) {
		return
	}
	reason := cmp.Or(e.Reason, string(e.Kind))
	f.cfg.Metrics.UnauthenticatedRefused(reason)
	host, now := remoteHost(r), f.cfg.Now().UTC()
	f.mu.Lock()
	defer f.mu.Unlock()
	key := f.bounded(refusalKey{action, reason, networkOf(host)})
	if f.held[key] == nil {
		f.held[key] = &RefusedRequests{Action: action, Reason: reason, Network: key.network, First: now,
			RemoteAddr: host, PathNode: pathNode(r), CorrelationID: edge.CorrelationID(r.Context())}
	}
	f.held[key].Requests++
	f.held[key].Last = now
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// bounded returns the key that counts the requests of a key. The caller holds f.mu.
func (f *refusals) bounded(key refusalKey) refusalKey {
	if f.held[key] == nil && len(f.held) >= maxRefusalNetworks {
		key.network = otherNetworks
	}
	return key
}

// Run records the refused requests that no one authenticated until ctx ends, and then the
// rest.
func (f *refusals) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		select {
		case <-f.wake:
			f.record(ctx)
		case <-ctx.Done():
		}
		pause := time.NewTimer(refusalPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
	f.record(context.WithoutCancel(ctx))
	return nil
}

// record records what was counted. If that fails, it is counted again.
func (f *refusals) record(ctx context.Context) {
	f.mu.Lock()
	held := f.held
	f.held = map[refusalKey]*RefusedRequests{}
	f.mu.Unlock()
	if len(held) == 0 {
		return
	}
	refused := make([]RefusedRequests, 0, len(held))
	for _, r := range held {
		refused = append(refused, *r)
	}
	slices.SortFunc(refused, func(a, b RefusedRequests) int { return a.First.Compare(b.First) })
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := f.cfg.Identities.RecordRefusals(ctx, refused); err != nil {
		f.cfg.Log.Warn("cannot audit refused requests", slog.Any("err", err), slog.Duration("retry_in", refusalPause))
		f.restore(held)
	}
}

// restore adds counts that were not recorded to those since.
func (f *refusals) restore(held map[refusalKey]*RefusedRequests) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, r := range held {
		key = f.bounded(key)
		r.Network = key.network
		since := f.held[key]
		if since == nil {
			f.held[key] = r
			continue
		}
		requests, last := r.Requests+since.Requests, r.Last
		if since.Last.After(last) {
			last = since.Last
		}
		if r.First.Before(since.First) {
			*since = *r
		}
		since.Requests, since.Last = requests, last
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}
