package adminapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// A stop ends the open streams, and no new one is opened.
func TestEventsEndAtTheStop(t *testing.T) {
	open, stop, stopped := newBackend().streams(t) //nolint:bodyclose // the cleanup closes it
	lines := bufio.NewScanner(open("").Body)       //nolint:bodyclose // the cleanup closes it
	require.True(t, lines.Scan())
	assert.Equal(t, "retry: 2000", lines.Text())
	require.True(t, lines.Scan())
	assert.Equal(t, ": connected", lines.Text())
	stop()
	for lines.Scan() {
		assert.Empty(t, lines.Text())
	}
	require.NoError(t, lines.Err(), "the stream ended regularly")
	require.NoError(t, <-stopped)
	assert.Equal(t, http.StatusServiceUnavailable, open("").StatusCode) //nolint:bodyclose // the cleanup closes it
}

// A subject that is revoked keeps no stream.
func TestEventsEndWithTheToken(t *testing.T) {
	d := newBackend()
	auth := &switchable{}
	auth.accept.Store(true)
	d.auth = auth
	open, stop, stopped := d.streams(t)      //nolint:bodyclose // the cleanup closes it
	lines := bufio.NewScanner(open("").Body) //nolint:bodyclose // the cleanup closes it
	require.True(t, lines.Scan())
	auth.accept.Store(false)
	d.mu.Lock()
	at := time.Now().UTC()
	d.changes = append(d.changes, adminapi.Change{Position: adminapi.Position{At: at, Stream: "system", Seq: 1}, Audit: &audit.Event{Stream: "system", Seq: 1, At: at}})
	d.mu.Unlock()
	var text []string
	for lines.Scan() {
		text = append(text, lines.Text())
	}
	require.NoError(t, lines.Err(), "the stream ended regularly")
	all := strings.Join(text, "\n")
	assert.Contains(t, all, "event: closed\ndata: {\"code\":\"unauthenticated\"")
	assert.NotContains(t, all, "event: audit")
	stop()
	require.NoError(t, <-stopped)
}

// switchable accepts every request or none.
type switchable struct{ accept atomic.Bool }

func (s *switchable) Authenticate(*http.Request) (adminapi.Subject, error) {
	if s.accept.Load() {
		return adminapi.Subject{Name: "vic", Role: trust.RoleViewer}, nil
	}
	return adminapi.Subject{}, schema.NewError(schema.KindUnauthenticated, "the bearer token is not accepted")
}

// streams serves the API, runs its event streams, and returns how to open one after
// an event and how to stop them.
func (d *backend) streams(t *testing.T) (open func(lastID string) *http.Response, stop func(), stopped chan error) {
	t.Helper()
	api := d.api()
	server := httptest.NewServer(api.Handler())
	t.Cleanup(server.Close)
	ctx, stop := context.WithCancel(t.Context())
	stopped = make(chan error, 1)
	go func() { stopped <- api.Run(ctx) }()
	return func(lastID string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/v1/admin/events", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Last-Event-ID", lastID)
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}, stop, stopped
}

// A stream sends every change once, even if more changes than one read returns are
// within the overlap of two reads.
func TestEventsOfABusyFleet(t *testing.T) {
	d := newBackend()
	start := time.Now().UTC().Truncate(time.Second)
	add := func(from, to int64) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for seq := from; seq < to; seq++ {
			p := adminapi.Position{At: start.Add(time.Duration(seq/700) * time.Millisecond), Stream: "system", Seq: seq}
			d.changes = append(d.changes, adminapi.Change{Position: p, Audit: &audit.Event{Stream: p.Stream, Seq: seq, At: p.At}})
		}
	}
	add(0, 1500)                                            // before the stream
	open, stop, stopped := d.streams(t)                     //nolint:bodyclose // the cleanup closes it
	live := open("")                                        //nolint:bodyclose // the cleanup closes it
	again := open(strconv.FormatInt(start.UnixMicro(), 10)) //nolint:bodyclose // the cleanup closes it
	next := func(lines *bufio.Scanner) (seq int64) {
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var e audit.Event
				require.NoError(t, json.Unmarshal([]byte(text), &e))
				return e.Seq
			}
		}
		require.Fail(t, "the stream ended")
		return 0
	}
	add(1500, 3000)
	lines := bufio.NewScanner(live.Body)
	for want := int64(1500); want < 3000; want++ {
		require.Equal(t, want, next(lines))
	}
	lines = bufio.NewScanner(again.Body)
	for seen := map[int64]bool{}; len(seen) < 3000; {
		seen[next(lines)] = true
	}
	stop()
	require.NoError(t, <-stopped)
}
