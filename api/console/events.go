package console

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Times of a stream.
const (
	// streamTime is how long one stream lasts; the page then reconnects.
	streamTime = 15 * time.Minute
	// keepAlive is the pause between two comments on a stream without notices. It is also the
	// longest time for which a session that another process ended keeps a stream.
	keepAlive = 15 * time.Second
	// checkToken is the pause between two checks that the token of a stream is accepted.
	checkToken = 2 * time.Second
	// sendTime is the time for one write.
	sendTime = 10 * time.Second
)

// events streams a notice for each change of what a page shows: its parameter view is the page's
// view.Watch, and rev its revision. The page then reads its content again.
func (c *Console) events(w http.ResponseWriter, r *http.Request) error {
	_, id, err := c.sessions.of(r)
	if err != nil {
		return c.fail(w, r, Subject{}, err)
	}
	session, err := c.sessions.find(r.Context(), id, false)
	if err != nil {
		return c.fail(w, r, Subject{}, err)
	}
	watch := r.URL.Query().Get("view")
	if watch != watchAll && !schema.IsID(watch) {
		return c.fail(w, r, Subject{}, schema.NewError(schema.KindInvalidRequest, "view must be all or the ID of a node").WithReason("bad_view"))
	}
	s, err := c.hub.open(session, watch, r.URL.Query().Get("rev"))
	if err != nil {
		w.Header().Set("Retry-After", fmt.Sprint(int(reconnect()/time.Second)+1))
		return c.fail(w, r, Subject{}, err)
	}
	defer c.hub.close(s)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // of proxies
	c.stream(w, r, s)
	return nil
}

// stream sends notices until the page is closed, its session ends, or the process stops.
func (c *Console) stream(w http.ResponseWriter, r *http.Request, s *stream) {
	out := http.NewResponseController(w)
	send := func(text string) bool {
		_ = out.SetWriteDeadline(time.Now().Add(sendTime)) // only a test's recorder does not support deadlines
		_, err := io.WriteString(w, text)
		return err == nil && out.Flush() == nil
	}
	connected := send(fmt.Sprintf("retry: %d\n: connected\n\n", reconnect().Milliseconds()))
	alive, check := time.NewTicker(keepAlive), time.NewTicker(checkToken)
	defer alive.Stop()
	defer check.Stop()
	for connected {
		select {
		case <-r.Context().Done():
			return
		case <-s.ended:
			return
		case revision := <-s.notices:
			connected = send("event: rev\ndata: " + revision + "\n\n")
		case <-alive.C:
			connected = c.sessionLasts(r, s) && send(": keep-alive\n\n")
		case <-check.C:
			connected = c.tokenLasts(s)
		}
	}
}

// sessionLasts reports whether the session of a stream has not ended. A failure to read it does
// not end the stream.
func (c *Console) sessionLasts(r *http.Request, s *stream) bool {
	_, err := c.sessions.check(r.Context(), s.session.ID, false)
	return schema.KindOf(err) != schema.KindUnauthenticated
}

// tokenLasts reports whether the token of a stream's session is accepted, without a query.
func (c *Console) tokenLasts(s *stream) bool {
	_, err := c.sessions.subject(s.session)
	return err == nil
}
