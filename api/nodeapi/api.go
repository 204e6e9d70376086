package nodeapi

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
)

// storeBudget bounds one call to the store, so that a database that hangs does
// not hold a poll for longer than its timeout.
const storeBudget = 10 * time.Second

// Metrics is what the node API counts.
type Metrics interface {
	PollOpened() (closed func())
	Polled(left time.Duration)
	Offered(o *schema.TaskOffer)
	TaskEnded(t schema.TaskType, s schema.TaskStatus)
	Enrollment(err error)
	IdentityRefused(reason string)
}

// Config is what the node API needs. All fields but Recheck must be set.
type Config struct {
	// Env is the environment that identities must name.
	Env     string
	Store   Store
	Wakes   Wakes
	Issuer  Issuer
	Metrics Metrics
	Log     *slog.Logger
	// Ready answers the readiness check.
	Ready func() error
	// Recheck is how often an open poll looks again without a wake. Defaults to
	// 30 s.
	Recheck time.Duration
}

// API is the node API.
type API struct {
	cfg     Config
	closing chan struct{}
	end     func()
	roots   atomic.Pointer[roots] // of the last request
}

// New returns the node API over cfg.
func New(cfg Config) *API {
	if cfg.Recheck == 0 {
		cfg.Recheck = 30 * time.Second
	}
	closing := make(chan struct{})
	return &API{cfg: cfg, closing: closing, end: sync.OnceFunc(func() { close(closing) })}
}

// EndPolls answers every open poll with 204, now and from now on, so that a
// server can be shut down without cutting one. It may be called twice.
func (a *API) EndPolls() { a.end() }

// Handler returns the listener's handler.
func (a *API) Handler() http.Handler {
	return edge.New(edge.Config{Listener: "node", Log: a.cfg.Log, Guard: refuseForwardedIdentity, Routes: a.Routes()})
}

// nodePath is where everything of one node lives.
const nodePath = "/internal/v1/nodes/{node_id}"

// Routes returns the listener's endpoints.
func (a *API) Routes() []edge.Route {
	identity := schema.KindInvalidNodeIdentity
	post := func(path string, h edge.Handler, success int, kinds ...schema.Kind) edge.Route {
		return edge.Route{Method: http.MethodPost, Path: nodePath + path, Handle: h,
			Success: []int{success}, Kinds: kinds, MaxBody: schema.MaxBodyBytes}
	}
	enroll := post("/enroll", a.enroll, http.StatusOK, identity,
		schema.KindUnauthenticated, schema.KindTokenConsumed, schema.KindTokenExpired)
	enroll.Timeout = 30 * time.Second // Vault signs inside it
	result := post("/tasks/{task_id}/result", a.result, http.StatusNoContent, identity, schema.KindLeaseLost, schema.KindNotFound)
	result.MaxBody = schema.MaxResultBytes
	heartbeat := post("/heartbeat", a.heartbeat, http.StatusNoContent, identity)
	heartbeat.Quiet = true
	return []edge.Route{
		enroll,
		{Method: http.MethodGet, Path: nodePath + "/tasks/wait", Handle: a.wait,
			Success: []int{http.StatusOK, http.StatusNoContent}, Kinds: []schema.Kind{identity},
			Timeout: schema.MaxPollTimeout + 2*storeBudget, Quiet: true},
		post("/tasks/{task_id}/progress", a.progress, http.StatusOK, identity, schema.KindLeaseLost, schema.KindNotFound),
		result,
		heartbeat,
		edge.HealthRoute(edge.HealthPath, a.cfg.Ready),
	}
}
