package server

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/internal/sets"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// app is everything the process holds open. store, listener, vault and
// serverCert are there once connect returned true.
type app struct {
	cfg      config
	log      *slog.Logger
	registry *prometheus.Registry
	metrics  *metrics.Metrics
	temporal *temporal.Client
	tokens   *adminapi.Tokens

	store      *store.Store
	listener   *store.Listener
	vault      *vault.Client
	sets       *sets.Follower
	grants     *vault.Grants
	serverCert *vault.ServerCertificate

	// admin is there once connect returned true.
	admin *adminapi.API
	// ready is the admin API's handler, once there is one; waitsFor what the
	// process waits for until then.
	ready    atomic.Pointer[http.Handler]
	waitsFor atomic.Pointer[string]
}

// newApp makes what needs no server to be up. Temporal is dialled at first use.
func newApp(cfg config, log *slog.Logger) (*app, error) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	sdkMetrics, err := temporal.Metrics(reg)
	if err != nil {
		return nil, err
	}
	client, err := temporal.Dial(context.Background(), temporal.Config{Logger: log, Metrics: sdkMetrics, Secrets: cfg.secrets})
	if err != nil {
		return nil, err
	}
	tokens, err := adminapi.NewTokens(cfg.tokenHash, cfg.actor, cfg.tokensFile)
	if err != nil {
		client.Close()
		return nil, err
	}
	return &app{cfg: cfg, log: log, registry: reg, metrics: metrics.New(reg), temporal: client, tokens: tokens}, nil
}

// close gives back what was opened, in reverse.
func (a *app) close() {
	if a.vault != nil {
		a.vault.Close()
	}
	if a.store != nil {
		a.store.Close()
	}
	a.temporal.Close()
}

// connect opens Postgres and Vault, waiting for each as long as it takes. It
// reports false when ctx ended first.
func (a *app) connect(ctx context.Context) bool {
	steps := []struct {
		name string
		open func() error
	}{
		{"Postgres", func() (err error) {
			a.store, err = store.Open(ctx, store.Config{URL: a.cfg.databaseURL})
			return err
		}},
		{"the database's schema", func() error {
			_, err := a.store.NodeCounts(ctx)
			return err
		}},
		{"Postgres notifications", func() (err error) {
			a.listener, err = store.NewListener(a.cfg.databaseURL, a.log)
			return err
		}},
		{"Vault", func() (err error) {
			a.vault, err = vault.Login(ctx, vault.Config{
				Address: a.cfg.vaultAddr, RoleIDFile: a.cfg.roleIDFile, SecretIDFile: a.cfg.secretIDFile,
				Env: a.cfg.env, Log: a.log,
				Observe: func(op string, took time.Duration, _ error) { a.metrics.Vault(op, took) },
			})
			return err
		}},
		{"the server certificate", func() (err error) {
			a.serverCert, err = a.vault.ServerCertificate(ctx)
			return err
		}},
		{"the node CA", func() error {
			_, err := a.vault.Roots(ctx)
			return err
		}},
		{"a lease key", func() error { return a.delegation(ctx) }},
	}
	for _, s := range steps {
		a.waitsFor.Store(&s.name)
		if !retry(ctx, a.log, s.name, s.open) {
			return false
		}
	}
	a.admin = a.adminAPI()
	handler := a.admin.Handler()
	a.ready.Store(&handler)
	return true
}

// delegation begins to follow the verifier sets and makes this process's lease
// key. Neither being good yet keeps nobody out: polls park and heartbeats are
// taken meanwhile, and only work is not handed over.
func (a *app) delegation(ctx context.Context) (err error) {
	a.sets = sets.New(a.store, a.vault, a.log, a.metrics.Signer)
	if err := a.sets.Refresh(ctx); err != nil {
		a.log.Error("no task is handed over", slog.Any("err", err), slog.String("next", schema.AsError(err).Next))
	}
	a.grants, err = a.vault.Grants(a.metrics.LeaseKey)
	return err
}

// work starts what runs beside the listeners: notifications, what stands in
// for lost ones, and the relay.
func (a *app) work(ctx context.Context, group *sync.WaitGroup) {
	a.registry.MustRegister(metrics.NewCensus(a.store, a.log))
	group.Go(func() {
		if err := a.listener.Run(ctx); err != nil && ctx.Err() == nil {
			a.log.Error("listening for notifications ended", slog.Any("err", err))
		}
	})
	group.Go(func() {
		_ = a.store.Sweep(ctx, a.listener) // ends with the context
	})
	group.Go(func() { a.sets.Run(ctx, a.listener.Sets()) })
	outbox := a.store.Outbox(a.listener)
	r := &relay.Relay{Outbox: outbox, Temporal: a.temporal, Metrics: a.metrics, Log: a.log}
	group.Go(func() {
		defer outbox.Rest()
		r.Run(ctx)
	})
}

// readiness answers the health checks.
func (a *app) readiness() error {
	if a.ready.Load() != nil {
		return nil
	}
	what := "its start"
	if w := a.waitsFor.Load(); w != nil {
		what = *w
	}
	return schema.Errorf(schema.KindServiceUnavailable, "waiting for %s", what)
}

func (a *app) nodeServer() *http.Server {
	api := nodeapi.New(nodeapi.Config{
		Env: a.cfg.env, Store: a.store, Wakes: a.listener, Issuer: a.vault, CAs: a.vault,
		Grants: a.grants, Sets: a.sets, Beats: a.temporal,
		Metrics: a.metrics, Log: a.log, Ready: a.readiness,
		IssueRate: a.cfg.issueRate, Bundles: a.admin, Packages: a.cfg.agent.served(),
	})
	return api.Server(func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return a.serverCert.GetCertificate(h) })
}

func (a *app) adminAPI() *adminapi.API {
	return adminapi.New(adminapi.Config{
		Env: a.cfg.env, NodeURL: a.cfg.nodeURL, Auth: a.tokens,
		Store: a.store, Views: a.store.Admin(), Lifecycle: a.temporal, Trust: a.vault, Log: a.log, Ready: a.readiness,
		Package: a.cfg.agent.source(a.cfg.nodeURL), WebURL: a.temporal.WebURL, Faults: a.faults,
	})
}

// faults are the control plane's faults for the list of what is stuck.
func (a *app) faults(r *http.Request) []wire.ControlPlaneFault {
	var out []wire.ControlPlaneFault
	ctx, cancel := context.WithTimeout(r.Context(), faultBudget)
	defer cancel()
	switch h, err := a.temporal.ReclaimSchedule(ctx); {
	case err != nil:
		e := schema.AsError(err)
		out = append(out, wire.ControlPlaneFault{Component: "temporal", Reason: string(e.Kind), Message: e.Message, Next: e.Next})
	case h.State != temporal.ScheduleRuns:
		out = append(out, wire.ControlPlaneFault{Component: "reclaimer", Reason: string(h.State), Message: h.Message, Next: h.Next})
	}
	if err := a.tokens.Fault(); err != nil {
		out = append(out, wire.ControlPlaneFault{Component: "admin-tokens", Reason: "not_loaded", Message: err.Error(),
			Next: "correct the file of GPUAAS_ADMIN_TOKENS_FILE"})
	}
	return out
}

// faultBudget bounds the question how Temporal is.
const faultBudget = 3 * time.Second

// adminServer serves the admin API, and 503 until it is there.
func (a *app) adminServer() *http.Server {
	waiting := edge.New(edge.Config{
		Listener: "admin", Log: a.log,
		Guard: func(r *http.Request) error {
			if r.URL.Path == edge.HealthPath {
				return nil
			}
			return a.readiness()
		},
		Routes: []edge.Route{edge.HealthRoute(edge.HealthPath, a.readiness)},
	})
	return edge.Server(a.log, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := a.ready.Load(); h != nil {
			(*h).ServeHTTP(w, r)
			return
		}
		waiting.ServeHTTP(w, r)
	}))
}

// metricsServer serves /metrics and /healthz.
func (a *app) metricsServer() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{Registry: a.registry}))
	mux.Handle("/", edge.New(edge.Config{Listener: "metrics", Log: a.log,
		Routes: []edge.Route{edge.HealthRoute("/healthz", a.readiness)}}))
	return edge.Server(a.log, mux)
}
