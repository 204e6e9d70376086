package edge

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// DefaultTimeout bounds a request whose route has no Timeout.
const DefaultTimeout = 15 * time.Second

// bodyTimeout is the client's time to send the body of a request, if the route's Timeout
// is longer.
const bodyTimeout = 10 * time.Second

// writeSlack is the client's time to read the response after the request's
// deadline.
const writeSlack = 15 * time.Second

// Handler responds with JSON or NoContent and returns nil, or returns an error and
// writes nothing.
type Handler func(w http.ResponseWriter, r *http.Request) error

// Route is one endpoint. The OpenAPI document must list its Success and Kinds.
type Route struct {
	Method string
	// Path is a pattern of http.ServeMux without method, for example
	// /api/v1/admin/nodes/{node}.
	Path   string
	Handle Handler
	// Success are the status codes without an error.
	Success []int
	// Kinds are the route's errors in addition to invalid_request,
	// service_unavailable and internal, which every route may return.
	Kinds []schema.Kind
	// Timeout bounds the whole request. Defaults to DefaultTimeout.
	Timeout time.Duration
	// MaxBody limits the request body in bytes; 0 rejects a body.
	MaxBody int
	// Quiet logs successful requests at debug level, for requests that every node
	// repeats.
	Quiet bool
}

// Observer records a request. ctx has its span.
type Observer func(ctx context.Context, route string, status int, took time.Duration)

// Config describes one listener.
type Config struct {
	// Listener names the listener in the log, for example node.
	Listener string
	Log      *slog.Logger
	// Guard rejects requests before they are routed. Defaults to none.
	Guard  func(r *http.Request) error
	Routes []Route
	// Next returns the next step of a rejection that names none. Defaults to none.
	Next func(schema.Kind) string
	// Secrets finds secrets in correlation ids, which the log contains. Defaults to a
	// scanner for their forms.
	Secrets *secrets.Scanner
	// Observe records each request by its route, which is the method and the path
	// template. Defaults to none.
	Observe Observer
}

// New returns the handler of a listener. It responds to an unknown path with 404
// and to an unknown method with 405, both with the error envelope.
func New(cfg Config) http.Handler {
	cfg.Secrets = cmp.Or(cfg.Secrets, secrets.New())
	s := &server{cfg: cfg, mux: http.NewServeMux(), samples: rate.NewLimiter(sampleRate, sampleBurst)}
	byPath := map[string]map[string]*Route{}
	for _, r := range cfg.Routes {
		if byPath[r.Path] == nil {
			byPath[r.Path] = map[string]*Route{}
		}
		byPath[r.Path][r.Method] = &r
	}
	for p, methods := range byPath {
		s.mux.Handle(p, s.endpoint(p, methods))
	}
	s.mux.HandleFunc("/", s.notFound)
	return s
}

type server struct {
	cfg Config
	mux *http.ServeMux
	// samples limits the log lines of SampleRefusal.
	samples *rate.Limiter
}

// The rate of the log lines of SampleRefusal, per second.
const (
	sampleRate  = 1
	sampleBurst = 30
)

// ServeHTTP implements http.Handler: correlation id, panic recovery, log line.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rec := &record{correlationID: s.correlationID(r.Header), path: "unmatched", next: s.cfg.Next}
	r = r.WithContext(context.WithValue(r.Context(), recordKey{}, rec))
	a := &response{ResponseWriter: w}
	a.Header().Set(wire.HeaderCorrelationID, rec.correlationID)
	a.Header().Set("Cache-Control", "no-store")
	defer func() {
		aborted := s.recovered(a, r, recover())
		took := time.Since(start)
		s.log(r, rec, a.status, took)
		trace.SpanFromContext(r.Context()).SetName(method(r) + " " + rec.path)
		if s.cfg.Observe != nil {
			s.cfg.Observe(r.Context(), method(r)+" "+rec.path, a.status, took)
		}
		if aborted {
			panic(http.ErrAbortHandler)
		}
	}()
	s.route(a, r)
}

// recovered handles a panic value. It reports whether the connection must be
// aborted because the response has started.
func (s *server) recovered(a *response, r *http.Request, v any) bool {
	if v == nil {
		return false
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		return true
	}
	Annotate(r.Context(), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
	if a.status != 0 {
		return true
	}
	refuseWith(a, r, http.StatusInternalServerError, schema.NewError(schema.KindInternal, "internal error"))
	return false
}

func (s *server) route(w *response, r *http.Request) {
	if s.cfg.Guard != nil {
		if err := s.cfg.Guard(r); err != nil {
			SampleRefusal(r.Context())
			boundUnmatched(w)
			refuse(w, r, err)
			return
		}
	}
	// The mux would redirect an unclean path.
	if r.URL.Path != path.Clean(r.URL.Path) || r.Method == http.MethodConnect {
		s.notFound(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// notFound rejects a path without a route. The next step lists the possible last
// parts of the path, for example the actions on a node.
func (s *server) notFound(w http.ResponseWriter, r *http.Request) {
	SampleRefusal(r.Context())
	boundUnmatched(w)
	e := schema.NewError(schema.KindNotFound, "no such path")
	parent, _ := path.Split(r.URL.Path)
	var names []string
	for _, route := range s.cfg.Routes {
		if template, name := path.Split(route.Path); name != "" && name[0] != '{' && matches(template, parent) {
			names = append(names, name)
		}
	}
	if slices.Sort(names); len(names) > 0 {
		e.Next = "the path must end in one of " + strings.Join(slices.Compact(names), ", ")
	}
	refuse(w, r, e)
}

// matches reports whether a path has the form of a template.
func matches(template, p string) bool {
	parts := strings.Split(p, "/")
	return slices.EqualFunc(strings.Split(template, "/"), parts, func(t, part string) bool {
		return t == part || strings.HasPrefix(t, "{") && part != ""
	})
}

// endpoint serves all methods of one path. Its frame is on the stack of every open
// poll, so routes are pointers and refuseMethod is a function of its own.
func (s *server) endpoint(template string, methods map[string]*Route) http.Handler {
	allow := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := recordOf(r.Context())
		rec.path = template
		route, ok := methods[r.Method]
		if !ok {
			refuseMethod(w, r, allow)
			return
		}
		rec.quiet = route.Quiet
		if err := run(route, w, r); err != nil {
			refuse(w, r, err)
		}
	})
}

// boundUnmatched limits a slow client of a request that no route bounds: the server reads
// the rest of its body before it reuses the connection.
func boundUnmatched(w http.ResponseWriter) {
	c, now := http.NewResponseController(w), time.Now()
	_ = c.SetReadDeadline(now.Add(DefaultTimeout)) // only a test's recorder does not support deadlines
	_ = c.SetWriteDeadline(now.Add(DefaultTimeout + writeSlack))
}

func refuseMethod(w http.ResponseWriter, r *http.Request, allow string) {
	SampleRefusal(r.Context())
	boundUnmatched(w)
	w.Header().Set("Allow", allow)
	refuseWith(w, r, http.StatusMethodNotAllowed,
		schema.NewError(schema.KindInvalidRequest, "this path supports only %s", allow).WithReason("method_not_allowed").WithNext("send "+allow))
}

// run calls the route's handler with its deadline and limits.
func run(route *Route, w http.ResponseWriter, r *http.Request) error {
	limit := route.Timeout
	if limit == 0 {
		limit = DefaultTimeout
	}
	if err := bound(route, w, r, limit); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	return route.Handle(w, r.WithContext(ctx))
}

// bound limits a slow client and a large body. Deadlines are set for every request,
// because a connection keeps those of the previous one.
func bound(route *Route, w http.ResponseWriter, r *http.Request, limit time.Duration) error {
	if route.MaxBody == 0 && r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
		return schema.NewError(schema.KindInvalidRequest, "this endpoint accepts no request body").WithReason("body_not_allowed")
	}
	now := time.Now()
	c := http.NewResponseController(w)
	// Only a test's recorder does not support deadlines.
	_ = c.SetWriteDeadline(now.Add(limit + writeSlack))
	if route.MaxBody > 0 {
		_ = c.SetReadDeadline(now.Add(min(limit, bodyTimeout))) // until the body is read
		r.Body = timedBody{http.MaxBytesReader(w, r.Body, int64(route.MaxBody)), c}
		recordOf(r.Context()).maxBody = route.MaxBody
	}
	return nil
}
