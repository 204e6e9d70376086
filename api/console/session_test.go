package console_test

import (
	"crypto/sha256"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/api/console/consoletest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// A request with two cookies of the session's name has no session: another site of the same host may
// have set one of them.
func TestTwoCookies(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleViewer)
	s.backend.answer("GET /nodes", wire.NodeList{})
	own := s.cookie.Name + "=" + s.cookie.Value
	s.cookie = nil
	require.Equal(t, http.StatusOK, s.get("/console/nodes", "Cookie", own).Code)
	require.Equal(t, http.StatusSeeOther, s.get("/console/nodes", "Cookie", own+"; gpuaas_console=planted").Code)
}

// A token that another subject has now ends the sessions that began with it.
func TestTokenOfAnotherSubject(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.answer("GET /nodes", wire.NodeList{})
	require.Equal(t, http.StatusOK, s.get("/console/nodes").Code)
	s.backend.mu.Lock()
	s.backend.tokens[sha256.Sum256([]byte(tokenOf(trust.RoleOperator)))] = console.Subject{Name: "operator-2", Role: trust.RoleOperator}
	s.backend.mu.Unlock()
	require.Equal(t, http.StatusSeeOther, s.get("/console/nodes").Code)
}

// A session that another process ended ends here, too, as soon as it is read again.
func TestSessionEndedElsewhere(t *testing.T) {
	t.Parallel()
	c, sessions := &clock{}, &consoletest.Sessions{}
	s := newSite(t, func(cfg *console.Config) { cfg.Now, cfg.Sessions = c.now, sessions }).login(trust.RoleViewer)
	s.backend.answer("GET /nodes", wire.NodeList{})
	require.Equal(t, http.StatusOK, s.get("/console/nodes").Code)
	require.NoError(t, sessions.DeleteSession(t.Context(), sha256.Sum256([]byte(s.cookie.Value))))
	c.pass(3 * time.Second)
	require.Equal(t, http.StatusSeeOther, s.get("/console/nodes").Code)
}

// No page sends its address to another site, shares its window, or can be loaded by another site, and only
// static files are kept by the browser.
func TestPagesStayPrivate(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleViewer)
	s.backend.answer("GET /nodes", wire.NodeList{})
	h := s.get("/console/nodes").Header()
	for name, value := range map[string]string{"Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store", "Vary": "Gpuaas-Region"} {
		require.Equal(t, value, h.Get(name), name)
	}
	require.Contains(t, s.get("/console/static/1/console.css").Header().Get("Cache-Control"), "immutable")
}

// A page of an unavailable service says when to try again.
func TestUnavailablePage(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleViewer)
	s.backend.answer("GET /nodes", schema.NewError(schema.KindServiceUnavailable, "the database does not respond"))
	require.Equal(t, "5", s.get("/console/nodes").Header().Get("Retry-After"))
}

// recorder keeps the requests of the admin API.
type recorder struct {
	http.RoundTripper

	mu       sync.Mutex
	requests []*http.Request
}

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.requests = append(r.requests, req)
	r.mu.Unlock()
	return r.RoundTripper.RoundTrip(req)
}

// A change has the address of the browser and the correlation ID of the form, so that its log line and audit
// event belong to that.
func TestChangeBelongsToItsForm(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	s := newSite(t, func(c *console.Config) { r.RoundTripper, c.API = c.API, r }).login(trust.RoleOperator)
	s.backend.answer("GET /tasks/"+taskID, wire.TaskView{TaskID: taskID, Status: task.Lost, OperationID: operationID})
	s.backend.answer("POST /tasks/"+taskID+"/resume", wire.TaskView{})
	w := s.do(http.MethodPost, "/console/tasks/"+taskID+"/resume", url.Values{"key": {"k"}, "reason": {"r"}})
	require.Equal(t, http.StatusSeeOther, w.Code)
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.requests[len(r.requests)-1]
	require.Equal(t, "192.0.2.1:1234", last.RemoteAddr)
	require.Equal(t, w.Header().Get(wire.HeaderCorrelationID), last.Header.Get(wire.HeaderCorrelationID))
	require.NotEmpty(t, last.Header.Get(wire.HeaderCorrelationID))
}

// A token whose subject may not use the console any longer ends the sessions that began with it, also for streams.
func TestTokenOfAnotherRole(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleOperator)
	s.backend.answer("GET /nodes", wire.NodeList{})
	s.backend.mu.Lock()
	s.backend.tokens[sha256.Sum256([]byte(tokenOf(trust.RoleOperator)))] = console.Subject{Name: "operator-1", Role: trust.RoleReporter}
	s.backend.mu.Unlock()
	require.Equal(t, http.StatusSeeOther, s.get("/console/nodes").Code)
	require.Equal(t, http.StatusUnauthorized, s.get("/console/events?view=all").Code)
}

// The stream of a session that another process ended ends within the pause between two of its comments.
func TestStreamOfASessionEndedElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sessions := &consoletest.Sessions{}
		s := newSite(t, func(c *console.Config) { c.Now, c.Sessions = time.Now, sessions }).login(trust.RoleViewer)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.get("/console/events?view=all")
		}()
		synctest.Wait()
		require.NoError(t, sessions.DeleteSession(t.Context(), sha256.Sum256([]byte(s.cookie.Value))))
		limit := time.NewTimer(16 * time.Second)
		defer limit.Stop()
		select {
		case <-ended:
		case <-limit.C:
			require.Fail(t, "the stream continues")
		}
	})
}
