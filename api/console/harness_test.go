package console_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/api/console/consoletest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
)

var update = flag.Bool("update", false, "write the golden files")

// readAt is the time on each page.
func readAt() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

const host = "localhost:8081"

// asked is a request that the console made of the admin API.
type asked struct {
	method, target, key string
	body                string
	by                  console.Subject
}

// backend is an admin API with recorded responses.
type backend struct {
	mu        sync.Mutex
	responses map[string]any // by method and path without a query
	requests  []asked
	// events are written to each event stream.
	events chan string
	tokens map[[32]byte]console.Subject
	// panics is a path whose request panics, if it is not empty.
	panics string
	// delay, if it is set, is called with the path of each read before the response to it.
	delay func(path string)
}

func newBackend() *backend {
	b := &backend{responses: map[string]any{}, events: make(chan string), tokens: map[[32]byte]console.Subject{}}
	for _, role := range trust.Roles() {
		b.tokens[sha256.Sum256([]byte(tokenOf(role)))] = console.Subject{Name: string(role) + "-1", Role: role}
	}
	return b
}

func tokenOf(r trust.Role) string { return "gpuat_token-of-a-" + string(r) }

// RoundTrip implements http.RoundTripper.
func (b *backend) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	by, _ := console.SubjectOf(r.Context())
	path := strings.TrimPrefix(r.URL.Path, "/api/v1/admin")
	if path == b.panics && path != "" {
		panic("planted")
	}
	if path == "/events" {
		return b.stream(r), nil
	}
	if b.delay != nil {
		b.delay(path)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, asked{r.Method, strings.TrimPrefix(r.URL.RequestURI(), "/api/v1/admin"), r.Header.Get("Idempotency-Key"), string(body), by})
	response, ok := b.responses[r.Method+" "+path]
	if !ok {
		response = schema.NewError(schema.KindNotFound, "no recorded response to %s %s", r.Method, path)
	}
	status := http.StatusOK
	if err, failed := response.(*schema.Error); failed {
		status, response = err.Kind.Info().HTTP, err.Body("c-1")
	}
	text, err := json.Marshal(response)
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(string(text)))}, err
}

// stream is an event stream that ends with its request.
func (b *backend) stream(r *http.Request) *http.Response {
	out, in := io.Pipe()
	go func() {
		defer func() { _ = in.Close() }()
		for {
			select {
			case <-r.Context().Done():
				return
			case text := <-b.events:
				_, _ = io.WriteString(in, text)
			}
		}
	}()
	return &http.Response{StatusCode: http.StatusOK, Body: out}
}

func (b *backend) answer(request string, v any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.responses[request] = v
}

// sent returns the requests with the method.
func (b *backend) sent(method string) (out []asked) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		if r.method == method {
			out = append(out, r)
		}
	}
	return out
}

func (b *backend) drop(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.tokens, sha256.Sum256([]byte(token)))
}

// site is a console over a backend.
type site struct {
	tb      testing.TB
	backend *backend
	handler http.Handler
	log     *harness.Buffer
	cookie  *http.Cookie
	stop    func()
}

func newSite(tb testing.TB, change ...func(*console.Config)) *site {
	tb.Helper()
	s := &site{tb: tb, backend: newBackend(), log: &harness.Buffer{}}
	cfg := console.Config{API: s.backend, Sessions: &consoletest.Sessions{}, Trail: &consoletest.Trail{}, URL: &url.URL{Scheme: "http", Host: host}, Env: "test",
		Log: slog.New(slog.NewJSONHandler(s.log, nil)), Now: readAt,
		Tokens: func(sum [32]byte) (console.Subject, bool) {
			s.backend.mu.Lock()
			defer s.backend.mu.Unlock()
			by, ok := s.backend.tokens[sum]
			return by, ok
		}}
	for _, c := range change {
		c(&cfg)
	}
	c, err := console.New(cfg)
	require.NoError(tb, err)
	s.handler = c.Handler()
	ctx, cancel := context.WithCancel(tb.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = c.Run(ctx)
	}()
	s.stop = func() { cancel(); <-stopped }
	tb.Cleanup(s.stop)
	return s
}

// do sends a request with the session's cookie.
func (s *site) do(method, target string, form url.Values, headers ...string) *httptest.ResponseRecorder {
	s.tb.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(form.Encode()))
	r.Host = host
	if form == nil {
		r.Body, r.ContentLength = http.NoBody, 0
	} else {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if s.cookie != nil {
		r.AddCookie(s.cookie)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

func (s *site) get(target string, headers ...string) *httptest.ResponseRecorder {
	s.tb.Helper()
	return s.do(http.MethodGet, target, nil, headers...)
}

// login begins a session with a token of the role.
func (s *site) login(role trust.Role) *site {
	s.tb.Helper()
	w := s.do(http.MethodPost, "/console/login", url.Values{"token": {tokenOf(role)}})
	require.Equal(s.tb, http.StatusSeeOther, w.Code, w.Body.String())
	require.Len(s.tb, w.Result().Cookies(), 1)
	s.cookie = w.Result().Cookies()[0]
	return s
}

// golden compares a page with its golden file. The revision and the digest of the static files
// are replaced.
func golden(t *testing.T, name string, w *httptest.ResponseRecorder) {
	t.Helper()
	page := stable(w.Body.String())
	file := filepath.Join("testdata", name+".html")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(page), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), page, "go test ./api/console -run %s -update writes it", t.Name())
}
