package console_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// clock is a time that a test moves.
type clock struct{ past atomic.Int64 }

func (c *clock) now() time.Time       { return readAt().Add(time.Duration(c.past.Load())) }
func (c *clock) pass(d time.Duration) { c.past.Add(int64(d)) }

// siteWithClock is a site over a fleet, with the session of an operator.
func siteWithClock(t *testing.T) (*site, *clock) {
	t.Helper()
	c := &clock{}
	s := newSite(t, func(cfg *console.Config) { cfg.Now = c.now })
	s.backend.fleet()
	return s.login(trust.RoleOperator), c
}

// reads counts the requests to a path.
func (b *backend) reads(path string) (n int) {
	for _, r := range b.sent(http.MethodGet) {
		if strings.HasPrefix(r.target, path) {
			n++
		}
	}
	return n
}

// A page does not wait for a slow read if there is recent data: it shows that with its age, and the
// read continues.
func TestSlowReadInBackground(t *testing.T) {
	s, c := siteWithClock(t)
	require.Contains(t, s.get("/console/").Body.String(), "gpu-17")
	release := make(chan struct{})
	s.backend.delay = func(path string) {
		if path == "/stuck" {
			<-release
		}
	}
	s.backend.answer("GET /stuck", wire.StuckList{})
	c.pass(5 * time.Second)
	old := s.get("/console/").Body.String()
	require.Contains(t, old, "gpu-17")
	require.Contains(t, old, "Read at <time datetime=\"2026-03-01 12:00:00Z\">")
	close(release)
	harness.Poll(t, func() bool { return s.backend.reads("/stuck") == 2 }, harness.Timeout, time.Millisecond, "the read continues")
	harness.Poll(t, func() bool { return strings.Contains(s.get("/console/").Body.String(), "Nothing needs attention") },
		harness.Timeout, time.Millisecond, "a later page has the new data")
}

// Data that is too old is never shown.
func TestOldDataIsReadAgain(t *testing.T) {
	s, c := siteWithClock(t)
	s.get("/console/")
	s.backend.answer("GET /stuck", wire.StuckList{})
	c.pass(time.Minute)
	require.Contains(t, s.get("/console/").Body.String(), "Nothing needs attention")
}

// A page with data from before a change has the revision of that data, so that its stream begins
// with a notice.
func TestRevisionOfOlderData(t *testing.T) {
	s, c := siteWithClock(t)
	revision := func() string {
		return regexp.MustCompile(`data-rev="([^"]*)"`).FindStringSubmatch(s.get("/console/").Body.String())[1]
	}
	first := revision()
	server := httptest.NewServer(s.handler)
	defer server.Close()
	lines, done := s.open(t, server, "all")
	defer done()                                              // before the server waits for the stream
	for rev := next(lines); rev == first; rev = next(lines) { // the first reader of changes begins with one
		require.NotEmpty(t, rev)
	}
	require.Equal(t, first, revision(), "the data is from before the change")
	c.pass(time.Minute)
	require.NotEqual(t, first, revision(), "the data was read again")
}

// A page whose time ends before its data is read is unavailable, and no internal error.
func TestPageNotInTime(t *testing.T) {
	s, _ := siteWithClock(t)
	release := make(chan struct{})
	defer close(release)
	s.backend.delay = func(string) { <-release }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/console/operations", http.NoBody)
	r.Host = host
	r.AddCookie(s.cookie)
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "Next: <code>gpuaas stuck</code>")
}
