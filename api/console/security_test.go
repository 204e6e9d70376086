package console_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Capitals and the port that the scheme implies make no difference in the public URL and in requests.
func TestPublicHost(t *testing.T) {
	t.Parallel()
	for _, public := range []string{"https://Console.Example.com", "https://console.example.com:443", "http://console.example.com:80"} {
		s := newSite(t, func(c *console.Config) {
			var err error
			c.URL, err = url.Parse(public)
			require.NoError(t, err)
		})
		scheme, _, _ := strings.Cut(public, ":")
		port := map[string]string{"http": ":80", "https": ":443"}[scheme]
		origin := scheme + "://console.example.com"
		for _, sent := range []string{"console.example.com", "Console.Example.COM", "console.example.com" + port} {
			require.Equal(t, http.StatusOK, s.get("/console/login", "Host", sent).Code, "%s for %s", sent, public)
		}
		require.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, "/console/logout", url.Values{}, "Host", "console.example.com", "Origin", origin).Code)
		require.Equal(t, http.StatusMisdirectedRequest, s.get("/console/login", "Host", "console.example.com:8081").Code)
	}
}

// deadlined is a response whose connection has a deadline for reads.
type deadlined struct {
	http.ResponseWriter
	until time.Time
}

// SetReadDeadline implements the interface that http.ResponseController looks for.
func (d *deadlined) SetReadDeadline(at time.Time) error {
	d.until = at
	return nil
}

// The body of a rejected request is read for a limited time.
func TestRejectedRequestHasADeadline(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, headers := range [][2]string{{"Host", "other.example.com"}, {"Origin", "https://other.example.com"}} {
		r := httptest.NewRequest(http.MethodPost, "/console/login", http.NoBody)
		r.Header.Set(headers[0], headers[1])
		r.Host = cmp.Or(r.Header.Get("Host"), r.Host)
		w := &deadlined{ResponseWriter: httptest.NewRecorder()}
		s.handler.ServeHTTP(w, r)
		require.False(t, w.until.IsZero(), headers)
	}
}

// Unwrap returns the response that has the other methods.
func (d *deadlined) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// A deadline for reads after the body of a request would end a stream, and each later request of
// its connection.
func TestAcceptedRequestHasNoDeadlineAfterItsBody(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.backend.fleet()
	s.login(trust.RoleAdmin)
	for target, of := range map[string]struct {
		form   url.Values
		status int
	}{
		"/console/":                {status: http.StatusOK},
		"/console/events?view=all": {status: http.StatusOK},
		"/console/bulk":            {url.Values{"do": {"none"}}, http.StatusBadRequest}, // after its form is read
	} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			method := http.MethodGet
			if of.form != nil {
				method = http.MethodPost
			}
			r := httptest.NewRequestWithContext(ctx, method, target, strings.NewReader(of.form.Encode()))
			r.Host = host
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.AddCookie(s.cookie)
			recorder := httptest.NewRecorder()
			w := &deadlined{ResponseWriter: recorder}
			if strings.Contains(target, "events") {
				cancel() // the stream ends after its first line
			}
			s.handler.ServeHTTP(w, r)
			require.Equal(t, of.status, recorder.Code, recorder.Body)
			require.True(t, w.until.IsZero(), "%s", w.until)
		})
	}
}

func TestLogin(t *testing.T) {
	s := newSite(t)
	s.backend.fleet()
	w := s.get("/console/nodes?state=active")
	assert.Equal(t, "/console/login?next=%2Fconsole%2Fnodes%3Fstate%3Dactive", w.Header().Get("Location"))
	golden(t, "login", s.get(w.Header().Get("Location")))
	assert.Equal(t, http.StatusUnauthorized, s.get("/console/", "Gpuaas-Region", "1").Code, "the script gets no login page")
	assert.Equal(t, http.StatusUnauthorized, s.do(http.MethodPost, "/console/nodes/"+nodeID+"/drain", url.Values{}).Code)

	w = s.do(http.MethodPost, "/console/login", url.Values{"token": {"wrong-token"}})
	assert.Equal(t, http.StatusUnauthorized, w.Code)
	assert.NotContains(t, w.Body.String(), "wrong-token")
	assert.Empty(t, w.Result().Cookies())
	w = s.do(http.MethodPost, "/console/login", url.Values{"token": {tokenOf(trust.RoleReporter)}})
	assert.Equal(t, http.StatusForbidden, w.Code)

	w = s.do(http.MethodPost, "/console/login", url.Values{"token": {tokenOf(trust.RoleViewer)}, "next": {"/console/nodes?state=active"}})
	assert.Equal(t, "/console/nodes?state=active", w.Header().Get("Location"))
	c := w.Result().Cookies()[0]
	assert.True(t, c.HttpOnly)
	assert.False(t, c.Secure)
	assert.Equal(t, http.SameSiteLaxMode, c.SameSite)
	assert.NotContains(t, s.log.String(), "gpuat_", "no token is logged")
	assert.NotContains(t, s.log.String(), "wrong-token")
	assert.NotContains(t, s.log.String(), c.Value)
}

func TestLoginGoesOnToPagesOfTheConsoleOnly(t *testing.T) {
	s := newSite(t)
	for _, next := range []string{"https://evil.example/", "//evil.example", "/console/../evil", "/console//evil.example", "/\\evil.example", "/api/v1/admin/nodes", ""} {
		w := s.do(http.MethodPost, "/console/login", url.Values{"token": {tokenOf(trust.RoleViewer)}, "next": {next}})
		assert.Equal(t, "/console/", w.Header().Get("Location"), next)
	}
}

func TestFailedLoginsAreLimited(t *testing.T) {
	s := newSite(t)
	for range 10 {
		require.Equal(t, http.StatusUnauthorized, s.do(http.MethodPost, "/console/login", url.Values{"token": {"wrong"}}).Code)
	}
	w := s.do(http.MethodPost, "/console/login", url.Values{"token": {"wrong"}})
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.NotEmpty(t, w.Header().Get("Retry-After"))
	w = s.do(http.MethodPost, "/console/login", url.Values{"token": {tokenOf(trust.RoleViewer)}})
	assert.Equal(t, http.StatusSeeOther, w.Code, "others behind the same proxy can still log in")
}

// open opens a stream and returns its lines.
func (s *site) open(t *testing.T, server *httptest.Server, view string) (*bufio.Scanner, func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/console/events?view="+view, http.NoBody)
	require.NoError(t, err)
	r.Host = host
	r.AddCookie(s.cookie)
	response, err := server.Client().Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(t, http.StatusOK, response.StatusCode)
	return bufio.NewScanner(response.Body), cancel
}

// next returns the next revision of a stream, empty at its end.
func next(lines *bufio.Scanner) string {
	for lines.Scan() {
		if rev, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			return rev
		}
	}
	return ""
}

func TestStream(t *testing.T) {
	s := newSite(t)
	server := httptest.NewServer(s.handler)
	defer server.Close()
	s.login(trust.RoleViewer)
	all, _ := s.open(t, server, "all")
	one, _ := s.open(t, server, nodeID)
	first := next(all)
	require.NotEmpty(t, first, "a page without a revision is outdated")
	s.backend.events <- fmt.Sprintf("id: 1\nevent: operation\ndata: {\"node_id\": %q}\n\n", schema.NewID())
	for rev := next(all); ; rev = next(all) {
		require.NotEmpty(t, rev)
		if rev != first {
			break
		}
	}
	s.backend.events <- fmt.Sprintf("id: 2\nevent: audit\ndata: {\"stream\": %q}\n\n", nodeID)
	require.NotEmpty(t, next(one))

	require.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, "/console/logout", url.Values{}).Code)
	for next(all) != "" {
	}
	for next(one) != "" {
	}
	require.NoError(t, all.Err(), "a logout ends the streams regularly")
}

func TestStreamEndsWithTheToken(t *testing.T) {
	s := newSite(t)
	server := httptest.NewServer(s.handler)
	defer server.Close()
	lines, _ := s.login(trust.RoleViewer).open(t, server, "all")
	s.backend.drop(tokenOf(trust.RoleViewer))
	for next(lines) != "" {
	}
	require.NoError(t, lines.Err())
}

func TestStreamsEndAtTheStop(t *testing.T) {
	s := newSite(t)
	server := httptest.NewServer(s.handler)
	defer server.Close()
	s.login(trust.RoleViewer)
	var streams []*bufio.Scanner
	for range 50 {
		lines, _ := s.open(t, server, "all")
		streams = append(streams, lines)
	}
	s.stop()
	for _, lines := range streams {
		for next(lines) != "" {
		}
		require.NoError(t, lines.Err())
	}
	assert.Equal(t, http.StatusServiceUnavailable, s.get("/console/events?view=all").Code)
}

func TestStreamOfAnUnknownView(t *testing.T) {
	s := newSite(t)
	s.login(trust.RoleViewer)
	assert.Equal(t, http.StatusBadRequest, s.get("/console/events?view=everything").Code)
}
