package adminapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Bounds of the event stream.
const (
	// eventsEvery is the pause between two reads of the database while there is a
	// stream.
	eventsEvery = time.Second
	// eventsBatch is the number of changes that one call of Trail.Changes returns.
	eventsBatch = 1000
	// eventsKeepAlive is the pause between two comments on a stream without events.
	// It is also the longest time for which a revoked subject keeps its stream.
	eventsKeepAlive = 15 * time.Second
	// eventsTime is how long one stream lasts; the client then reconnects with
	// Last-Event-ID.
	eventsTime = 15 * time.Minute
	// eventsReconnect is the pause before a reconnect that the stream requests.
	eventsReconnect = 2 * time.Second
	// streamBuffer is the number of events that a slow client may be behind before
	// its stream ends; maxStreams is the limit of streams per subject and replica.
	streamBuffer = 2 * eventsBatch
	maxStreams   = 16
)

// events serves the event streams. It reads changes from the database once for all
// streams of this process.
type events struct {
	base
	mu      sync.Mutex
	streams map[*stream]bool
	stopped bool
	// reading is locked during a read. newest is the time of the newest change, zero
	// before the first one; sent contains the changes of the overlap before it, which
	// are not sent twice.
	reading sync.Mutex
	newest  time.Time
	sent    map[Position]bool
	// failing is true while the database cannot be read.
	failing bool
}

// stream is the stream of one client, which receives only the changes of its node
// and of its kinds, if it names any.
type stream struct {
	subject, node string
	kinds         []string
	changes       chan Change // closed when the stream ends
}

// run reads changes while there are streams. It ends the streams when ctx ends.
func (e *events) run(ctx context.Context) error {
	tick := time.NewTicker(eventsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			e.stop()
			return nil
		case <-tick.C:
			if e.active() {
				e.reading.Lock()
				e.read(ctx)
				e.reading.Unlock()
			}
		}
	}
}

// active reports whether there is a stream.
func (e *events) active() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.streams) > 0
}

// read sends the changes since the newest one, less the overlap. All times are the
// database's. The caller holds reading.
func (e *events) read(ctx context.Context) {
	after := before(e.newest)
	for more := true; more; {
		changes, err := e.Trail.Changes(ctx, after, eventsBatch)
		e.publish(ctx, changes, err)
		if more = err == nil && len(changes) == eventsBatch; more {
			after = changes[eventsBatch-1].Position
		}
	}
	maps.DeleteFunc(e.sent, func(p Position, _ bool) bool { return p.At.Before(before(e.newest).At) })
}

// before returns the position of the overlap before a change; zero for zero.
func before(t time.Time) Position {
	if t.IsZero() {
		return Position{}
	}
	return Position{At: t.Add(-ChangesOverlap)}
}

// publish sends the changes that are new to the streams. A failed read is
// logged and sent as an outage once; the next successful one covers its time.
func (e *events) publish(ctx context.Context, changes []Change, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch failed := err != nil; {
	case ctx.Err() != nil:
		return
	case failed && !e.failing:
		e.Log.Warn("cannot read changes; event streams are delayed", slog.Any("err", err), slog.Duration("retry_every", eventsEvery))
		e.send(Change{})
	case !failed && e.failing:
		e.Log.Info("event streams are up to date again")
	}
	e.failing = err != nil
	for _, c := range changes {
		if e.sent[c.Position] {
			continue
		}
		e.sent[c.Position] = true
		if c.At.After(e.newest) {
			e.newest = c.At
		}
		e.send(c)
	}
}

// send adds a change to every stream and ends those that are too far behind.
func (e *events) send(c Change) {
	for s := range e.streams {
		if !s.selects(c) {
			continue
		}
		select {
		case s.changes <- c:
		default:
			e.end(s)
		}
	}
}

// end ends a stream. It does nothing if the stream has ended.
func (e *events) end(s *stream) {
	if e.streams[s] {
		delete(e.streams, s)
		close(s.changes)
	}
}

// stop ends all streams.
func (e *events) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	for s := range e.streams {
		e.end(s)
	}
}

// open adds a stream. It reads first, so that the stream begins with the changes
// that no read has returned yet.
func (e *events) open(ctx context.Context, s *stream) error {
	e.reading.Lock()
	defer e.reading.Unlock()
	if !e.active() {
		e.newest, e.sent, e.failing = time.Time{}, map[Position]bool{}, false
	}
	e.read(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return schema.NewError(schema.KindServiceUnavailable, "gpuaas-api is stopping").WithReason("stopping")
	}
	n := 0
	for other := range e.streams {
		if other.subject == s.subject {
			n++
		}
	}
	if n >= maxStreams {
		return schema.NewError(schema.KindRateLimited, "%s has %d event streams open", s.subject, n).WithReason("streams")
	}
	s.changes = make(chan Change, streamBuffer)
	e.streams[s] = true
	if e.failing {
		s.changes <- Change{}
	}
	return nil
}

func (e *events) close(s *stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end(s)
}

// event returns the change as an event; a change without content is an outage.
func (c Change) event() (kind, node string, data any) {
	switch {
	case c.Audit != nil:
		return wire.EventAudit, c.Audit.Stream, c.Audit
	case c.Operation != nil:
		return wire.EventOperation, c.Operation.NodeID, c.Operation
	}
	return wire.EventOutage, "", schema.ErrorDetail{Code: schema.KindServiceUnavailable,
		Message: "the database is unavailable; the stream continues when it is available again"}
}

// text returns the change as a server-sent event. An outage has no id, so that a
// client that reconnects names its last real event.
func (c Change) text() string {
	kind, _, data := c.event()
	if c.At.IsZero() {
		return eventText(kind, data)
	}
	return fmt.Sprintf("id: %d\n", c.At.UnixMicro()) + eventText(kind, data)
}

func eventText(kind string, data any) string {
	text, _ := json.Marshal(data) //nolint:errchkjson // always encodes
	return fmt.Sprintf("event: %s\ndata: %s\n\n", kind, text)
}

// selects reports whether the client receives a change. Every client receives an
// outage.
func (s *stream) selects(c Change) bool {
	kind, node, _ := c.event()
	return kind == wire.EventOutage || (s.node == "" || s.node == node) && (len(s.kinds) == 0 || slices.Contains(s.kinds, kind))
}

// serve sends changes as server-sent events until the client disconnects, is too
// far behind, or eventsTime has passed. The id of an event is its time; with
// Last-Event-ID the stream first repeats the changes since shortly before that
// event. A client may receive an event twice and misses none.
func (e *events) serve(c *call) (any, error) {
	q := e.query(c)
	s := &stream{subject: c.by.Actor, node: q.stream(), kinds: words(q, "kind", wire.EventOperation, wire.EventAudit)}
	if err := q.check(); err != nil {
		return nil, err
	}
	if err := e.open(c.Context(), s); err != nil {
		return nil, err
	}
	defer e.close(s)
	missed, err := e.missed(c.Request)
	if err != nil {
		return nil, err
	}
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(c.w)
	send := func(text string) bool {
		_, err := io.WriteString(c.w, text)
		return err == nil && out.Flush() == nil
	}
	connected := send(fmt.Sprintf("retry: %d\n: connected\n\n", eventsReconnect.Milliseconds()))
	for connected && len(missed) > 0 {
		for _, m := range missed {
			connected = connected && (!s.selects(m) || send(m.text()))
		}
		if len(missed) < eventsBatch {
			break
		}
		if missed, err = e.Trail.Changes(c.Context(), missed[eventsBatch-1].Position, eventsBatch); err != nil {
			connected = false // the client reconnects with the id of the last event
		}
	}
	if connected {
		e.follow(c, s, send)
	}
	return nil, nil //nolint:nilnil // the response was sent
}

// follow sends the changes of a stream until it ends. It ends the stream of a subject
// whose token or role was revoked.
func (e *events) follow(c *call, s *stream, send func(text string) bool) {
	alive := time.NewTicker(eventsKeepAlive)
	defer alive.Stop()
	for connected := true; connected; {
		text, open := ": keep-alive\n\n", true
		select {
		case <-c.Context().Done():
			return
		case <-alive.C:
		case change, more := <-s.changes:
			if open = more; open {
				text = change.text()
			}
		}
		if err := c.authorize(); err != nil {
			send(eventText(wire.EventClosed, schema.AsError(err).Body(c.by.CorrelationID).Error))
			return
		}
		connected = open && send(text)
	}
}

// missed returns the first changes since the last event of a client that
// reconnects.
func (e *events) missed(r *http.Request) ([]Change, error) {
	id := r.Header.Get("Last-Event-ID")
	if id == "" {
		return nil, nil
	}
	micros, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, badField("Last-Event-ID", "must be the id of an event")
	}
	return e.Trail.Changes(r.Context(), before(time.UnixMicro(micros)), eventsBatch)
}
