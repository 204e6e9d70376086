package adminapi

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// How a package is delivered to a node.
const (
	DeliverRegistry = "registry"
	DeliverArchive  = "archive"
)

// Config configures the admin API. Package, WebURL, Faults, Unclaimed and Observe are
// optional.
type Config struct {
	// Env and NodeURL go into bootstrap bundles: the environment's name and the
	// node API's public URL.
	Env     string
	NodeURL string
	// Secrets finds secrets in requests. Defaults to a scanner for their forms.
	Secrets *secrets.Scanner
	// Auth identifies the subject of a request.
	Auth             Authenticator
	Nodes            Nodes
	SKUs             SKUs
	Machines         Machines
	EnrollmentTokens EnrollmentTokens
	Locks            IdentityLocks
	Operations       Operations
	Tasks            Tasks
	Trail            Trail
	Signals          Signals
	Templates        Templates
	Insights         Insights
	Repairs          Repairs
	Checkpoints      Checkpoints
	// CheckpointKeys returns the public keys of audit checkpoints, by key ID.
	CheckpointKeys func(context.Context) (map[string]ed25519.PublicKey, error)
	Lifecycle      Lifecycle
	Rehydrator     Rehydrator
	Trust          Trust
	Rotations      Rotations
	RotationDriver RotationDriver
	Recovery       Recovery
	Log            *slog.Logger
	// Package describes the agent package of a new bundle, with a fresh pull
	// credential where it needs one. Nil if no package is configured.
	Package func() (*trust.AgentPackage, error)
	// ReleaseKeys are the public keys of the agent's releases, for bundles; empty for none.
	ReleaseKeys string
	// Release returns the signed document of a version of the agent for an architecture (GOARCH; empty
	// if it is not known). KindNotFound or KindInvalidRequest if there is none that can be used.
	Release func(version, arch string) (string, error)
	// Ready returns nil if the process can serve requests.
	Ready func() error
	// WebURL returns the page of a run in Temporal's Web UI.
	WebURL func(workflowID, runID string) string
	// Faults returns the faults of the control plane that need an operator.
	Faults func(r *http.Request) []wire.ControlPlaneFault
	// Unclaimed returns the operations that were accepted and that no worker has claimed, oldest
	// first.
	Unclaimed func(context.Context) ([]stuck.Node, error)
	// Observe records each request.
	Observe edge.Observer
}

// API is the admin API. Run must run while event streams are served.
type API struct {
	base    base
	bundles bundles
	events  *events
	reports *reportLimits
}

// New returns the admin API with the configuration.
func New(cfg Config) *API {
	cfg.Secrets = cmp.Or(cfg.Secrets, secrets.New())
	b := base{&cfg}
	return &API{base: b, bundles: bundles{b}, events: &events{base: b, streams: map[*stream]bool{}},
		reports: &reportLimits{subjects: map[string]*rate.Limiter{}}}
}

// Run reads changes for the event streams until ctx ends, and then ends the
// streams.
func (a *API) Run(ctx context.Context) error { return a.events.run(ctx) }

// Handler returns the listener's handler.
func (a *API) Handler() http.Handler {
	return edge.New(edge.Config{Listener: "admin", Log: a.base.Log, Secrets: a.base.Secrets, Observe: a.base.Observe, Routes: a.Routes(), Next: NextStep})
}

// submitTime bounds a request that waits for a workflow's early response.
const submitTime = 40 * time.Second

// adminPath is the prefix of every endpoint except the readiness check.
const adminPath = "/api/v1/admin"

// viaAPI is the interface that the audit names for requests of this API, unless the subject
// has another one.
const viaAPI = "api"

// Endpoint is a route with the role that its callers need. Those with the role Also may use it, too;
// empty for none.
type Endpoint struct {
	edge.Route
	Role, Also Role
}

// Routes returns the listener's endpoints, each with its authentication.
func (a *API) Routes() []edge.Route {
	routes := []edge.Route{edge.HealthRoute(a.base.Ready)}
	for _, e := range a.Endpoints() {
		routes = append(routes, e.Route)
	}
	return routes
}

// Endpoints returns the endpoints that need a subject. Actions and decisions are
// those of the lifecycle package.
func (a *API) Endpoints() []Endpoint {
	const get, post, patch = http.MethodGet, http.MethodPost, http.MethodPatch
	const ok, viewer, operator, admin = http.StatusOK, trust.RoleViewer, trust.RoleOperator, trust.RoleAdmin
	notFound, taken, keyInUse := schema.KindNotFound, schema.KindOperationInProgress, schema.KindKeyInUse
	n, s, m, o, t, trail := nodes{a.base}, skus{a.base}, machines{a.base}, operations{a.base, a.bundles}, tasks{a.base}, trail{a.base}
	i := insights{a.base}
	all := []Endpoint{
		a.on(post, "/nodes", http.StatusCreated, operator, n.register, keyInUse),
		a.on(patch, "/nodes/{node}", ok, operator, n.set, notFound),
		a.on(post, "/nodes/{node}/rehydrate", ok, operator, n.rehydrate, notFound, taken),
		a.on(post, "/nodes/{node}/lock", ok, operator, n.lock(IdentityLocks.Lock), notFound),
		a.on(post, "/nodes/{node}/unlock", ok, admin, n.lock(IdentityLocks.Unlock), notFound),
		a.on(post, "/nodes/{node}/bootstrap-script", ok, trust.RoleBootstrapper, a.bundles.script,
			schema.KindInvalidNodeIdentity, notFound, taken),
		a.on(get, "/skus", ok, viewer, s.list),
		a.on(post, "/skus", http.StatusCreated, admin, s.add, schema.KindAlreadyExists),
		a.on(get, "/skus/{sku}", ok, viewer, s.show, notFound),
		a.on(post, "/skus/{sku}/deactivate", ok, admin, s.deactivate, notFound),
		a.on(get, "/providers", ok, viewer, m.providers),
		a.on(get, "/instances", ok, viewer, m.list, notFound),
		a.on(get, "/instances/{instance_id}", ok, viewer, m.show, notFound),
		a.on(get, "/operations", ok, viewer, o.list, notFound),
		a.on(get, "/operations/{operation_id}", ok, viewer, o.show, notFound),
		a.on(get, "/nodes/{node}/rma", ok, viewer, o.evidence, notFound),
		a.on(get, "/stuck", ok, viewer, o.stuck, notFound),
		a.on(get, "/nodes/{node}/cause", ok, viewer, i.cause, notFound),
		a.on(get, "/nodes/{node}/runbook", ok, viewer, i.runbook, notFound),
		a.on(get, "/capacity", ok, viewer, i.capacity),
		a.on(get, "/durations", ok, viewer, i.durations),
		a.on(get, "/fleet", ok, viewer, i.fleet),
		a.on(get, "/tasks", ok, viewer, t.list, notFound),
		a.on(get, "/tasks/{task_id}", ok, viewer, t.show, notFound),
		a.on(post, "/tasks/{task_id}/resume", ok, operator, t.decide(taskDecision{Tasks.ResumeTask, []task.Status{task.Pending, task.Dispatched, task.Running}}), notFound, schema.KindTaskStatus),
		a.on(post, "/tasks/{task_id}/cancel", ok, operator, t.decide(taskDecision{Tasks.CancelTask, []task.Status{task.Canceled}}), notFound, schema.KindTaskStatus),
		a.on(get, "/audit", ok, viewer, trail.list, notFound),
		a.on(get, "/audit/streams", ok, viewer, trail.streams),
		a.on(get, "/audit/streams/{stream}", ok, viewer, trail.stream, notFound),
		a.on(get, "/audit/checkpoints", ok, viewer, trail.checkpoints),
		a.on(post, "/audit/accept-gap", ok, admin, trail.acceptGap),
		a.on(get, "/version", ok, viewer, a.base.version),
		a.on(get, "/events", ok, viewer, a.events.serve, notFound, schema.KindRateLimited),
	}
	all[len(all)-1].Timeout = eventsTime
	all = append(all, a.rotations()...)
	all = append(all, a.recovery()...)
	all = append(all, a.signals()...)
	all = append(all, a.templates()...)
	for _, plan := range lifecycle.Operations() {
		all = append(all, a.on(post, "/nodes/{node}/"+string(plan.Action), http.StatusAccepted, plan.Role(), o.start(plan.Action),
			notFound, schema.KindNodeInUse, taken, keyInUse, schema.KindClaimExpired, schema.KindInvalidNodeIdentity))
	}
	for _, d := range lifecycle.Decisions() {
		all = append(all, a.on(post, "/operations/{operation_id}/"+string(d), ok, d.Role(), o.resolve(d), notFound, schema.KindDecisionOutdated, keyInUse))
	}
	return all
}

// signals returns the endpoints of the health of nodes, and those with which its reporters find the
// nodes.
func (a *API) signals() []Endpoint {
	const get, ok, viewer, reporter = http.MethodGet, http.StatusOK, trust.RoleViewer, trust.RoleReporter
	n, s := nodes{a.base}, signals{a.base, a.reports}
	all := []Endpoint{
		a.also(reporter, get, "/nodes", viewer, n.list),
		a.also(reporter, get, "/nodes/{node}", viewer, n.show, schema.KindNotFound),
		a.on(get, "/signals", ok, viewer, s.list, schema.KindNotFound),
		a.on(get, "/nodes/{node}/signals", ok, viewer, s.ofNode, schema.KindNotFound),
		a.on(http.MethodPut, "/nodes/{node}/conditions", ok, reporter, s.report, schema.KindNotFound, schema.KindRateLimited),
	}
	all[len(all)-1].MaxBody = wire.MaxPollBytes // the longest valid report fits
	return all
}

// rotations returns the endpoints of the keys that nodes trust.
func (a *API) rotations() []Endpoint {
	h := rotations{a.base}
	all := []Endpoint{
		a.on(http.MethodGet, "/trust", http.StatusOK, trust.RoleViewer, h.trust, schema.KindNotFound),
		a.on(http.MethodGet, "/trust/rotation", http.StatusOK, trust.RoleViewer, h.show, schema.KindNotFound),
		a.on(http.MethodPost, "/trust/rotation", http.StatusAccepted, trust.RoleAdmin, h.start, schema.KindNotFound, schema.KindOperationInProgress),
	}
	all[len(all)-1].Success = []int{http.StatusOK, http.StatusAccepted} // 200 for a dry run
	for _, d := range rotation.Decisions() {
		all = append(all, a.on(http.MethodPost, "/trust/rotation/"+string(d), http.StatusOK, trust.RoleAdmin, h.decide(d),
			schema.KindNotFound, schema.KindDecisionOutdated, schema.KindFenced))
	}
	return all
}

// call is a request of an authenticated subject.
type call struct {
	*http.Request
	w       http.ResponseWriter
	by      audit.Subject
	key     string // its idempotency key; empty without one
	secrets *secrets.Scanner
	// authorize checks the subject and its role again.
	authorize func() error
}

// handler serves an endpoint and returns the body of the response. A handler that
// has responded returns nil.
type handler func(c *call) (body any, err error)

// body reads the body of a request with edge.Decode or edge.DecodeOptional, checks it
// and rejects it if it contains a secret. check may set defaults.
func body[T any](c *call, decode func(*http.Request, any) error, check func(*T) error) (req T, err error) {
	if err = decode(c.Request, &req); err == nil {
		err = check(&req)
	}
	if err == nil {
		err = c.secrets.Check(req)
	}
	return req, err
}

// on returns an endpoint that calls h for subjects with the role.
func (a *API) on(method, path string, status int, role Role, h handler, kinds ...schema.Kind) Endpoint {
	route := edge.Route{Method: method, Path: adminPath + path, Success: []int{status},
		Kinds: append(kinds, schema.KindUnauthenticated, schema.KindForbidden)}
	if method != http.MethodGet {
		route.MaxBody, route.Timeout = wire.MaxBodyBytes, submitTime
	}
	route.Handle = a.handle(status, h, role)
	return Endpoint{Route: route, Role: role}
}

// also is on for an endpoint that subjects with another role may read, too.
func (a *API) also(other Role, method, path string, role Role, h handler, kinds ...schema.Kind) Endpoint {
	e := a.on(method, path, http.StatusOK, role, h, kinds...)
	e.Also, e.Handle = other, a.handle(http.StatusOK, h, role, other)
	return e
}

// handle serves an endpoint for subjects with one of the roles.
func (a *API) handle(status int, h handler, roles ...Role) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		subject, err := a.base.authorize(r, roles...)
		if err != nil {
			return err
		}
		c := &call{Request: r, w: w, secrets: a.base.Secrets, by: audit.Subject{Actor: subject.Name, Via: cmp.Or(subject.Via, viaAPI), CorrelationID: edge.CorrelationID(r.Context())}}
		c.authorize = func() error { _, err := a.base.authorize(r, roles...); return err }
		if c.key, err = idempotencyKey(r.Header); err != nil {
			return err
		}
		body, err := h(c)
		if body == nil || err != nil {
			return err
		}
		return edge.JSON(w, status, body)
	}
}
