package adminapi

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// How a package is delivered to a node.
const (
	DeliverRegistry = "registry"
	DeliverArchive  = "archive"
)

// Config is what the admin API needs. All fields but Package, WebURL and Faults
// must be set.
type Config struct {
	// Env and NodeURL go into bootstrap bundles: the environment's name and the
	// node API's public URL.
	Env     string
	NodeURL string
	// Auth tells who makes a request.
	Auth      Authenticator
	Store     Store
	Views     Views
	Lifecycle Lifecycle
	Trust     Trust
	Log       *slog.Logger
	// Package describes the agent package of a new bundle, with a fresh pull
	// credential where it needs one. Nil when none is configured.
	Package func() (*trust.AgentPackage, error)
	// Ready answers the readiness check.
	Ready func() error
	// WebURL returns the page of a run in Temporal's Web UI.
	WebURL func(workflowID, runID string) string
	// Faults are the faults of the control plane that an operator must know.
	Faults func(r *http.Request) []wire.ControlPlaneFault
	// Observe records each request. Defaults to none.
	Observe edge.Observer
}

// API is the admin API.
type API struct {
	cfg    Config
	events *hub
}

// New returns the admin API over cfg.
func New(cfg Config) *API { return &API{cfg: cfg, events: newHub(cfg.Views)} }

// Handler returns the listener's handler.
func (a *API) Handler() http.Handler {
	return edge.New(edge.Config{Listener: "admin", Log: a.cfg.Log, Observe: a.cfg.Observe, Routes: a.Routes()})
}

// submitTime bounds a request that waits for a workflow's early answer.
const submitTime = 40 * time.Second

// adminPath is the prefix of every endpoint but the readiness check.
const adminPath = "/api/v1/admin"

// Endpoint is a route with the role that its callers need.
type Endpoint struct {
	edge.Route
	Role Role
}

// handler is an endpoint's code; by is the authenticated subject.
type handler func(w http.ResponseWriter, r *http.Request, by audit.Subject) error

// Routes returns the listener's endpoints, each with its authentication.
func (a *API) Routes() []edge.Route {
	routes := []edge.Route{edge.HealthRoute(edge.HealthPath, a.cfg.Ready)}
	for _, e := range a.Endpoints() {
		routes = append(routes, e.Route)
	}
	return routes
}

// Endpoints returns the endpoints that need a subject.
func (a *API) Endpoints() []Endpoint {
	notFound, taken := schema.KindNotFound, schema.KindOperationInProgress
	all := []Endpoint{
		a.post(trust.RoleOperator, "/nodes", http.StatusCreated, a.register),
		a.get("/nodes", a.nodes),
		a.get("/nodes/{node}", a.node, notFound),
		a.endpoint(trust.RoleOperator, edge.Route{Method: http.MethodPatch, Path: adminPath + "/nodes/{node}",
			Success: []int{http.StatusOK}, MaxBody: wire.MaxBodyBytes, Kinds: []schema.Kind{notFound}}, a.setNode),
		a.post(trust.RoleBootstrapper, "/nodes/{node}/bootstrap-script", http.StatusOK, a.bootstrapScript,
			schema.KindInvalidNodeIdentity, notFound, taken),
		a.get("/operations", a.operations, notFound),
		a.get("/operations/{operation_id}", a.operation, notFound),
		a.get("/stuck", a.stuck, notFound),
		a.get("/tasks", a.tasks, notFound),
		a.get("/tasks/{task_id}", a.task, notFound),
		a.post(trust.RoleOperator, "/tasks/{task_id}/resume", http.StatusOK, a.decideTask("resume"), notFound, schema.KindTaskStatus),
		a.post(trust.RoleOperator, "/tasks/{task_id}/cancel", http.StatusOK, a.decideTask("cancel"), notFound, schema.KindTaskStatus),
		a.get("/audit", a.audit, notFound),
		a.get("/audit/streams", a.auditStreams),
		a.get("/audit/streams/{stream}", a.auditStream, notFound),
		a.eventsEndpoint(),
	}
	for _, plan := range lifecycle.Operations() {
		action := plan.Action
		kinds := []schema.Kind{notFound, schema.KindNodeInUse, taken, schema.KindClaimExpired}
		if purposeOf(action) != "" {
			kinds = append(kinds, schema.KindInvalidNodeIdentity) // a token is refused to a locked or removed node
		}
		all = append(all, a.post(roleOf(action), "/nodes/{node}/"+string(action), http.StatusAccepted, a.lifecycle(action), kinds...))
	}
	for _, d := range lifecycle.Decisions() {
		role := trust.RoleOperator
		if d == lifecycle.DecisionForce {
			role = trust.RoleAdmin
		}
		all = append(all, a.post(role, "/operations/{operation_id}/"+string(d), http.StatusOK, a.resolve(d),
			notFound, schema.KindDecisionOutdated))
	}
	return all
}

// roleOf is the role that an action needs: remove cannot be undone.
func roleOf(action lifecycle.Action) Role {
	if action == lifecycle.ActionRemove {
		return trust.RoleAdmin
	}
	return trust.RoleOperator
}

func (a *API) get(path string, h handler, kinds ...schema.Kind) Endpoint {
	return a.endpoint(trust.RoleViewer, edge.Route{Method: http.MethodGet, Path: adminPath + path,
		Success: []int{http.StatusOK}, Kinds: kinds}, h)
}

func (a *API) post(role Role, path string, success int, h handler, kinds ...schema.Kind) Endpoint {
	return a.endpoint(role, edge.Route{Method: http.MethodPost, Path: adminPath + path, Success: []int{success},
		MaxBody: wire.MaxBodyBytes, Timeout: submitTime, Kinds: kinds}, h)
}

// endpoint puts authentication and the check of the role before a handler.
func (a *API) endpoint(role Role, r edge.Route, h handler) Endpoint {
	r.Kinds = append(r.Kinds, schema.KindUnauthenticated, schema.KindForbidden)
	r.Handle = func(w http.ResponseWriter, req *http.Request) error {
		subject, err := a.cfg.Auth.Authenticate(req)
		if err != nil {
			return err
		}
		edge.Annotate(req.Context(), slog.String("actor", subject.Name))
		if !subject.Role.Allows(role) {
			return schema.NewError(schema.KindForbidden, "%s has the role %s; this needs %s", subject.Name, subject.Role, role).
				WithReason("role")
		}
		return h(w, req, audit.Subject{Actor: subject.Name, Via: viaAPI, CorrelationID: edge.CorrelationID(req.Context())})
	}
	return Endpoint{r, role}
}

// viaAPI is the door that the audit names for requests of this API.
const viaAPI = "api"
