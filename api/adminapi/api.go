package adminapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// How a package comes to a node.
const (
	DeliverRegistry = "registry"
	DeliverArchive  = "archive"
)

// Config is what the admin API needs. All fields but Package must be set.
type Config struct {
	// Env and NodeURL go into bootstrap bundles: the environment's name and the
	// node API's public URL.
	Env     string
	NodeURL string
	// TokenHash is the SHA-256 of the bearer token, Actor the subject it stands
	// for in the audit.
	TokenHash [sha256.Size]byte
	Actor     string
	Store     Store
	Lifecycle Lifecycle
	Trust     Trust
	Log       *slog.Logger
	// Package describes the agent package of a new bundle, with a fresh pull
	// credential where it needs one. Nil when none is configured.
	Package func() (*trust.AgentPackage, error)
	// Ready answers the readiness check.
	Ready func() error
	// Observe records each request. Defaults to none.
	Observe edge.Observer
}

// API is the admin API.
type API struct{ cfg Config }

// New returns the admin API over cfg.
func New(cfg Config) *API { return &API{cfg: cfg} }

// Handler returns the listener's handler.
func (a *API) Handler() http.Handler {
	return edge.New(edge.Config{Listener: "admin", Log: a.cfg.Log, Observe: a.cfg.Observe, Routes: a.Routes()})
}

// submitTime bounds a request that waits for a workflow's early answer.
const submitTime = 40 * time.Second

// adminPath is where everything but the readiness check lives.
const adminPath = "/api/v1/admin"

// Routes returns the listener's endpoints.
func (a *API) Routes() []edge.Route {
	get := func(path string, h handler, kinds ...schema.Kind) edge.Route {
		return a.route(edge.Route{Method: http.MethodGet, Path: path, Success: []int{http.StatusOK}, Kinds: kinds}, h)
	}
	routes := []edge.Route{
		a.route(edge.Route{Method: http.MethodPost, Path: adminPath + "/nodes", Success: []int{http.StatusCreated},
			MaxBody: wire.MaxBodyBytes}, a.register),
		get(adminPath+"/nodes", a.nodes),
		get(adminPath+"/nodes/{node}", a.node, schema.KindNotFound),
		get(adminPath+"/audit", a.audit, schema.KindNotFound),
		get(adminPath+"/operations", a.operations, schema.KindNotFound),
		get(adminPath+"/tasks", a.tasks, schema.KindNotFound),
		get(adminPath+"/tasks/{task_id}", a.task, schema.KindNotFound),
		a.decisionRoute("resume", func(ctx context.Context, id, reason string, by audit.Subject) (wire.TaskView, error) {
			return a.cfg.Store.ResumeTask(ctx, id, reason, by)
		}),
		a.decisionRoute("cancel", func(ctx context.Context, id, reason string, by audit.Subject) (wire.TaskView, error) {
			return a.cfg.Store.CancelTask(ctx, id, reason, by)
		}),
		edge.HealthRoute(edge.HealthPath, a.cfg.Ready),
	}
	// What hands out a token meets nodes that are locked or removed.
	lockable := []schema.Kind{schema.KindInvalidNodeIdentity}
	routes = append(routes, a.route(edge.Route{Method: http.MethodPost, Path: adminPath + "/nodes/{node}/bootstrap-script",
		Success: []int{http.StatusOK}, MaxBody: wire.MaxBodyBytes, Timeout: submitTime,
		Kinds: append(lockable, schema.KindNotFound, schema.KindOperationInProgress)}, a.bootstrapScript))
	for _, plan := range lifecycle.Operations() {
		action := plan.Action
		kinds := []schema.Kind{schema.KindNotFound, schema.KindNodeInUse, schema.KindOperationInProgress}
		if purposeOf(action) != "" {
			kinds = append(kinds, lockable...)
		}
		routes = append(routes, a.route(edge.Route{
			Method: http.MethodPost, Path: adminPath + "/nodes/{node}/" + string(action),
			Success: []int{http.StatusAccepted}, MaxBody: wire.MaxBodyBytes, Timeout: submitTime,
			Kinds: kinds,
		}, a.lifecycle(action)))
	}
	return routes
}

// decisionRoute is the endpoint of a decision about a task.
func (a *API) decisionRoute(verb string, d decision) edge.Route {
	return a.route(edge.Route{Method: http.MethodPost, Path: adminPath + "/tasks/{task_id}/" + verb,
		Success: []int{http.StatusOK}, MaxBody: wire.MaxBodyBytes,
		Kinds: []schema.Kind{schema.KindNotFound, schema.KindTaskStatus}}, a.decideTask(d))
}

// handler is an endpoint that knows who asks.
type handler func(w http.ResponseWriter, r *http.Request, by audit.Subject) error

// route puts the bearer check before an endpoint.
func (a *API) route(r edge.Route, h handler) edge.Route {
	r.Kinds = append(r.Kinds, schema.KindUnauthenticated)
	r.Handle = func(w http.ResponseWriter, req *http.Request) error {
		by, err := a.subject(req)
		if err != nil {
			return err
		}
		edge.Annotate(req.Context(), slog.String("actor", by.Actor))
		return h(w, req, by)
	}
	return r
}

// subject authenticates the bearer token. Both sides are hashed, so the
// comparison takes the same time whatever is sent.
func (a *API) subject(r *http.Request) (audit.Subject, error) {
	values := r.Header.Values("Authorization")
	scheme, token, ok := strings.Cut(strings.Join(values, ","), " ")
	if !ok || len(values) != 1 || !strings.EqualFold(scheme, "Bearer") {
		return audit.Subject{}, schema.NewError(schema.KindUnauthenticated, "this endpoint needs a bearer token").WithReason("no_token")
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if subtle.ConstantTimeCompare(sum[:], a.cfg.TokenHash[:]) != 1 {
		return audit.Subject{}, schema.NewError(schema.KindUnauthenticated, "the bearer token is not accepted").WithReason("bad_token")
	}
	return audit.Subject{Actor: a.cfg.Actor, CorrelationID: edge.CorrelationID(r.Context())}, nil
}
