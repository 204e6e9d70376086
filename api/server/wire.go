package server

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/secrets"
)

// storeTimeout bounds every call to the database, so that a database that hangs
// does not hold a request for longer.
const storeTimeout = 10 * time.Second

// app holds the parts of the process. Those below connected are set once connect
// has returned nil.
type app struct {
	*daemon.Process
	cfg      *config
	metrics  *metrics.Metrics
	temporal *temporal.Client
	secrets  *secrets.Scanner

	// connected
	store      *store.Store
	listener   *store.Listener
	vault      *vault.Client
	sets       *vault.SetFollower
	grants     *vault.Grants
	serverCert *vault.ServerCertificate
	admin      *adminapi.API

	// probed are the faults of Temporal as last read.
	probed recentFaults

	// adminHandler is nil until the admin API can serve.
	adminHandler atomic.Pointer[http.Handler]
}

// newApp makes the parts that need no server. Temporal's client connects at first
// use.
func newApp(p *daemon.Process, c *config) (*app, error) {
	sdkMetrics, err := temporal.Metrics(p.Registry)
	if err != nil {
		return nil, err
	}
	client, err := temporal.Dial(temporal.Config{Logger: p.Log, Metrics: sdkMetrics, Tracer: p.Tracer, Secrets: c.secrets(), WebUI: c.WebUI})
	if err != nil {
		return nil, err
	}
	p.OnClose(client.Close)
	return &app{Process: p, cfg: c, metrics: metrics.New(p.Registry), temporal: client, secrets: secrets.New(c.secrets()...)}, nil
}

// connect opens Postgres and Vault, each as soon as it is available.
func (a *app) connect(ctx context.Context) error {
	err := a.Connect(ctx,
		daemon.Dependency{Name: "Postgres", Open: a.openStore},
		daemon.Dependency{Name: "the database schema", Open: func(ctx context.Context) error {
			_, err := a.store.Inventory.NodeCounts(ctx)
			return err
		}},
		daemon.Dependency{Name: "Vault", Open: func(ctx context.Context) (err error) {
			a.vault, err = vault.LoginDaemon(ctx, a.Process, a.cfg.Engines)
			return err
		}},
		daemon.Dependency{Name: "the server certificate", Open: func(ctx context.Context) (err error) {
			a.serverCert, err = a.vault.ServerCertificate(ctx)
			return err
		}},
		daemon.Dependency{Name: "the node CA", Open: func(ctx context.Context) error {
			_, err := a.vault.Roots(ctx)
			return err
		}},
		daemon.Dependency{Name: "a lease key", Open: a.delegation},
	)
	if err != nil {
		return err
	}
	a.Health.Add("temporal", a.temporal.Healthy)
	a.admin = a.adminAPI()
	handler := a.admin.Handler()
	a.adminHandler.Store(&handler)
	return nil
}

func (a *app) openStore(ctx context.Context) (err error) {
	url := a.cfg.DatabaseURL.Reveal()
	if a.listener, err = store.NewListener(url, a.Log); err != nil {
		return err
	}
	if a.store, err = store.Open(ctx, store.Config{URL: url, MaxConns: a.cfg.DatabasePool, CallTimeout: storeTimeout, Relaying: a.listener, Log: a.Log}); err != nil {
		return err
	}
	a.OnClose(a.store.Close)
	a.Health.Add("postgres", a.store.Ping)
	return nil
}

// delegation starts to follow the verifier sets and makes this process's lease
// key. A verifier set that is missing or wrong does not stop the start: polls and
// heartbeats work, and only the dispatch of tasks waits.
func (a *app) delegation(ctx context.Context) (err error) {
	a.sets = vault.NewSetFollower(a.store.Identities, a.vault.Follow, a.Log, a.Metrics.SignerChecked)
	if err := a.sets.Refresh(ctx); err != nil {
		a.Log.Error("no task is dispatched", slog.Any("err", err), slog.String("next", schema.AsError(err).Next))
	}
	a.grants, err = a.vault.Grants(a.metrics.LeaseKey)
	return err
}

// work starts what runs beside the listeners.
func (a *app) work(ctx context.Context) {
	a.Registry.MustRegister(metrics.NewFleetCollector(a.store.Inventory, a.listener.Leading, a.Log))
	a.Go(ctx, "notifications", a.listener.Run)
	a.Go(ctx, "event streams", a.admin.Run)
	a.metrics.AdminTokens(true)
	a.Go(ctx, "admin tokens", func(ctx context.Context) error { return a.cfg.tokens.Run(ctx, a.tokensChanged) })
	a.Go(ctx, "sweep of fenced polls", func(ctx context.Context) error { return a.store.Inventory.Sweep(ctx, a.listener) })
	a.Go(ctx, "verifier sets", func(ctx context.Context) error { return a.sets.Run(ctx, a.listener.Sets()) })
	r := &relay.Relay{Outbox: a.store.Tasks.Outbox(a.listener), Temporal: a.temporal.NodeTasks, Metrics: a.metrics, Log: a.Log}
	a.Go(ctx, "relay", func(ctx context.Context) error {
		r.Run(ctx)
		return nil
	})
}

func (a *app) ready() error { return a.Health.Ready() }

func (a *app) nodeServer() *http.Server {
	api := nodeapi.New(nodeapi.Config{
		Env: a.cfg.Env, Identities: a.store.Identities, Tasks: a.store.Tasks, Heartbeats: a.store.Inventory, Notifier: a.listener, Issuer: a.vault, CAs: a.vault,
		Secrets: a.secrets, Grants: a.grants, VerifierSets: a.sets, Heartbeater: a.temporal.NodeTasks,
		Metrics: a.metrics, Observe: a.Metrics.HTTPRequests(listenerNode), Log: a.Log, Ready: a.ready,
		IssueRate: a.cfg.IssueRate, Bundles: a.admin, Packages: a.cfg.packages(),
	})
	return api.Server(func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return a.serverCert.GetCertificate(h) })
}

func (a *app) adminAPI() *adminapi.API {
	return adminapi.New(adminapi.Config{
		Env: a.cfg.Env, NodeURL: a.cfg.NodeURL, Secrets: a.secrets, Auth: a.cfg.tokens,
		Nodes: a.store.Admin, SKUs: a.store.Admin, EnrollmentTokens: a.store.Identities, Operations: a.store.Admin, Tasks: a.store.Tasks, Trail: a.store.Admin,
		Lifecycle: starter{a.temporal.Operations, a.store.Admin}, Rehydrator: rehydrator{a.store, a.temporal.Operations}, Trust: a.vault,
		Rotations: rotationStore{a.store.Rotations, a.store.Identities}, RotationDriver: a.temporal.Rotations,
		Observe: a.Metrics.HTTPRequests(listenerAdmin), Log: a.Log, Ready: a.ready,
		Package: a.cfg.packageSource(), WebURL: a.temporal.WebURL, Faults: a.faults,
	})
}

// tokensChanged reports that the newest version of the tokens file is not in use, or
// is in use again.
func (a *app) tokensChanged(fault error) {
	a.metrics.AdminTokens(fault == nil)
	if fault != nil {
		a.Log.Warn("the changed file of admin tokens is not used; the tokens of its last valid version remain valid", slog.Any("err", fault))
		return
	}
	a.Log.Info("the file of admin tokens is in use")
}

// adminServer serves the admin API, and responds with 503 until it is connected.
func (a *app) adminServer() *http.Server {
	starting := edge.New(edge.Config{Listener: listenerAdmin, Log: a.Log, Secrets: a.secrets, Guard: func(*http.Request) error { return a.ready() }})
	return edge.Server(a.Log, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := a.adminHandler.Load(); h != nil {
			(*h).ServeHTTP(w, r)
			return
		}
		starting.ServeHTTP(w, r)
	}))
}
