package adminapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Bounds of the event stream.
const (
	// eventsEvery is how often the database is read while anybody listens.
	eventsEvery = time.Second
	// eventsOverlap is how far each reading goes back, since transactions do not
	// commit in the order of their times. What was sent before is not sent again.
	eventsOverlap = 5 * time.Second
	// eventsBatch bounds one reading, and what a resumed client may have missed.
	eventsBatch = 1000
	// eventsKeepAlive is how often a comment is sent on a stream without events.
	eventsKeepAlive = 15 * time.Second
	// eventsTime is how long one stream lasts; the client then connects again with
	// Last-Event-ID.
	eventsTime = 15 * time.Minute
	// streamBuffer is how many events a slow client may be behind before its stream
	// ends; maxStreams how many streams one subject may have on this replica.
	streamBuffer = 2 * eventsBatch
	maxStreams   = 16
)

// hub reads changes from the database once for all streams of this process.
type hub struct {
	views Views

	mu      sync.Mutex
	streams map[*stream]bool
	running bool
}

// stream is one client's.
type stream struct {
	subject string
	changes chan Change // closed when the client fell behind
}

func newHub(views Views) *hub { return &hub{views: views, streams: map[*stream]bool{}} }

// open adds a stream and starts the reader if it does not run.
func (h *hub) open(subject string) (*stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for s := range h.streams {
		if s.subject == subject {
			n++
		}
	}
	if n >= maxStreams {
		return nil, schema.NewError(schema.KindRateLimited, "%s has %d event streams open already", subject, n).WithReason("streams")
	}
	s := &stream{subject: subject, changes: make(chan Change, streamBuffer)}
	h.streams[s] = true
	if !h.running {
		h.running = true
		go h.run() // ends with the last stream
	}
	return s, nil
}

func (h *hub) close(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
}

// run reads changes until the last stream is closed.
func (h *hub) run() {
	seen := newWindow(time.Now().Add(eventsOverlap)) // nothing from before the first stream
	tick := time.NewTicker(eventsEvery)
	defer tick.Stop()
	for range tick.C {
		h.mu.Lock()
		h.running = len(h.streams) > 0
		running := h.running
		h.mu.Unlock()
		if !running {
			return
		}
		changes, err := h.views.Changes(context.Background(), seen.from(), eventsBatch)
		if err != nil {
			continue // the next reading covers this one's time
		}
		h.send(seen.fresh(changes))
	}
}

func (h *hub) send(changes []Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		for _, c := range changes {
			select {
			case s.changes <- c:
				continue
			default:
			}
			close(s.changes)
			delete(h.streams, s)
			break
		}
	}
}

// window remembers the changes of the last moments, so that overlapping readings
// give each of them once.
type window struct {
	newest time.Time
	sent   map[string]time.Time
}

func newWindow(start time.Time) *window { return &window{newest: start, sent: map[string]time.Time{}} }

func (w *window) from() time.Time { return w.newest.Add(-eventsOverlap) }

func (w *window) fresh(changes []Change) []Change {
	var out []Change
	for _, c := range changes {
		if _, again := w.sent[c.key()]; again {
			continue
		}
		w.sent[c.key()] = c.At
		if c.At.After(w.newest) {
			w.newest = c.At
		}
		out = append(out, c)
	}
	for key, at := range w.sent {
		if at.Before(w.from()) {
			delete(w.sent, key)
		}
	}
	return out
}

// key tells changes apart.
func (c Change) key() string {
	if c.Audit != nil {
		return c.Audit.Stream + " " + strconv.FormatInt(c.Audit.Seq, 10)
	}
	return c.Operation.OperationID + " " + strconv.FormatInt(c.At.UnixMicro(), 10)
}

// nodeID is the node that a change is about; "system" for none.
func (c Change) nodeID() string {
	if c.Audit != nil {
		return c.Audit.Stream
	}
	return c.Operation.NodeID
}

func (a *API) eventsEndpoint() Endpoint {
	return a.endpoint(trust.RoleViewer, edge.Route{Method: http.MethodGet, Path: adminPath + "/events", Success: []int{http.StatusOK},
		Timeout: eventsTime, Kinds: []schema.Kind{schema.KindNotFound, schema.KindRateLimited}}, a.streamEvents)
}

// streamEvents sends changes as server-sent events until the client leaves, falls
// behind or eventsTime is over. An event's id is its time; with Last-Event-ID the
// stream first repeats what changed since shortly before, so a client may get an
// event twice and misses none of the last eventsBatch.
func (a *API) streamEvents(w http.ResponseWriter, r *http.Request, by audit.Subject) error {
	p := readParams(r.URL)
	node, kinds := p.one("node"), closed(p, "kind", []string{wire.EventOperation, wire.EventAudit})
	if err := p.check(); err != nil {
		return err
	}
	f := eventFilter{kinds: kinds}
	var err error
	if node != "" {
		if f.nodeID, err = a.stream(r, node); err != nil {
			return err
		}
	}
	s, err := a.events.open(by.Actor)
	if err != nil {
		return err
	}
	defer a.events.close(s)
	missed, err := a.missed(r)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	out := eventWriter{w, http.NewResponseController(w)}
	if out.write(": connected\n\n") != nil {
		return nil
	}
	for _, c := range missed {
		if f.takes(c) && out.send(c) != nil {
			return nil
		}
	}
	out.follow(r.Context(), s, f)
	return nil
}

// missed are the changes since a resumed client's last event.
func (a *API) missed(r *http.Request) ([]Change, error) {
	id := r.Header.Get("Last-Event-ID")
	if id == "" {
		return nil, nil
	}
	micros, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, badField("Last-Event-ID", "must be the id of an event")
	}
	return a.cfg.Views.Changes(r.Context(), time.UnixMicro(micros).Add(-eventsOverlap), eventsBatch)
}

// eventFilter selects the events of one stream.
type eventFilter struct {
	nodeID string
	kinds  []string
}

func (f eventFilter) takes(c Change) bool {
	if f.nodeID != "" && c.nodeID() != f.nodeID {
		return false
	}
	if len(f.kinds) == 0 {
		return true
	}
	return strings.Contains(strings.Join(f.kinds, " "), c.kind())
}

func (c Change) kind() string {
	if c.Audit != nil {
		return wire.EventAudit
	}
	return wire.EventOperation
}

// eventWriter writes server-sent events.
type eventWriter struct {
	w http.ResponseWriter
	c *http.ResponseController
}

// follow writes the stream's events until it or the context ends.
func (e eventWriter) follow(ctx context.Context, s *stream, f eventFilter) {
	alive := time.NewTicker(eventsKeepAlive)
	defer alive.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-alive.C:
			err = e.write(": keep-alive\n\n")
		case c, ok := <-s.changes:
			switch {
			case !ok:
				return
			case f.takes(c):
				err = e.send(c)
			}
		}
		if err != nil {
			return // the client left
		}
	}
}

func (e eventWriter) send(c Change) error {
	var data any = c.Operation
	if c.Audit != nil {
		data = c.Audit
	}
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return e.write(fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", c.At.UnixMicro(), c.kind(), text))
}

func (e eventWriter) write(text string) error {
	if _, err := e.w.Write([]byte(text)); err != nil {
		return err
	}
	return e.c.Flush()
}
