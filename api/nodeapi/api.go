package nodeapi

import (
	"cmp"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// storeBudget bounds one call to the store, so that a database that hangs does
// not hold a poll for longer than its timeout.
const storeBudget = 10 * time.Second

// Metrics is what the node API counts.
type Metrics interface {
	PollOpened() (closed func())
	Polled(left time.Duration)
	Offered(o *wire.TaskOffer)
	// Withheld counts a look for work that was not made because nothing could
	// be granted.
	Withheld()
	TaskEnded(t task.Type, s task.Status)
	// Issued counts an answered request for an identity; nil for a certificate.
	Issued(via trust.IssueMethod, err error)
	// Budget notes an issuance that was asked for and what is left.
	Budget(priority string, granted bool, left float64)
	// Limited counts a request over the limit of a node or a remote address.
	Limited(limit string)
	IdentityRefused(reason string)
}

// Config is what the node API needs. The fields with defaults may be left out.
type Config struct {
	// Env is the environment that identities must name.
	Env     string
	Store   Store
	Wakes   Wakes
	Issuer  Issuer
	CAs     CAs
	Grants  Grants
	Sets    Sets
	Beats   Beats
	Metrics Metrics
	Log     *slog.Logger
	// Ready answers the readiness check.
	Ready func() error
	// Observe records each request. Defaults to none.
	Observe edge.Observer
	// Now is the time that certificates and tokens are judged by. Defaults to
	// time.Now.
	Now func() time.Time
	// Recheck is how often an open poll looks for a task again without a wake.
	// Defaults to the longest poll, which is never: a task's notification wakes
	// it, a new connection for notifications wakes all, the sweep ends the polls
	// of fenced nodes, and every poll begins with a look.
	Recheck time.Duration
	// IssueRate is the issuance budget: certificates a second of this process.
	// Defaults to DefaultIssueRate.
	IssueRate float64
	// NodeRate is how many identities a second one node may ask for. Defaults
	// to DefaultNodeRate.
	NodeRate float64
	// RemoteRate is how many requests without a certificate a second one remote
	// address may make. Defaults to twice the IssueRate, so that a site behind
	// one address can use all of the budget.
	RemoteRate float64
	// Bundles answers fetch references; nil knows none.
	Bundles Bundles
	// Packages are the agent packages served here by digest.
	Packages map[string]Package
}

// API is the node API.
type API struct {
	cfg     Config
	closing chan struct{}
	end     func()
	trust   atomic.Pointer[caPool] // of the last request

	budget         *budget
	nodes, remotes *limiter
}

// New returns the node API over cfg.
func New(cfg Config) *API {
	if cfg.Recheck == 0 {
		cfg.Recheck = wire.MaxPollTimeout
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.IssueRate = cmp.Or(cfg.IssueRate, DefaultIssueRate)
	cfg.NodeRate = cmp.Or(cfg.NodeRate, DefaultNodeRate)
	cfg.RemoteRate = cmp.Or(cfg.RemoteRate, 2*cfg.IssueRate)
	closing := make(chan struct{})
	return &API{cfg: cfg, closing: closing, end: sync.OnceFunc(func() { close(closing) }),
		budget: newBudget(cfg.IssueRate, cfg.Metrics), nodes: newLimiter(cfg.NodeRate, nodeBurst*cfg.NodeRate),
		remotes: newLimiter(cfg.RemoteRate, remoteSeconds*cfg.RemoteRate)}
}

// EndPolls answers every open poll with 204, now and from now on, so that a
// server can be shut down without cutting one. It may be called twice.
func (a *API) EndPolls() { a.end() }

// Handler returns the listener's handler.
func (a *API) Handler() http.Handler {
	return edge.New(edge.Config{Listener: "node", Log: a.cfg.Log, Observe: a.cfg.Observe, Guard: refuseForwardedIdentity, Routes: a.Routes()})
}

// nodePath is where everything of one node lives.
const nodePath = "/internal/v1/nodes/{node_id}"

// Routes returns the listener's endpoints.
func (a *API) Routes() []edge.Route {
	identity := schema.KindInvalidNodeIdentity
	post := func(path string, h edge.Handler, success int, kinds ...schema.Kind) edge.Route {
		return edge.Route{Method: http.MethodPost, Path: nodePath + path, Handle: h,
			Success: []int{success}, Kinds: kinds, MaxBody: wire.MaxBodyBytes}
	}
	tokens := []schema.Kind{identity, schema.KindUnauthenticated, schema.KindTokenConsumed, schema.KindTokenExpired, schema.KindRateLimited}
	enroll := post("/enroll", a.enroll, http.StatusOK, tokens...)
	recovery := post("/recover", a.recover, http.StatusOK, tokens...)
	renew := post("/certificates/renew", a.renew, http.StatusOK, identity, schema.KindTokenConsumed, schema.KindRateLimited)
	for _, r := range []*edge.Route{&enroll, &recovery, &renew} {
		r.Timeout = 30 * time.Second // Vault signs inside it
	}
	result := post("/tasks/{task_id}/result", a.result, http.StatusNoContent, identity, schema.KindLeaseLost, schema.KindNotFound)
	result.MaxBody = wire.MaxResultBytes
	heartbeat := post("/heartbeat", a.heartbeat, http.StatusNoContent, identity)
	heartbeat.Quiet = true
	return []edge.Route{
		enroll, renew, recovery,
		{Method: http.MethodGet, Path: nodePath + "/tasks/wait", Handle: a.wait,
			Success: []int{http.StatusOK, http.StatusNoContent}, Kinds: []schema.Kind{identity},
			Timeout: wire.MaxPollTimeout + 2*storeBudget, Quiet: true},
		{Method: http.MethodGet, Path: nodePath + "/verifier-sets", Handle: a.verifierSets,
			Success: []int{http.StatusOK}, Kinds: []schema.Kind{identity}},
		{Method: http.MethodGet, Path: nodePath + "/trust", Handle: a.nodeTrust,
			Success: []int{http.StatusOK}, Kinds: []schema.Kind{identity}},
		post("/tasks/{task_id}/progress", a.progress, http.StatusOK, identity, schema.KindLeaseLost, schema.KindNotFound),
		result,
		heartbeat,
		{Method: http.MethodGet, Path: "/internal/v1/bootstrap/{reference}", Handle: a.fetch, Success: []int{http.StatusOK},
			Kinds: append(tokens, schema.KindNotFound)},
		{Method: http.MethodGet, Path: "/internal/v1/packages/{digest}", Handle: a.servePackage, Success: []int{http.StatusOK},
			Kinds: []schema.Kind{schema.KindNotFound, schema.KindRateLimited}, Timeout: packageTime},
		edge.HealthRoute(edge.HealthPath, a.cfg.Ready),
	}
}
