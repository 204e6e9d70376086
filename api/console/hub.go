package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Bounds of the streams.
const (
	// maxStreams is the number of open pages of one process, and maxSubject that of one subject, so
	// that none can use them all.
	maxStreams = 512
	maxSubject = 128
	// noticeEvery is the least time between two notices on a stream.
	noticeEvery = readEvery
	// followAgain is the pause before the hub reads changes again after an error.
	followAgain = time.Second
	maxEvent    = 1 << 20 // bytes of a line of the event stream
)

// hub reads the changes of the admin API once for all open pages, and notifies the pages that
// show what changed.
type hub struct {
	cfg Config
	// name makes the revisions of each process different from those of others.
	name    string
	mu      sync.Mutex
	number  int64
	streams map[*stream]bool
	stopped bool
	// changed has the nodes that changed since the last notice; all is true if anything may have.
	changed map[string]bool
	all     bool
	// opened is signaled when there is a stream.
	opened chan struct{}
}

// stream is the stream of one page.
type stream struct {
	session Session
	watch   string
	// notices receives the newest revision.
	notices chan string
	// ended is closed when the stream must end.
	ended chan struct{}
}

func newHub(cfg Config) *hub {
	return &hub{cfg: cfg, name: schema.NewID()[28:], streams: map[*stream]bool{}, changed: map[string]bool{}, opened: make(chan struct{}, 1)}
}

// revision is that of the data which is read from now on.
func (h *hub) revision() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current()
}

func (h *hub) current() string { return fmt.Sprintf("%s.%d", h.name, h.number) }

// open adds a stream. A page with an older revision gets a notice at once.
func (h *hub) open(session Session, watch, revision string) (*stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.stopped:
		return nil, schema.NewError(schema.KindServiceUnavailable, "gpuaas-api is stopping").WithReason("stopping")
	case len(h.streams) >= maxStreams:
		return nil, schema.NewError(schema.KindServiceUnavailable, "%d pages are open; this page is read again without a stream", maxStreams).WithReason("streams")
	case h.streamsOf(session.Subject) >= maxSubject:
		return nil, schema.NewError(schema.KindServiceUnavailable, "%s has %d open pages; this page is read again without a stream", session.Subject, maxSubject).
			WithReason("streams")
	}
	s := &stream{session: session, watch: watch, notices: make(chan string, 1), ended: make(chan struct{})}
	h.streams[s] = true
	if revision != h.current() {
		s.notices <- h.current()
	}
	select {
	case h.opened <- struct{}{}:
	default: // it is signaled
	}
	return s, nil
}

// streamsOf counts the streams of a subject.
func (h *hub) streamsOf(subject string) (n int) {
	for s := range h.streams {
		if s.session.Subject == subject {
			n++
		}
	}
	return n
}

// close ends a stream. It does nothing if the stream has ended.
func (h *hub) close(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end(s)
}

func (h *hub) end(s *stream) {
	if h.streams[s] {
		delete(h.streams, s)
		close(s.ended)
	}
}

// endSession ends the streams of a session.
func (h *hub) endSession(id sessionID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		if s.session.ID == id {
			h.end(s)
		}
	}
}

// run follows the changes while there are streams. It ends the streams when ctx ends.
func (h *hub) run(ctx context.Context) error {
	defer h.stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.opened:
		}
		for h.active() && ctx.Err() == nil {
			if err := h.follow(ctx); err != nil && ctx.Err() == nil {
				h.cfg.Log.Warn("cannot follow the changes of the admin API; open pages are read again every 25 s", slog.Any("err", err))
			}
			pause(ctx, followAgain)
		}
	}
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (h *hub) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	for s := range h.streams {
		h.end(s)
	}
}

func (h *hub) active() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.streams) > 0
}

// follow reads changes until the stream of the admin API or the last page ends. Changes from
// before it may be missed, so it begins with a notice to every page.
func (h *hub) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(withSubject(ctx, service()))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://console"+apiPath+"/events", http.NoBody)
	if err != nil {
		return err
	}
	response, err := h.cfg.API.RoundTrip(r)
	if err != nil {
		return err
	}
	var notifying sync.WaitGroup
	defer notifying.Wait()
	defer func() { _ = response.Body.Close() }() // the stream has ended
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxForm)) // the status is an error already
		return errorOf(text)
	}
	h.note(watchAll)
	notifying.Go(func() { h.notify(ctx, cancel) })
	defer cancel()
	return h.read(response.Body)
}

// read notes the changes of a stream of events until it ends.
func (h *hub) read(events io.Reader) error {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, maxEvent)
	kind := ""
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case field == "event":
			kind = value
		case field == "data" && kind == wire.EventClosed:
			return nil
		case field == "data" && (kind == wire.EventOperation || kind == wire.EventAudit):
			var of struct {
				NodeID string `json:"node_id"`
				Stream string `json:"stream"`
			}
			if err := json.Unmarshal([]byte(value), &of); err != nil {
				return err
			}
			h.note(of.NodeID + of.Stream) // one of them is empty
		}
	}
	return lines.Err()
}

// note remembers that a node changed, or with watchAll that anything may have.
func (h *hub) note(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if node == watchAll {
		h.all = true
	}
	h.changed[node] = true
}

// notify sends notices until ctx ends. It calls done when there is no stream.
func (h *hub) notify(ctx context.Context, done func()) {
	for ctx.Err() == nil {
		if !h.publish() {
			done()
			return
		}
		pause(ctx, noticeEvery)
	}
}

// publish notifies the pages that show what changed since the last time. It reports whether there
// are pages.
func (h *hub) publish() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.changed) > 0 {
		h.number++
	}
	for s := range h.streams {
		if len(h.changed) == 0 || !h.all && s.watch != watchAll && !h.changed[s.watch] {
			continue
		}
		select {
		case <-s.notices: // an older notice that was not sent yet
		default:
		}
		s.notices <- h.current()
	}
	clear(h.changed)
	h.all = false
	return len(h.streams) > 0
}

// reconnect is the pause before a reconnect that a stream requests. Pages do not come back at the
// same time after a restart.
func reconnect() time.Duration {
	return time.Second + rand.N(9*time.Second) //nolint:gosec // it spreads load
}
