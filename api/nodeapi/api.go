package nodeapi

import (
	"cmp"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// storeTimeout bounds one call to the database where the request's own deadline
// is longer: in a poll and around a Vault signature. The routes of all other
// calls use it as their deadline.
const storeTimeout = 10 * time.Second

// identityTimeout bounds the check of an identity. A replica that is cut off from its
// database refuses every request within this time.
const identityTimeout = 5 * time.Second

// Config configures the node API. The fields with defaults may be omitted.
type Config struct {
	// Env is the environment that identities must name.
	Env string

	Identities   Identities
	Tasks        Tasks
	Heartbeats   Heartbeats
	Notifier     Notifier
	Issuer       Issuer
	CAs          CAs
	Grants       Grants
	VerifierSets VerifierSets
	Heartbeater  Heartbeater
	Metrics      Metrics
	Log          *slog.Logger
	// Ready returns the readiness check's error.
	Ready func() error
	// Secrets finds secrets in correlation ids and in what nodes report. Defaults to a
	// scanner for their forms.
	Secrets *secrets.Scanner
	// Observe records each request. Defaults to none.
	Observe edge.Observer
	// Now is the time that certificates and tokens are checked against. Defaults
	// to time.Now.
	Now func() time.Time
	// IssueRate is this process's issuance budget in certificates a second.
	// Defaults to DefaultIssueRate.
	IssueRate float64
	// NodeRate limits the enrollments of one node, per second. Defaults to
	// DefaultNodeRate.
	NodeRate float64
	// RenewalRate limits the renewals and recoveries of one node, per second. Defaults to
	// DefaultRenewalRate.
	RenewalRate float64
	// RemoteRate limits the requests without a certificate from one remote address, or from
	// one IPv6 network of 64 bits, per second. An IPv6 network of 48 bits has twice as many.
	// Defaults to twice the IssueRate, so that a site behind one address can use the whole
	// budget.
	RemoteRate float64
	// Connections is the largest number of open connections. Defaults to
	// DefaultConnections.
	Connections int
	// Bundles exchanges bootstrap references; nil rejects them all.
	Bundles Bundles
	// Checkpoints compares the checkpoints of the audit trail that nodes keep; nil for none.
	Checkpoints Checkpoints
	// Packages are the agent packages served by digest.
	Packages map[string]Package
	// Release returns the binary of an agent's release by digest; nil for none.
	Release func(digest string) (Package, bool)
}

// API is the node API.
type API struct {
	cfg *Config
	*authenticator
	*poller
	*certificates
	perNode     *nodeLimits
	connections *connections
	downloads   *downloads
	endPolls    func()
}

// New returns the node API over cfg.
func New(cfg Config) *API {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Secrets = cmp.Or(cfg.Secrets, secrets.New())
	cfg.IssueRate = cmp.Or(cfg.IssueRate, DefaultIssueRate)
	cfg.NodeRate = cmp.Or(cfg.NodeRate, DefaultNodeRate)
	cfg.RemoteRate = cmp.Or(cfg.RemoteRate, 2*cfg.IssueRate)
	cfg.RenewalRate = cmp.Or(cfg.RenewalRate, DefaultRenewalRate)
	cfg.Connections = cmp.Or(cfg.Connections, DefaultConnections)
	closing := make(chan struct{})
	auth := &authenticator{cfg: &cfg}
	return &API{cfg: &cfg, authenticator: auth, endPolls: sync.OnceFunc(func() { close(closing) }),
		perNode:     newNodeLimits(&cfg),
		connections: newConnections(cfg.Connections, cfg.Metrics),
		downloads:   newDownloads(),
		poller:      &poller{cfg: &cfg, authenticator: auth, closing: closing},
		certificates: &certificates{cfg: &cfg, authenticator: auth, refusals: newRefusals(&cfg),
			budget:   newBudget(cfg.IssueRate, cfg.Now, cfg.Metrics),
			nodes:    newLimiter(cfg.NodeRate, nodeBurst*cfg.NodeRate, cfg.Now),
			renewals: newLimiter(cfg.RenewalRate, renewalBurst*cfg.RenewalRate, cfg.Now),
			remotes:  newLimiter(cfg.RemoteRate, remoteSeconds*cfg.RemoteRate, cfg.Now),
			sites:    newLimiter(siteFactor*cfg.RemoteRate, siteFactor*remoteSeconds*cfg.RemoteRate, cfg.Now)}}
}

// EndPolls responds to every open and future poll with 204, so that a server can
// shut down without cutting a connection. It may be called more than once.
func (a *API) EndPolls() { a.endPolls() }

// Handler returns the listener's handler.
func (a *API) Handler() http.Handler {
	return edge.New(edge.Config{Listener: "node", Log: a.cfg.Log, Secrets: a.cfg.Secrets, Observe: a.cfg.Observe, Guard: refuseForwardedIdentity, Routes: a.Routes()})
}

// nodePath is the prefix of a node's endpoints.
const nodePath = "/internal/v1/nodes/{node_id}"

// Routes returns the listener's endpoints.
func (a *API) Routes() []edge.Route {
	const identity, limited, unknown = schema.KindInvalidNodeIdentity, schema.KindRateLimited, schema.KindNotFound
	get := func(path string, h edge.Handler, success int, kinds ...schema.Kind) edge.Route {
		return edge.Route{Method: http.MethodGet, Path: path, Handle: h, Success: []int{success}, Kinds: kinds, Timeout: storeTimeout}
	}
	post := func(path string, h edge.Handler, success int, kinds ...schema.Kind) edge.Route {
		return edge.Route{Method: http.MethodPost, Path: nodePath + path, Handle: h,
			Success: []int{success}, Kinds: kinds, MaxBody: wire.MaxBodyBytes, Timeout: storeTimeout}
	}
	tokens := []schema.Kind{identity, schema.KindUnauthenticated, schema.KindTokenConsumed, schema.KindTokenExpired, limited}
	enroll := post("/enroll", a.issueHandler(trust.IssuedByEnroll, a.enroll), http.StatusOK, tokens...)
	recovery := post("/recover", a.issueHandler(trust.IssuedByRecover, a.recover), http.StatusOK, tokens...)
	renew := post("/certificates/renew", a.issueHandler(trust.IssuedByRenew, a.renew), http.StatusOK, identity, schema.KindTokenConsumed, limited)
	for _, r := range []*edge.Route{&enroll, &recovery, &renew} {
		r.Timeout = 30 * time.Second // includes the Vault signature
	}
	probe := get(nodePath+"/tasks/wait", a.probe, http.StatusNoContent, identity, limited)
	wait := post("/tasks/wait", a.wait, http.StatusOK, identity, limited)
	wait.Success = []int{http.StatusOK, http.StatusNoContent}
	wait.MaxBody, wait.Timeout, wait.Quiet = wire.MaxPollBytes, wire.MaxPollTimeout+2*storeTimeout, true
	result := post("/tasks/{task_id}/result", a.result, http.StatusNoContent, identity, schema.KindLeaseLost, unknown, limited)
	result.MaxBody = wire.MaxResultBytes
	bundle := edge.Route{Method: http.MethodPost, Path: "/internal/v1/bootstrap", Handle: a.fetchBundle, Success: []int{http.StatusOK},
		Kinds: append(tokens, unknown), MaxBody: wire.MaxBodyBytes, Timeout: storeTimeout}
	script := bundle
	script.Path, script.Handle = "/internal/v1/bootstrap/script", a.fetchScript
	pkg := get("/internal/v1/packages/{digest}", a.servePackage, http.StatusOK, unknown, limited)
	token := post("/tasks/{task_id}/identity-token", a.identityToken, http.StatusOK, identity, schema.KindLeaseLost, unknown, limited)
	token.MaxBody = 0
	authenticated := []edge.Route{
		renew, probe, wait, result, token,
		post("/tasks/{task_id}/progress", a.progress, http.StatusOK, identity, schema.KindLeaseLost, unknown, limited),
		get(nodePath+"/verifier-sets", a.verifierSets, http.StatusOK, identity, limited),
		get(nodePath+"/trust", a.nodeTrust, http.StatusOK, identity, limited),
	}
	for i, r := range authenticated {
		authenticated[i].Handle = a.limitNode(r, r.Path == wait.Path && r.Method == wait.Method)
	}
	routes := slices.Concat(authenticated, []edge.Route{enroll, recovery, bundle, script, pkg, edge.HealthRoute(a.cfg.Ready)})
	for i, r := range routes {
		if strings.HasPrefix(r.Path, nodePath) {
			routes[i].Handle = a.proveRemoval(r.Handle)
		}
	}
	return routes
}
