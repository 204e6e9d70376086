package edge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

func handler(routes ...edge.Route) (http.Handler, *harness.Buffer) {
	log := &harness.Buffer{}
	return edge.New(edge.Config{Listener: "test", Routes: routes,
		Log: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))}), log
}

func do(h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func envelope(t *testing.T, w *httptest.ResponseRecorder) schema.ErrorDetail {
	t.Helper()
	var b schema.ErrorBody
	require.NoError(t, schema.DecodeStrict(bytes.TrimSpace(w.Body.Bytes()), 1<<20, &b), w.Body.String())
	assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
	assert.Equal(t, w.Header().Get(wire.HeaderCorrelationID), b.Error.CorrelationID)
	return b.Error
}

func TestCorrelationID(t *testing.T) {
	h, log := handler(edge.Route{Method: http.MethodGet, Path: "/x", Handle: func(w http.ResponseWriter, r *http.Request) error {
		return edge.JSON(w, http.StatusOK, edge.CorrelationID(r.Context()))
	}})
	for _, good := range []string{"a", "Req-1.2:3_4", strings.Repeat("x", 128)} {
		w := do(h, http.MethodGet, "/x", "", wire.HeaderCorrelationID, good)
		assert.Equal(t, good, w.Header().Get(wire.HeaderCorrelationID))
		assert.JSONEq(t, `"`+good+`"`, w.Body.String())
		assert.Contains(t, log.String(), `"correlation_id":"`+good+`"`)
	}
	for _, bad := range []string{"", "a b", "a\nb", `a"b`, "ä", strings.Repeat("x", 129)} {
		w := do(h, http.MethodGet, "/x", "", wire.HeaderCorrelationID, bad)
		assert.True(t, schema.IsID(w.Header().Get(wire.HeaderCorrelationID)), "%q", bad)
	}
	w := do(h, http.MethodGet, "/x", "", wire.HeaderCorrelationID, "one", wire.HeaderCorrelationID, "two")
	assert.True(t, schema.IsID(w.Header().Get(wire.HeaderCorrelationID)), "two ids")
}

// A secret that is sent as the correlation id is replaced before anything is logged, on
// rejected requests too.
func TestSecretAsCorrelationID(t *testing.T) {
	const known = "a-password-of-this-process"
	log := &harness.Buffer{}
	h := edge.New(edge.Config{Listener: "test", Log: slog.New(slog.NewJSONHandler(log, nil)), Secrets: secrets.New(schema.NewSecret(known)),
		Routes: []edge.Route{{Method: http.MethodGet, Path: "/x", Handle: func(w http.ResponseWriter, r *http.Request) error {
			return edge.JSON(w, http.StatusOK, edge.CorrelationID(r.Context()))
		}}}})
	for _, secret := range []string{known, token} {
		for _, path := range []string{"/x", "/unknown"} {
			w := do(h, http.MethodGet, path, "", wire.HeaderCorrelationID, secret)
			assert.True(t, schema.IsID(w.Header().Get(wire.HeaderCorrelationID)), path)
			assert.NotContains(t, w.Body.String(), secret)
			assert.Contains(t, log.String(), w.Header().Get(wire.HeaderCorrelationID))
		}
		assert.NotContains(t, log.String(), secret)
	}
	w := do(edge.New(edge.Config{Log: slog.New(slog.DiscardHandler)}), http.MethodGet, "/x", "", wire.HeaderCorrelationID, token)
	assert.True(t, schema.IsID(w.Header().Get(wire.HeaderCorrelationID)), "the default scanner")
}

func TestKindStatus(t *testing.T) {
	for _, row := range schema.Kinds() {
		h, _ := handler(edge.Route{Method: http.MethodGet, Path: "/x", Handle: func(http.ResponseWriter, *http.Request) error {
			return schema.NewError(row.Kind, "no: %s", row.Kind).WithReason("why").WithNext("do this")
		}})
		w := do(h, http.MethodGet, "/x", "")
		assert.Equal(t, row.HTTP, w.Code)
		e := envelope(t, w)
		assert.Equal(t, schema.ErrorDetail{Code: row.Kind, Message: "no: " + string(row.Kind),
			CorrelationID: e.CorrelationID, Reason: "why", Next: "do this"}, e)
	}
}

func TestProblemDetails(t *testing.T) {
	h, _ := handler(edge.Route{Method: http.MethodGet, Path: "/x", Handle: func(http.ResponseWriter, *http.Request) error {
		return schema.NewError(schema.KindNodeInUse, "gpu-17 runs 2 workloads").WithReason("drain_blocked").WithNext("gpuaas node show gpu-17")
	}})
	for _, accept := range []string{"application/problem+json", "text/html, application/problem+json;q=0.9"} {
		w := do(h, http.MethodGet, "/x", "", "Accept", accept, wire.HeaderCorrelationID, "c-1")
		assert.Equal(t, http.StatusConflict, w.Code)
		assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
		assert.JSONEq(t, `{"type": "https://github.com/gpuaas/gpuaas/blob/main/docs/reference/errors.md#node_in_use",
			"title": "Workloads run on the node.", "status": 409, "detail": "gpu-17 runs 2 workloads",
			"code": "node_in_use", "reason": "drain_blocked", "next": "gpuaas node show gpu-17", "correlation_id": "c-1"}`, w.Body.String())
	}
	for _, accept := range []string{"", "application/json", "*/*", "application/problem+xml", ";;"} {
		assert.Equal(t, schema.KindNodeInUse, envelope(t, do(h, http.MethodGet, "/x", "", "Accept", accept)).Code)
	}
}

func TestUnknownErrorIsNotSent(t *testing.T) {
	h, log := handler(edge.Route{Method: http.MethodGet, Path: "/x", Handle: func(http.ResponseWriter, *http.Request) error {
		return fmt.Errorf("dial postgres://user:hunter2: %w", io.ErrUnexpectedEOF)
	}})
	w := do(h, http.MethodGet, "/x", "")
	assert.Equal(t, http.StatusInternalServerError, w.Code)
	assert.Equal(t, "internal error", envelope(t, w).Message)
	assert.NotContains(t, w.Body.String(), "hunter2")
	assert.Contains(t, log.String(), "unexpected EOF")
}

func TestCauseIsNotSent(t *testing.T) {
	h, _ := handler(edge.Route{Method: http.MethodGet, Path: "/x", Handle: func(http.ResponseWriter, *http.Request) error {
		return schema.Wrap(schema.KindServiceUnavailable, errors.New("secret detail"), "the database does not answer")
	}})
	w := do(h, http.MethodGet, "/x", "")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.NotContains(t, w.Body.String(), "secret detail")
}

func TestPanic(t *testing.T) {
	h, log := handler(
		edge.Route{Method: http.MethodGet, Path: "/before", Handle: func(http.ResponseWriter, *http.Request) error { panic("boom") }},
		edge.Route{Method: http.MethodGet, Path: "/after", Handle: func(w http.ResponseWriter, _ *http.Request) error {
			w.WriteHeader(http.StatusOK)
			panic("boom")
		}})
	w := do(h, http.MethodGet, "/before", "")
	assert.Equal(t, http.StatusInternalServerError, w.Code)
	assert.Equal(t, schema.KindInternal, envelope(t, w).Code)
	assert.NotContains(t, w.Body.String(), "boom")
	assert.Contains(t, log.String(), "boom")
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() { do(h, http.MethodGet, "/after", "") },
		"a response that had begun is aborted")
}

func TestUnknownPathAndMethod(t *testing.T) {
	h, _ := handler(edge.Route{Method: http.MethodPost, Path: "/x/{id}", MaxBody: 10, Handle: func(w http.ResponseWriter, _ *http.Request) error {
		return edge.NoContent(w)
	}})
	for _, path := range []string{"/", "/y", "/x", "/x/1/2", "//x/1", "/x/../x/1", "/x/1/"} {
		w := do(h, http.MethodPost, path, "")
		assert.Equal(t, http.StatusNotFound, w.Code, path)
		assert.Equal(t, schema.KindNotFound, envelope(t, w).Code)
	}
	h2, _ := handler(edge.Route{Method: http.MethodPost, Path: "/x/{id}/stop"}, edge.Route{Method: http.MethodPost, Path: "/x/{id}/start"},
		edge.Route{Method: http.MethodGet, Path: "/x/{id}/start"}, edge.Route{Method: http.MethodPost, Path: "/x/{id}/{name}/start"})
	assert.Equal(t, "the path must end in one of start, stop", envelope(t, do(h2, http.MethodPost, "/x/1/run", "")).Next)
	assert.Empty(t, envelope(t, do(h2, http.MethodPost, "/y/1/run", "")).Next)
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodOptions, "BREW"} {
		w := do(h, method, "/x/1", "")
		assert.Equal(t, http.StatusMethodNotAllowed, w.Code, method)
		assert.Equal(t, "POST", w.Header().Get("Allow"))
		assert.Equal(t, "method_not_allowed", envelope(t, w).Reason)
		assert.Equal(t, "send POST", envelope(t, w).Next)
	}
}

const token = "gpuet_0190b6c2-1111-7aaa-8bbb-0123456789ab.c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0MDE"

func TestStrictBodies(t *testing.T) {
	type body struct {
		Name  string         `json:"name"`
		Count int            `json:"count"`
		Any   map[string]any `json:"any,omitempty"`
	}
	h, log := handler(edge.Route{Method: http.MethodPost, Path: "/x", MaxBody: 300, Handle: func(w http.ResponseWriter, r *http.Request) error {
		var b body
		if err := edge.Decode(r, &b); err != nil {
			return err
		}
		return edge.JSON(w, http.StatusOK, b)
	}})
	assert.Equal(t, http.StatusOK, do(h, http.MethodPost, "/x", ` {"name": "a\\u0000", "count": 1} `).Code)
	for name, c := range map[string]struct{ body, reason, says string }{
		"unknown field":       {`{"name":"a","color":"red"}`, "malformed_body", "unknown field color"},
		"repeated field":      {`{"name":"a","name":"b"}`, "malformed_body", "name appears twice"},
		"wrong type":          {`{"count":"x"}`, "malformed_body", "count has the wrong type"},
		"trailing data":       {`{"name":"a"} {}`, "malformed_body", ""},
		"not JSON":            {`name=a`, "malformed_body", ""},
		"empty":               {``, "malformed_body", ""},
		"too large":           {`{"name":"` + strings.Repeat("a", 300) + `"}`, "too_large", "300 bytes"},
		"NUL":                 {`{"name":"a\u0000b"}`, "bad_text", ""},
		"NUL after backslash": {`{"name":"a\\\u0000b"}`, "bad_text", ""},
		"not UTF-8":           {"{\"name\":\"\xff\"}", "bad_text", ""},
		"deep":                {`{"any":` + strings.Repeat(`{"a":`, 33) + `1` + strings.Repeat("}", 33) + `}`, "malformed_body", ""},
		"token as field":      {`{"` + token + `":1}`, "malformed_body", ""},
		"token twice":         {`{"any":{"` + token + `":1,"` + token + `":2}}`, "malformed_body", ""},
		"token as value":      {`{"count":"` + token + `"}`, "malformed_body", ""},
		"token alone":         {token, "malformed_body", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := do(h, http.MethodPost, "/x", c.body)
			assert.Equal(t, http.StatusBadRequest, w.Code)
			e := envelope(t, w)
			assert.Equal(t, c.reason, e.Reason)
			assert.Contains(t, e.Message, c.says)
			assert.NotContains(t, w.Body.String(), "gpuet_")
		})
	}
	assert.NotContains(t, log.String(), "gpuet_")
}

func TestLogOmitsHeadersPathAndBody(t *testing.T) {
	h, log := handler(edge.Route{Method: http.MethodPost, Path: "/x/{id}", MaxBody: 1000, Handle: func(http.ResponseWriter, *http.Request) error {
		return schema.NewError(schema.KindForbidden, "no")
	}})
	do(h, http.MethodPost, "/x/"+token+"?t="+token, token, "Authorization", "Bearer "+token, "Cookie", token)
	do(h, http.MethodGet, "/y/"+token, "", "Authorization", "Bearer "+token)
	assert.NotContains(t, log.String(), "gpuet_")
	assert.Contains(t, log.String(), `"path":"/x/{id}"`)
	assert.Contains(t, log.String(), `"path":"unmatched"`)
	var line map[string]any
	require.NoError(t, json.Unmarshal([]byte(strings.SplitN(log.String(), "\n", 2)[0]), &line))
	for _, key := range []string{"time", "level", "msg", "listener", "correlation_id", "method", "path", "status", "duration_ms", "code"} {
		assert.Contains(t, line, key)
	}
}

func TestUnexpectedBody(t *testing.T) {
	h, _ := handler(edge.Route{Method: http.MethodGet, Path: "/x", Handle: func(w http.ResponseWriter, _ *http.Request) error {
		return edge.NoContent(w)
	}})
	w := do(h, http.MethodGet, "/x", "hello")
	assert.Equal(t, "body_not_allowed", envelope(t, w).Reason)
}

func TestDeadline(t *testing.T) {
	h, _ := handler(edge.Route{Method: http.MethodGet, Path: "/x", Timeout: 10 * time.Millisecond, Handle: func(_ http.ResponseWriter, r *http.Request) error {
		<-r.Context().Done()
		return r.Context().Err()
	}})
	w := do(h, http.MethodGet, "/x", "")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "timeout", envelope(t, w).Reason)
}

func TestDisconnectedClient(t *testing.T) {
	h, log := handler(edge.Route{Method: http.MethodGet, Path: "/x", Handle: func(_ http.ResponseWriter, r *http.Request) error {
		<-r.Context().Done()
		return r.Context().Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() {
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/x", nil).WithContext(ctx))
	}, "no answer: net/http would make it a 200")
	assert.Empty(t, w.Body.String())
	assert.Contains(t, log.String(), `"status":499`)
}

// A client that sends its body too slowly is answered when the route's time is
// over, and its connection closed.
func TestSlowBody(t *testing.T) {
	h, _ := handler(edge.Route{Method: http.MethodPost, Path: "/x", MaxBody: 100, Timeout: 50 * time.Millisecond, Handle: func(w http.ResponseWriter, r *http.Request) error {
		var v any
		return edge.Decode(r, &v)
	}})
	s := httptest.NewServer(h)
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
	require.NoError(t, err)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	assert.Equal(t, http.StatusBadRequest, res.StatusCode)
}

func TestHealth(t *testing.T) {
	var down error = schema.NewError(schema.KindServiceUnavailable, "not ready: waiting for Postgres")
	h, _ := handler(edge.HealthRoute(func() error { return down }))
	w := do(h, http.MethodGet, edge.HealthPath, "")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Contains(t, envelope(t, w).Message, "waiting for Postgres")
	down = nil
	w = do(h, http.MethodGet, edge.HealthPath, "")
	assert.Equal(t, http.StatusOK, w.Code)
	assert.JSONEq(t, `{"status":"ok"}`, w.Body.String())
}

func TestAnnotations(t *testing.T) {
	h, log := handler(edge.Route{Method: http.MethodGet, Path: "/x", Handle: func(w http.ResponseWriter, r *http.Request) error {
		for i := range 3 {
			edge.Annotate(r.Context(), slog.Int("n", i), slog.String("node_id", "a"))
		}
		return edge.NoContent(w)
	}})
	do(h, http.MethodGet, "/x", "")
	assert.Contains(t, log.String(), `"n":2,"node_id":"a"}`)
	assert.Equal(t, 1, strings.Count(log.String(), "node_id"), "each key once")
}

func TestGuard(t *testing.T) {
	h := edge.New(edge.Config{Listener: "test", Log: slog.New(slog.DiscardHandler),
		Guard: func(*http.Request) error { return schema.NewError(schema.KindForbidden, "no") },
		Routes: []edge.Route{{Method: http.MethodGet, Path: "/x", Handle: func(w http.ResponseWriter, _ *http.Request) error {
			return edge.NoContent(w)
		}}}})
	assert.Equal(t, http.StatusForbidden, do(h, http.MethodGet, "/x", "").Code)
	assert.Equal(t, http.StatusForbidden, do(h, http.MethodGet, "/nowhere", "").Code)
}

// No response is stored by a proxy or taken for another type, and a missing token is answered with the scheme.
func TestHeaders(t *testing.T) {
	h, _ := handler(edge.Route{Method: http.MethodGet, Path: "/x", Handle: func(http.ResponseWriter, *http.Request) error {
		return schema.NewError(schema.KindUnauthenticated, "no token")
	}})
	for _, path := range []string{"/x", "/nowhere"} {
		header := do(h, http.MethodGet, path, "").Header()
		assert.Equal(t, "no-store", header.Get("Cache-Control"))
		assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
	}
	assert.Equal(t, `Bearer realm="gpuaas"`, do(h, http.MethodGet, "/x", "").Header().Get("WWW-Authenticate"))
	assert.Equal(t, "close", do(h, http.MethodGet, "/x", "hello").Header().Get("Connection"), "the body is not read")
}

// deadlines is a response whose connection has deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

// SetReadDeadline implements the interface that http.ResponseController looks for.
func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.read = at
	return nil
}

// SetWriteDeadline implements the interface that http.ResponseController looks for.
func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.write = at
	return nil
}

// A client has a limited time to read each response, and to send a body that no handler reads.
func TestDeadlines(t *testing.T) {
	routes := []edge.Route{{Method: http.MethodGet, Path: "/x", Handle: func(w http.ResponseWriter, _ *http.Request) error { return edge.NoContent(w) }}}
	log := slog.New(slog.DiscardHandler)
	open := edge.New(edge.Config{Log: log, Routes: routes})
	closed := edge.New(edge.Config{Log: log, Routes: routes, Guard: func(*http.Request) error { return schema.NewError(schema.KindForbidden, "no") }})
	for name, c := range map[string]struct {
		h            http.Handler
		method, path string
		body         bool // it may have one
	}{
		"route": {open, http.MethodGet, "/x", false}, "no route": {open, http.MethodPost, "/y", true},
		"no method": {open, http.MethodPost, "/x", true}, "guard": {closed, http.MethodPost, "/x", true},
	} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		c.h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, http.NoBody))
		assert.False(t, w.write.IsZero(), name)
		assert.Equal(t, c.body, !w.read.IsZero(), name)
	}
}
