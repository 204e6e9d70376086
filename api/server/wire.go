package server

import (
	"context"
	"crypto/sha256"
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
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/internal/verifierset"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
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
	tokens   *adminapi.Tokens

	// connected
	store      *store.Store
	listener   *store.Listener
	leader     *postgres.Leader
	vault      *vault.Client
	sets       *verifierset.Follower
	grants     *vault.Grants
	serverCert *vault.ServerCertificate
	admin      *adminapi.API

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
	client, err := temporal.Dial(temporal.Config{Logger: p.Log, Metrics: sdkMetrics, Secrets: c.secrets()})
	if err != nil {
		return nil, err
	}
	tokens, err := adminapi.NewTokens(sha256.Sum256([]byte(c.AdminToken.Reveal())), c.AdminActor, c.AdminTokensFile)
	if err != nil {
		client.Close()
		return nil, err
	}
	return &app{Process: p, cfg: c, metrics: metrics.New(p.Registry), temporal: client, tokens: tokens}, nil
}

// close closes the parts that were opened, in reverse.
func (a *app) close() {
	if a.vault != nil {
		a.vault.Close()
	}
	if a.store != nil {
		a.store.Close()
	}
	a.temporal.Close()
}

// connect opens Postgres and Vault, each as soon as it is available.
func (a *app) connect(ctx context.Context) error {
	for _, part := range []struct {
		name string
		open func(ctx context.Context) error
	}{
		{"Postgres", a.openStore},
		{"the database schema", func(ctx context.Context) error {
			_, err := a.store.NodeCounts(ctx)
			return err
		}},
		{"Vault", a.openVault},
		{"the server certificate", func(ctx context.Context) (err error) {
			a.serverCert, err = a.vault.ServerCertificate(ctx)
			return err
		}},
		{"the node CA", func(ctx context.Context) error {
			_, err := a.vault.Roots(ctx)
			return err
		}},
		{"a lease key", a.delegation},
	} {
		if err := a.Connect(ctx, part.name, part.open); err != nil {
			return err
		}
	}
	a.Health.Add("postgres", a.store.Ping)
	a.Health.Add("vault", a.vault.Healthy)
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
	if a.leader, err = postgres.NewLeader(url, "gpuaas-fleet-metrics", a.Log); err != nil {
		return err
	}
	a.store, err = store.Open(ctx, store.Config{URL: url, CallTimeout: storeTimeout, Log: a.Log})
	return err
}

func (a *app) openVault(ctx context.Context) (err error) {
	a.vault, err = vault.Login(ctx, vault.Config{
		Address: a.cfg.VaultAddr, RoleIDFile: a.cfg.RoleIDFile, SecretIDFile: a.cfg.SecretIDFile,
		Env: a.cfg.Env, Log: a.Log, Observe: a.Metrics.VaultRequest,
	})
	return err
}

// delegation starts to follow the verifier sets and makes this process's lease
// key. A verifier set that is missing or wrong does not stop the start: polls and
// heartbeats work, and only the dispatch of tasks waits.
func (a *app) delegation(ctx context.Context) (err error) {
	a.sets = verifierset.New(a.store.Identities, a.vault, a.Log, a.Metrics.SignerChecked)
	if err := a.sets.Refresh(ctx); err != nil {
		a.Log.Error("no task is dispatched", slog.Any("err", err), slog.String("next", schema.AsError(err).Next))
	}
	a.grants, err = a.vault.Grants(a.metrics.LeaseKey)
	return err
}

// work starts what runs beside the listeners.
func (a *app) work(ctx context.Context) {
	a.Registry.MustRegister(metrics.NewFleetCollector(a.store.Inventory, a.leader.Leading, a.Log))
	a.Go(ctx, "leader election", a.leader.Run)
	a.Go(ctx, "notifications", a.listener.Run)
	a.Go(ctx, "event streams", a.admin.Run)
	a.Go(ctx, "sweep of fenced polls", func(ctx context.Context) error { return a.store.Sweep(ctx, a.listener) })
	a.Go(ctx, "verifier sets", func(ctx context.Context) error {
		a.sets.Run(ctx, a.listener.Sets())
		return nil
	})
	r := &relay.Relay{Outbox: a.store.Outbox(a.listener), Temporal: a.temporal.NodeTasks, Metrics: a.metrics, Log: a.Log}
	a.Go(ctx, "relay", func(ctx context.Context) error {
		r.Run(ctx)
		return nil
	})
}

func (a *app) ready() error { return a.Health.Ready() }

func (a *app) nodeServer() *http.Server {
	api := nodeapi.New(nodeapi.Config{
		Env: a.cfg.Env, Identities: a.store.Identities, Tasks: a.store.Tasks, Heartbeats: a.store.Inventory, Notifier: a.listener, Issuer: a.vault, CAs: a.vault,
		Grants: a.grants, VerifierSets: a.sets, Heartbeater: a.temporal.NodeTasks,
		Metrics: a.metrics, Observe: a.Metrics.HTTPRequests(listenerNode), Log: a.Log, Ready: a.ready,
		IssueRate: a.cfg.IssueRate, Bundles: a.admin, Packages: a.cfg.agent.served(),
	})
	return api.Server(func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return a.serverCert.GetCertificate(h) })
}

func (a *app) adminAPI() *adminapi.API {
	return adminapi.New(adminapi.Config{
		Env: a.cfg.Env, NodeURL: a.cfg.NodeURL, Auth: a.tokens,
		Store: newAdminStore(a.store), Views: a.store.Admin, Lifecycle: a.temporal.Operations, Trust: a.vault,
		Observe: a.Metrics.HTTPRequests(listenerAdmin), Log: a.Log, Ready: a.ready,
		Package: a.cfg.agent.source(a.cfg.NodeURL), WebURL: a.temporal.WebURL, Faults: a.faults,
	})
}

// faults are the control plane's faults for the list of what is stuck.
func (a *app) faults(r *http.Request) []wire.ControlPlaneFault {
	out := a.temporal.Faults(r.Context())
	if err := a.tokens.Fault(); err != nil {
		out = append(out, wire.ControlPlaneFault{Component: "admin-tokens", Reason: "not_loaded", Message: err.Error(),
			Next: "correct the file of GPUAAS_ADMIN_TOKENS_FILE"})
	}
	return out
}

// adminServer serves the admin API, and answers 503 until it is connected.
func (a *app) adminServer() *http.Server {
	starting := edge.New(edge.Config{Listener: listenerAdmin, Log: a.Log, Guard: func(*http.Request) error { return a.ready() }})
	return edge.Server(a.Log, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := a.adminHandler.Load(); h != nil {
			(*h).ServeHTTP(w, r)
			return
		}
		starting.ServeHTTP(w, r)
	}))
}
