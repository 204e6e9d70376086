package adminapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
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
	// eventsEvery is the pause between two readings of the database while there
	// is a stream.
	eventsEvery = time.Second
	// eventsOverlap is how far each reading goes back, because transactions do not
	// commit in the order of their times.
	eventsOverlap = 5 * time.Second
	// eventsBatch bounds one reading, and what a client that reconnects may have
	// missed.
	eventsBatch = 1000
	// eventsKeepAlive is the pause between two comments on a stream without events.
	eventsKeepAlive = 15 * time.Second
	// eventsTime is how long one stream lasts; the client then reconnects with
	// Last-Event-ID.
	eventsTime = 15 * time.Minute
	// eventsReconnect is the pause before a reconnect that the stream asks for.
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
	// since is where the next reading begins, less the overlap. sent contains the
	// changes of the overlap, which are not sent twice.
	since time.Time
	sent  map[string]time.Time
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
			if since, ok := e.due(); ok {
				changes, err := e.Views.Changes(ctx, since, eventsBatch)
				e.publish(ctx, changes, err)
			}
		}
	}
}

// due returns where the next reading begins; false without a stream.
func (e *events) due() (since time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.since.Add(-eventsOverlap), len(e.streams) > 0
}

// publish sends the changes that are new to the streams. A failed reading is
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
		if _, again := e.sent[c.key()]; again {
			continue
		}
		e.sent[c.key()] = c.At
		if c.At.After(e.since) {
			e.since = c.At
		}
		e.send(c)
	}
	for key, at := range e.sent {
		if at.Before(e.since.Add(-eventsOverlap)) {
			delete(e.sent, key)
		}
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

// open adds a stream.
func (e *events) open(s *stream) error {
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
	if len(e.streams) == 0 { // nothing from before the first stream
		e.since, e.sent, e.failing = time.Now().Add(eventsOverlap), map[string]time.Time{}, false
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

// key identifies a change.
func (c Change) key() string {
	if c.Audit != nil {
		return c.Audit.Stream + " " + strconv.FormatInt(c.Audit.Seq, 10)
	}
	return c.Operation.OperationID + " " + strconv.FormatInt(c.At.UnixMicro(), 10)
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
	text, _ := json.Marshal(data) //nolint:errchkjson // always encodes
	id := ""
	if !c.At.IsZero() {
		id = fmt.Sprintf("id: %d\n", c.At.UnixMicro())
	}
	return fmt.Sprintf("%sevent: %s\ndata: %s\n\n", id, kind, text)
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
// event. A client may receive an event twice and misses none of the last
// eventsBatch.
func (e *events) serve(c *call) (any, error) {
	q := e.query(c)
	s := &stream{subject: c.by.Actor, node: q.stream(), kinds: words(q, "kind", wire.EventOperation, wire.EventAudit)}
	if err := q.check(); err != nil {
		return nil, err
	}
	if err := e.open(s); err != nil {
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
	for _, m := range missed {
		connected = connected && (!s.selects(m) || send(m.text()))
	}
	alive := time.NewTicker(eventsKeepAlive)
	defer alive.Stop()
	for connected {
		select {
		case <-c.Context().Done():
			connected = false
		case <-alive.C:
			connected = send(": keep-alive\n\n")
		case change, open := <-s.changes:
			connected = open && send(change.text())
		}
	}
	return nil, nil //nolint:nilnil // the response was sent
}

// missed returns the changes since the last event of a client that reconnects.
func (e *events) missed(r *http.Request) ([]Change, error) {
	id := r.Header.Get("Last-Event-ID")
	if id == "" {
		return nil, nil
	}
	micros, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, badField("Last-Event-ID", "must be the id of an event")
	}
	return e.Views.Changes(r.Context(), time.UnixMicro(micros).Add(-eventsOverlap), eventsBatch)
}
