package nodeapi

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The limits of one node, at this process. An agent stays far below them: it has one poll
// open, runs at most five tasks, each with a progress call every 20 s, and after an outage
// reports the results of at most wire.MaxHeldTasks tasks at once.
const (
	// maxNodePolls are the open polls of a node. The newest ends the oldest: the server
	// may not have noticed yet that the agent canceled it.
	maxNodePolls = 2
	// maxNodeInFlight are the other requests of a node in progress. More wait, up to
	// maxNodeWaiting of them and for up to inFlightWait.
	maxNodeInFlight = 4
	maxNodeWaiting  = 2 * wire.MaxHeldTasks
	inFlightWait    = 5 * time.Second
	// requestRate is the rate of a node's requests, per second; requestBurst is how many
	// may be sent at once.
	requestRate  = 5
	requestBurst = 200
	// rejectDelay is how long a request over the rate waits for its rejection.
	rejectDelay = 500 * time.Millisecond
	// byteRate is the rate of the bodies of a node's requests, per second.
	byteRate  = byteBurst / 60.0
	byteBurst = 32 << 20
)

// nodeLimits limits what one node can use of this process and of the database. Its keys are
// the URIs of verified certificates: a node and its incarnation. The node's row is read
// later, so a certificate of an earlier incarnation has the limits of that incarnation. One
// of the current incarnation that was replaced shares the node's limits: separate ones
// would grow with each renewal, and its use locks the identity.
type nodeLimits struct {
	cfg             *Config
	requests, bytes *limiter

	mu    sync.Mutex
	nodes map[string]*nodeUse
}

// nodeUse is a node's use of this process. It exists while the node has a request.
type nodeUse struct {
	users int           // requests, waiting ones included
	slots chan struct{} // capacity maxNodeInFlight
	// beginning has a value for each poll that begins, at most maxNodePolls.
	beginning chan struct{}
	polls     []chan struct{} // open polls, oldest first; each is closed to end the poll
}

func newNodeLimits(cfg *Config) *nodeLimits {
	return &nodeLimits{cfg: cfg, nodes: map[string]*nodeUse{},
		requests: newLimiter(requestRate, requestBurst, cfg.Now), bytes: newLimiter(byteRate, byteBurst, cfg.Now)}
}

// limitNode makes a handler reject requests over the limits of the node that its
// certificate proves.
func (a *API) limitNode(r edge.Route, poll bool) edge.Handler {
	h := r.Handle
	return func(w http.ResponseWriter, req *http.Request) error {
		p, err := a.verifyPeer(req)
		if err != nil {
			return err
		}
		node, size := p.id.URI(), int(req.ContentLength)
		if size < 0 {
			size = r.MaxBody
		}
		if err := a.cfg.limit(w, a.perNode.requests, node, "node_requests"); err != nil {
			edge.SampleRefusal(req.Context())
			delay(req.Context())
			return err
		}
		if wait, ok := a.perNode.bytes.takeN(node, size); !ok {
			a.cfg.Metrics.Limited("node_bytes")
			return rateLimited(w, wait, "node_bytes")
		}
		end, ok := a.perNode.admit(req.Context(), node, poll)
		if !ok {
			a.cfg.Metrics.Limited("node_in_flight")
			return rateLimited(w, time.Second, "node_in_flight")
		}
		end = sync.OnceFunc(end)
		defer end()
		if poll {
			s := &pollSlot{limits: a.perNode, node: node, begun: end, ended: func() {}}
			defer func() { s.ended() }()
			req = req.WithContext(context.WithValue(req.Context(), pollSlotKey{}, s))
		}
		return h(w, req)
	}
}

// limit counts a request for the key, and rejects it if the key has too many. name is the
// limit's in the error and the metrics.
func (c *Config) limit(w http.ResponseWriter, l *limiter, key, name string) error {
	if wait, ok := l.take(key); !ok {
		c.Metrics.Limited(name)
		return rateLimited(w, wait, name)
	}
	return nil
}

// rateLimited rejects a request and sets Retry-After.
func rateLimited(w http.ResponseWriter, wait time.Duration, limit string) error {
	seconds := int64((wait + time.Second - 1) / time.Second)
	w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	return schema.NewError(schema.KindRateLimited, "too many requests (%s limit); retry in %d s", limit, seconds).
		WithReason("over_" + limit)
}

// delay makes a node that ignores Retry-After slower.
func delay(ctx context.Context) {
	timer := time.NewTimer(rejectDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// pollSlot is a poll's place in the limits of its node. It begins while its body is read and
// its heartbeat is stored, so that a node cannot have many polls whose bodies do not arrive,
// or that use the database. It counts as open once its body is read.
type pollSlot struct {
	limits *nodeLimits
	node   string
	// begun ends the place among the polls that begin, ended the one among the open polls.
	begun, ended func()
}

type pollSlotKey struct{}

func pollSlotOf(r *http.Request) *pollSlot {
	s, _ := r.Context().Value(pollSlotKey{}).(*pollSlot)
	return s
}

// open makes the slot one of an open poll. The channel is closed when newer polls of the
// node end this one.
func (s *pollSlot) open() <-chan struct{} {
	var superseded chan struct{}
	superseded, s.ended = s.limits.openPoll(s.node)
	return superseded
}

// openPoll records an open poll until end is called, and ends the node's oldest one if it
// has too many.
func (l *nodeLimits) openPoll(node string) (superseded chan struct{}, end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u, superseded := l.use(node), make(chan struct{})
	if u.polls = append(u.polls, superseded); len(u.polls) > maxNodePolls {
		close(u.polls[0])
		u.polls = slices.Delete(u.polls, 0, 1)
	}
	return superseded, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if i := slices.Index(u.polls, superseded); i >= 0 {
			u.polls = slices.Delete(u.polls, i, i+1)
		}
		l.release(node, u)
	}
}

// admit waits until the node has fewer than maxNodeInFlight requests in progress, or fewer
// than maxNodePolls polls that begin. ok is false if too many wait, or one waited too
// long.
func (l *nodeLimits) admit(ctx context.Context, node string, poll bool) (end func(), ok bool) {
	l.mu.Lock()
	u := l.use(node)
	slots := u.slots
	if poll {
		slots = u.beginning
	}
	full := u.users > maxNodeInFlight+maxNodeWaiting+maxNodePolls
	l.mu.Unlock()
	release := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.release(node, u)
	}
	if !full {
		ctx, cancel := context.WithTimeout(ctx, inFlightWait)
		defer cancel()
		select {
		case slots <- struct{}{}:
			return func() {
				<-slots
				release()
			}, true
		case <-ctx.Done():
		}
	}
	release()
	return nil, false
}

// use returns the node's use with one more user.
func (l *nodeLimits) use(node string) *nodeUse {
	u := l.nodes[node]
	if u == nil {
		u = &nodeUse{slots: make(chan struct{}, maxNodeInFlight), beginning: make(chan struct{}, maxNodePolls)}
		l.nodes[node] = u
	}
	u.users++
	return u
}

func (l *nodeLimits) release(node string, u *nodeUse) {
	if u.users--; u.users == 0 {
		delete(l.nodes, node)
	}
}
