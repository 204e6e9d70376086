package edge

import (
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

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// DefaultTimeout bounds a request whose route names no time of its own.
const DefaultTimeout = 15 * time.Second

// writeSlack is what a client has beyond the request's own time to take the
// answer.
const writeSlack = 15 * time.Second

// Handler answers a request with JSON or NoContent, or returns why not and
// writes nothing. It returns nil after it has written.
type Handler func(w http.ResponseWriter, r *http.Request) error

// Route is one endpoint. Success and Kinds are what the OpenAPI document must
// list for it.
type Route struct {
	Method string
	// Path is a pattern of http.ServeMux without method, for example
	// /api/v1/admin/nodes/{node}.
	Path   string
	Handle Handler
	// Success are the statuses of answers that are not errors.
	Success []int
	// Kinds are the route's refusals beyond those that every route may give
	// (see CommonKinds).
	Kinds []schema.Kind
	// Timeout bounds the whole request. Defaults to DefaultTimeout.
	Timeout time.Duration
	// MaxBody caps the request's body. 0 means that a body is refused.
	MaxBody int
	// Quiet logs successful requests at debug level: those that every node
	// makes all the time.
	Quiet bool
}

// CommonKinds are the refusals that every route may give.
func CommonKinds() []schema.Kind {
	return []schema.Kind{schema.KindInvalidRequest, schema.KindServiceUnavailable, schema.KindInternal}
}

// Codes returns every error code the route may answer with, sorted.
func (r Route) Codes() []schema.Kind {
	return slices.Compact(slices.Sorted(slices.Values(append(CommonKinds(), r.Kinds...))))
}

// Statuses returns every status the route may answer with, sorted.
func (r Route) Statuses() []int {
	set := map[int]bool{}
	for _, s := range r.Success {
		set[s] = true
	}
	for _, k := range r.Codes() {
		set[k.Info().HTTP] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// Observer records a request.
type Observer func(route string, status int, took time.Duration)

// Config describes one listener.
type Config struct {
	// Listener names the listener in the log, for example node.
	Listener string
	Log      *slog.Logger
	// Guard refuses requests before any route sees them. Defaults to none.
	Guard  func(r *http.Request) error
	Routes []Route
	// Observe records each request by its route, which is the method and the path
	// template. Defaults to none.
	Observe Observer
}

// New returns the handler of a listener. Paths it does not know are answered
// 404 and methods a path does not have 405, both as envelopes.
func New(cfg Config) http.Handler {
	s := &server{cfg: cfg, mux: http.NewServeMux()}
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
	s.mux.HandleFunc("/", notFound)
	return s
}

type server struct {
	cfg Config
	mux *http.ServeMux
}

// ServeHTTP implements http.Handler: everything around a route.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	rec := &record{correlationID: correlationID(r.Header), path: "unmatched"}
	r = r.WithContext(context.WithValue(r.Context(), recordKey{}, rec))
	a := &answer{ResponseWriter: w}
	a.Header().Set(wire.HeaderCorrelationID, rec.correlationID)
	a.Header().Set("Cache-Control", "no-store")
	defer func() {
		aborted := s.recovered(a, r, recover())
		took := time.Since(start)
		s.log(r, rec, a.status, took)
		if s.cfg.Observe != nil {
			s.cfg.Observe(method(r)+" "+rec.path, a.status, took)
		}
		if aborted {
			panic(http.ErrAbortHandler)
		}
	}()
	s.dispatch(a, r)
}

// recovered handles a panic value: it reports true when the connection must be
// cut because an answer had begun.
func (s *server) recovered(a *answer, r *http.Request, v any) bool {
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

func (s *server) dispatch(w *answer, r *http.Request) {
	if s.cfg.Guard != nil {
		if err := s.cfg.Guard(r); err != nil {
			refuse(w, r, err)
			return
		}
	}
	// The mux would answer an unclean path with a redirect of its own.
	if r.URL.Path != path.Clean(r.URL.Path) || r.Method == http.MethodConnect {
		notFound(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

func notFound(w http.ResponseWriter, r *http.Request) {
	refuse(w, r, schema.NewError(schema.KindNotFound, "no such path"))
}

// endpoint answers all methods of one path. Routes are pointers, and a refusal is
// made elsewhere, since the frames here lie on the stack of every parked poll.
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

func refuseMethod(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	refuseWith(w, r, http.StatusMethodNotAllowed,
		schema.NewError(schema.KindInvalidRequest, "this path takes %s", allow).WithReason("method_not_allowed"))
}

// run calls the route's handler under its deadline and caps.
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

// bound sets what a slow or large client is allowed. Deadlines are set for each
// request, since those of the one before stay on an open connection.
func bound(route *Route, w http.ResponseWriter, r *http.Request, limit time.Duration) error {
	if route.MaxBody == 0 && r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
		return schema.NewError(schema.KindInvalidRequest, "this request takes no body").WithReason("body_not_allowed")
	}
	now := time.Now()
	c := http.NewResponseController(w)
	// A writer without deadlines is a test's recorder.
	_ = c.SetWriteDeadline(now.Add(limit + writeSlack))
	if route.MaxBody > 0 {
		_ = c.SetReadDeadline(now.Add(limit)) // until the body is read
		r.Body = http.MaxBytesReader(w, r.Body, int64(route.MaxBody))
		recordOf(r.Context()).maxBody = route.MaxBody
	}
	return nil
}
