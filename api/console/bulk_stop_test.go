package console_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/api/console/consoletest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
)

// openRun is a run of an operator about 19 nodes, whose first request has no response before release.
func openRun(t *testing.T) (s *site, trail *consoletest.Trail, started *httptest.ResponseRecorder, release func()) {
	t.Helper()
	trail = &consoletest.Trail{}
	s = newSite(t, func(cfg *console.Config) { cfg.Trail = trail }).login(trust.RoleOperator)
	s.backend.fleetOf(20)
	waiting, held := s.backend.holdDrain()
	release = sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	form := confirmed(s, "/console/bulk?do=drain&state=active", "19")
	form.Set("parallel", "1")
	started = s.do(http.MethodPost, "/console/bulk", form)
	harness.Eventually(t, "the first request waits", waiting.Load)
	return s, trail, started, release
}

// A run that an operator stops sends no further request. The audit trail has, once, who stopped the run of
// whom and how many requests were sent, also of those without a response.
func TestStopOfABulkRun(t *testing.T) {
	t.Parallel()
	s, trail, started, release := openRun(t)
	run := started.Header().Get("Location")
	page := s.get(run).Body.String()
	require.Contains(t, page, "sent</span> <strong>1</strong>")
	require.Contains(t, page, "<h1>drain: 0 of 19</h1>", "no request has a response")
	s.login(trust.RoleAdmin)
	for range 2 {
		require.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, run+"/stop", nil).Code)
	}
	release()
	page = endedRun(s, started)
	require.Contains(t, page, "stopped by admin-1")
	require.NotContains(t, page, "Record the stop")
	require.Len(t, s.backend.sent(http.MethodPost), 1)
	s.do(http.MethodPost, run+"/stop", nil)
	stops := trail.Stops()
	require.Len(t, stops, 1)
	require.NotEmpty(t, stops[0].By.CorrelationID)
	stops[0].By.CorrelationID = ""
	require.Equal(t, consoletest.Stop{
		BulkStop: console.BulkStop{ID: stops[0].ID, Run: "drain", StartedBy: "operator-1", Reason: "rack r7 loses power", Requests: 19, Sent: 1},
		By:       audit.Subject{Actor: "admin-1", Via: console.Via}}, stops[0])
	require.Equal(t, run, "/console/bulk/"+stops[0].ID)
}

// A stop that cannot be recorded stops the run. The page says so, and has a button that records who stopped it,
// also after the run has ended.
func TestStopOfABulkRunWithoutTheAuditTrail(t *testing.T) {
	t.Parallel()
	s, trail, started, release := openRun(t)
	run := started.Header().Get("Location")
	trail.Fail(schema.NewError(schema.KindServiceUnavailable, "the database at db-1 does not respond"))
	w := s.do(http.MethodPost, run+"/stop", nil)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "the run is stopped and sends no further request")
	require.Contains(t, w.Body.String(), "the database at db-1 does not respond")
	require.Contains(t, w.Body.String(), "record the stop on the page of the run")
	release()
	page := endedRun(s, started)
	require.Contains(t, page, "stopped by operator-1")
	require.Contains(t, page, ">Record the stop</button>")
	require.Len(t, s.backend.sent(http.MethodPost), 1)

	trail.Fail(nil)
	s.login(trust.RoleAdmin)
	for range 2 {
		require.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, run+"/stop", nil).Code)
	}
	require.NotContains(t, s.get(run).Body.String(), "Record the stop")
	stops := trail.Stops()
	require.Len(t, stops, 1)
	require.Equal(t, []any{"operator-1", 1}, []any{stops[0].By.Actor, stops[0].Sent})
}

// A stop is recorded although the browser has disconnected.
func TestStopOfABulkRunWithoutTheBrowser(t *testing.T) {
	t.Parallel()
	s, trail, started, release := openRun(t)
	ctx, disconnect := context.WithCancel(t.Context())
	disconnect()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, started.Header().Get("Location")+"/stop", http.NoBody)
	r.Host = host
	r.AddCookie(s.cookie)
	s.handler.ServeHTTP(httptest.NewRecorder(), r)
	release()
	require.Contains(t, endedRun(s, started), "stopped by operator-1")
	require.Len(t, trail.Stops(), 1)
}
