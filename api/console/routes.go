package console

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// maxForm is the largest body of a form in bytes.
const maxForm = 16 << 10

// formTime bounds a request that waits for an operation to be accepted. It is longer than that
// of the admin API, whose error then reaches the page.
const formTime = 45 * time.Second

// Route is one page or form of the console.
type Route struct {
	Method string
	// Path is a pattern of http.ServeMux below Prefix, without method; empty for the overview.
	Path string
	// Role is what the subject needs at least. The admin API decides about each call again.
	Role trust.Role
	// serve returns what to show.
	serve func(*request) (view, error)
	// shared says that the content depends only on the address, the role, and what fetchShared and
	// fetchRecent read. Such a page is rendered once for all who open it.
	shared bool
}

// Routes returns every page and form that needs a session.
func Routes() []Route {
	return slices.Concat(overviewRoutes(), nodeRoutes(), changeRoutes(), operationRoutes(), taskRoutes(), auditRoutes(), trustRoutes(), agentRoutes(), bulkRoutes())
}

// get is the route of a page.
func get(path string, serve func(*request) (view, error)) Route {
	return Route{Method: http.MethodGet, Path: path, Role: trust.RoleViewer, serve: serve}
}

// shared is the route of a page that is the same for all subjects with one role.
func shared(path string, serve func(*request) (view, error)) Route {
	r := get(path, serve)
	r.shared = true
	return r
}

// post is the route of a form that changes something.
func post(path string, role trust.Role, serve func(*request) (view, error)) Route {
	return Route{Method: http.MethodPost, Path: path, Role: role, serve: serve}
}

// request is one of a subject with a session.
type request struct {
	*http.Request

	Subject Subject
	// Revision is that of the data on the page: a later one means that something changed.
	Revision string
	// Region is true if the script asks for the content of the page only.
	Region bool
	Now    time.Time

	console *Console
	id      sessionID
	shared  bool // the page is that of a route with shared

	mu sync.Mutex
	at time.Time // of the oldest data on the page; zero for Now
	// reads are those whose data the page shows, with their times.
	reads []string
}

// shows notes that the page has data of a read, which may be older than the request.
func (r *request) shows(target string, data read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads = append(r.reads, fmt.Sprintf("%s at %d", target, data.at.UnixNano()))
	if data.revision != r.console.hub.revision() {
		r.Revision = data.revision // so that the stream begins with a notice
	}
	if r.at.IsZero() || data.at.Before(r.at) {
		r.at = data.at
	}
}

// May reports whether the subject has at least the role.
func (r *request) May(role trust.Role) bool { return r.Subject.Role.Allows(role) }

// view is the response to a request: a page, or the address of one.
type view struct {
	// Template is the name of a file in templates, without its extension.
	Template string
	// Title is the title of the page, and Nav the entry of the navigation that it belongs to.
	Title, Nav string
	// Watch is what makes the page read its content again: watchAll, the ID of a node, or
	// empty for a page that stays as it is.
	Watch string
	// Data is what the template shows.
	Data any
	// Status is the status code; 200 if it is 0.
	Status int
	// Location, if it is not empty, is the page that the browser opens next.
	Location string
}

// watchAll is the Watch of a page that shows more than one node.
const watchAll = "all"

// edgeRoutes returns the routes with their sessions, and the paths that need none.
func (c *Console) edgeRoutes() []edge.Route {
	all := []edge.Route{
		c.open(http.MethodGet, "/login", c.showLogin),
		c.open(http.MethodPost, "/login", c.login),
		c.open(http.MethodPost, "/logout", c.logout),
		c.open(http.MethodGet, "/static/{version}/{file}", c.assets.serve),
		c.open(http.MethodGet, "/events", c.events),
		c.open(http.MethodGet, "/{rest...}", func(w http.ResponseWriter, r *http.Request) error {
			return c.fail(w, r, Subject{}, schema.NewError(schema.KindNotFound, "no such page"))
		}),
	}
	all[slices.IndexFunc(all, func(r edge.Route) bool { return r.Path == Prefix+"/events" })].Timeout = streamTime
	for _, r := range Routes() {
		all = append(all, c.open(r.Method, r.Path, func(w http.ResponseWriter, req *http.Request) error { return c.serve(w, req, r) }))
	}
	return all
}

func (c *Console) open(method, path string, h edge.Handler) edge.Route {
	r := edge.Route{Method: method, Path: Prefix + path, Handle: h, Success: []int{http.StatusOK, http.StatusSeeOther}}
	if method == http.MethodPost {
		r.MaxBody, r.Timeout = maxForm, formTime
	}
	return r
}

// serve checks the session and the role, and responds with the page or its error.
func (c *Console) serve(w http.ResponseWriter, r *http.Request, route Route) error {
	subject, id, err := c.sessions.of(r)
	if err != nil {
		return c.unauthenticated(w, r, err)
	}
	edge.Annotate(r.Context(), slog.String("actor", subject.Name))
	req := &request{Request: r, Subject: subject, Revision: c.hub.revision(), Region: r.Header.Get("Gpuaas-Region") != "",
		Now: c.cfg.Now(), console: c, id: id, shared: route.shared}
	if !req.May(route.Role) {
		return c.fail(w, r, subject, schema.NewError(schema.KindForbidden, "%s has the role %s; this needs the role %s", subject.Name, subject.Role, route.Role).
			WithReason("role").WithNext("log in with a token of a subject with the role "+string(route.Role)))
	}
	if r.Method == http.MethodPost {
		if err := r.ParseForm(); err != nil {
			return c.fail(w, r, subject, schema.NewError(schema.KindInvalidRequest, "the form cannot be read").WithReason("malformed_body"))
		}
	}
	v, err := route.serve(req)
	if err != nil {
		return c.fail(w, r, subject, err)
	}
	if v.Location != "" {
		http.Redirect(w, r, v.Location, http.StatusSeeOther)
		return nil
	}
	return c.render(w, req, v)
}

// unauthenticated leads a browser to the login and rejects everything else.
func (c *Console) unauthenticated(w http.ResponseWriter, r *http.Request, err error) error {
	if schema.KindOf(err) != schema.KindUnauthenticated {
		return c.fail(w, r, Subject{}, err)
	}
	if r.Method == http.MethodGet && r.Header.Get("Gpuaas-Region") == "" {
		http.Redirect(w, r, Prefix+"/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		return nil
	}
	return c.fail(w, r, Subject{}, err)
}

// fail shows an error as a page.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, subject Subject, err error) error {
	e := schema.AsError(err)
	status := e.Kind.Info().HTTP
	if status >= http.StatusInternalServerError {
		edge.Annotate(r.Context(), slog.String("code", string(e.Kind)), slog.String("err", e.Error()))
	}
	if e.Kind == schema.KindInternal {
		e = schema.NewError(schema.KindInternal, "internal error")
	}
	next := strings.TrimSpace(e.Next)
	if e.Kind == schema.KindServiceUnavailable && next == "" {
		next = "gpuaas stuck" // names the service
	}
	req := &request{Request: r, Subject: subject, Revision: c.hub.revision(), Now: c.cfg.Now(), console: c,
		Region: r.Header.Get("Gpuaas-Region") != ""}
	page := errorPage{Status: status, Code: e.Kind, Message: e.Message, Reason: e.Reason,
		Next: next, CorrelationID: edge.CorrelationID(r.Context())}
	if stale, ok := errors.AsType[*staleError](err); ok {
		page.Now, page.Link = stale.now, stale.link
	}
	if w.Header().Get("Retry-After") == "" && (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) {
		w.Header().Set("Retry-After", "5")
	}
	return c.render(w, req, view{Template: "error", Title: http.StatusText(status), Status: status, Data: page})
}

// errorPage is the data of the template error.
type errorPage struct {
	Status                int
	Code                  schema.Kind
	Message, Reason, Next string
	CorrelationID         string
	// Now says what the state is now, and Link is the page that shows it, after a decision from
	// a page that was outdated.
	Now, Link string
}

// staleError is the refusal of a decision from an outdated page, with the state now.
type staleError struct {
	refusal   error
	now, link string
}

// Error returns the text of the refusal.
func (e *staleError) Error() string { return e.refusal.Error() }

// Unwrap returns the refusal.
func (e *staleError) Unwrap() error { return e.refusal }
