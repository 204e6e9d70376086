package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/api/relay"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/stuck"
)

// storeTimeout bounds every call to the database, so that a database that hangs
// does not hold a request for longer.
const storeTimeout = 10 * time.Second

// The sizes of the connection pools beside the one that nodes use. A claim of a token
// takes milliseconds, and the certificate it is for is signed afterward.
const (
	unauthenticatedConns = 4
	adminConns           = 4
)

// app holds the parts of the process. Those below connected are set once connect
// has returned nil.
type app struct {
	*daemon.Process
	cfg      *config
	metrics  *metrics.Metrics
	temporal *temporal.Client
	secrets  *secrets.Scanner

	// connected
	store      *store.Store // of the admin API
	nodeStore  *store.Store // of the node API and the relay
	listener   *store.Listener
	vault      *vault.Client
	sets       *vault.SetFollower
	grants     *vault.Grants
	serverCert *vault.ServerCertificate
	admin      *adminapi.API

	checkpoints *checkpoints

	// resumed is true after a start without Vault was tried.
	resumed bool

	// probed are the faults of Temporal as last read.
	probed recentFaults

	// adminHandler is nil until the admin API can serve.
	adminHandler atomic.Pointer[http.Handler]
	// adminAddress is the address of the admin API's listener.
	adminAddress string
	// console is nil if it is not served.
	console *console.Console
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
	if err := c.CheckTemporal(client.Address(), client.Encrypted(), p.Log); err != nil {
		return nil, err
	}
	return &app{Process: p, cfg: c, metrics: metrics.New(p.Registry), temporal: client, secrets: secrets.New(c.secrets()...)}, nil
}

// connect opens Postgres and Vault, each as soon as it is available.
func (a *app) connect(ctx context.Context) error {
	err := a.Connect(ctx,
		daemon.Dependency{Name: "Postgres", Open: a.openStore},
		daemon.Dependency{Name: "the database schema", Open: func(ctx context.Context) error { return a.store.CheckSchema(ctx) }},
		daemon.Dependency{Name: "Vault", Open: a.openVault},
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
	a.compareClocks(ctx)
	a.addHealth()
	a.checkpoints = &checkpoints{store: a.nodeStore.Checkpoints, keys: a.vault.CheckpointKeys, env: a.cfg.Env, log: a.Log, unsigned: map[string]bool{}}
	a.admin = a.adminAPI()
	return a.openAdmin()
}

// openAdmin makes the listener of the admin API serve it, and the console.
func (a *app) openAdmin() (err error) {
	api := a.admin.Handler()
	handler := api
	if a.cfg.serve.has(listenerConsole) {
		if a.console, err = a.newConsole(api); err != nil {
			return err
		}
		pages := a.console.Handler()
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isConsole(r) {
				pages.ServeHTTP(w, r)
				return
			}
			api.ServeHTTP(w, r)
		})
	}
	a.adminHandler.Store(&handler)
	return nil
}

// openVault logs in. If Vault is unavailable, the process starts with the certificate that an
// earlier one saved: the nodes stay connected, and Vault is used once it is available.
func (a *app) openVault(ctx context.Context) error {
	config := vault.DaemonConfig(a.Process, a.cfg.Engines)
	config.StateDir = a.cfg.StateDir
	client, err := vault.Login(ctx, config)
	if schema.KindOf(err) == schema.KindServiceUnavailable && !a.resumed {
		a.resumed = true // a file that is not usable does not become so
		a.Log.Warn("cannot log in to Vault at the start", slog.Any("err", err), slog.String("next", schema.AsError(err).Next))
		if client, err = vault.Resume(config, a.cfg.nodeHost()); err == nil {
			a.Log.Warn("serving with the server certificate of an earlier process until Vault is available", slog.String("dir", config.StateDir))
		}
	}
	if err != nil {
		return err
	}
	a.vault = client
	a.OnClose(client.Close)
	return nil
}

func (a *app) openStore(ctx context.Context) (err error) {
	admin, node := a.cfg.DatabaseURL.Reveal(), cmp.Or(a.cfg.NodeDatabaseURL.Reveal(), a.cfg.DatabaseURL.Reveal())
	if a.store == nil { // otherwise this is a retry
		if a.listener, err = store.NewListener(node, a.Log); err != nil {
			return err
		}
		if a.store, err = a.openSide(ctx, store.Config{URL: admin, Name: "gpuaas-admin", MaxConns: adminConns}); err != nil {
			return err
		}
	}
	if a.nodeStore, err = a.openSide(ctx, store.Config{URL: node, MaxConns: a.cfg.DatabasePool, UnauthenticatedConns: unauthenticatedConns}); err != nil {
		return err
	}
	a.registerPools()
	return nil
}

// openSide opens the database for one side of the process. The sides share no connection,
// even if they have one role: nothing that the admin API does can delay the nodes.
func (a *app) openSide(ctx context.Context, c store.Config) (*store.Store, error) {
	c.CallTimeout, c.Relaying, c.Log = storeTimeout, a.listener, a.Log
	s, err := store.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	a.OnClose(s.Close)
	return s, nil
}

// addHealth declares what the process depends on. Without Vault, its own lease key or
// Temporal it still authenticates nodes and stores heartbeats and results, and another
// replica could do no more: they do not make it unready.
func (a *app) addHealth() {
	a.Health.Add("postgres", a.nodeStore.Ping)
	a.Health.Add("schema", a.store.SchemaHealthy)
	a.Health.Add("notifications", a.listener.Await)
	a.Health.AddDegrading("vault", a.vault.Healthy)
	a.Health.AddDegrading("server-certificate", func(context.Context) error { return a.serverCert.Healthy() })
	a.Health.AddDegrading("lease-key", func(context.Context) error {
		_, err := a.grants.Ready()
		return err
	})
	a.Health.AddDegrading("temporal", a.temporal.Healthy)
	a.Health.AddDegrading("clock", a.Clocks.Check)
}

// compareClocks compares this machine's clock with those of the servers before the first task
// is dispatched. A wrong clock does not stop the start: the nodes stay connected.
func (a *app) compareClocks(ctx context.Context) {
	a.Clocks.Compare(daemon.ClockOfPostgres, "this replica dispatches no task", a.nodeStore.Now)
	a.Clocks.Compare("vault", "certificates may be rejected as expired or not valid yet", a.vault.Now)
	if err := a.Clocks.Check(ctx); err != nil {
		a.Log.Error("clocks differ", slog.Any("err", err), slog.String("next", schema.AsError(err).Next))
	}
}

// registerPools publishes the connection pools of both sides.
func (a *app) registerPools() {
	pools := maps.Clone(a.nodeStore.Pools())
	pools["admin"] = a.store.Pools()[store.PoolShared]
	a.Registry.MustRegister(postgres.NewCollector(pools))
}

// delegation starts to follow the verifier sets and makes this process's lease
// key. A verifier set that is missing or wrong does not stop the start: polls and
// heartbeats work, and only the dispatch of tasks waits.
func (a *app) delegation(ctx context.Context) (err error) {
	a.sets = vault.NewSetFollower(a.nodeStore.Identities, a.vault.Follow, a.Log, a.Metrics.SignerChecked)
	if err := a.sets.Refresh(ctx); err != nil {
		a.Log.Error("no task is dispatched", slog.Any("err", err), slog.String("next", schema.AsError(err).Next))
	}
	a.grants, err = a.vault.Grants(a.metrics.LeaseKey)
	return err
}

// work starts what runs beside the listeners.
func (a *app) work(ctx context.Context) {
	a.Go(ctx, "notifications", a.listener.Run)
	a.Go(ctx, "event streams", a.admin.Run)
	if a.console != nil {
		a.Go(ctx, "console", a.console.Run)
	}
	a.metrics.AdminTokens(true)
	a.Go(ctx, "admin tokens", func(ctx context.Context) error { return a.cfg.tokens.Run(ctx, a.tokensChanged) })
	a.Go(ctx, "sweep of fenced polls", func(ctx context.Context) error { return a.nodeStore.Inventory.Sweep(ctx, a.listener) })
	a.Go(ctx, "audit checkpoints", a.checkpoints.run)
	a.Go(ctx, "verifier sets", func(ctx context.Context) error { return a.sets.Run(ctx, a.listener.Sets()) })
	a.Go(ctx, "node CAs", func(ctx context.Context) error { return followCAs(ctx, a.vault, a.listener.Sets()) })
	r := &relay.Relay{Outbox: a.nodeStore.Tasks.Outbox(a.listener), Temporal: a.temporal.NodeTasks, Metrics: a.metrics, Log: a.Log}
	a.Go(ctx, "relay", func(ctx context.Context) error {
		r.Run(ctx)
		return nil
	})
}

func (a *app) ready() error { return a.Health.Ready() }

// serveNodes serves the node API on the listener.
func (a *app) serveNodes(ctx context.Context, ln net.Listener) {
	api := nodeapi.New(nodeapi.Config{
		Env: a.cfg.Env, Identities: a.nodeStore.Identities, Tasks: a.nodeStore.Tasks, Heartbeats: a.nodeStore.Inventory, Notifier: a.listener, Issuer: a.vault, CAs: a.vault,
		Secrets: a.secrets, Grants: timelyGrants{a.grants, a.Clocks}, VerifierSets: a.sets, Heartbeater: a.temporal.NodeTasks,
		Metrics: a.metrics, Observe: a.Metrics.HTTPRequests(listenerNode), Log: a.Log, Ready: a.ready,
		Connections: a.cfg.NodeConnections, IssueRate: a.cfg.IssueRate, Bundles: a.bundles(), Packages: a.cfg.packages(), Release: a.cfg.releases.binary, Checkpoints: a.checkpoints,
	})
	a.Go(ctx, "refused requests", api.Run)
	a.Serve(ctx, listenerNode, api.Listener(ln, a.cfg.proxies),
		api.Server(func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return a.serverCert.GetCertificate(h) }))
	a.Go(ctx, "record of receiving", receiving{a.vault, a.nodeStore.Inventory, a.Log}.record)
}

// bundles exchanges references with the privileges of the node API, which serves that.
func (a *app) bundles() adminapi.Bundles {
	return adminapi.NewBundles(adminapi.Config{Env: a.cfg.Env, NodeURL: a.cfg.NodeURL, Nodes: a.nodeStore.Admin,
		EnrollmentTokens: a.nodeStore.Identities, Trust: a.vault, Package: a.cfg.packageSource(), ReleaseKeys: a.cfg.ReleaseKeys})
}

func (a *app) adminAPI() *adminapi.API {
	return adminapi.New(adminapi.Config{
		Env: a.cfg.Env, NodeURL: a.cfg.NodeURL, Secrets: a.secrets, Auth: subjects{a.cfg.tokens},
		Nodes: a.store.Admin, SKUs: a.store.Admin, Machines: a.store.Machines, EnrollmentTokens: a.store.Identities, Locks: a.store.Identities, Operations: a.store.Admin, Tasks: a.store.Tasks, Trail: a.store.Admin, Signals: a.store.Signals, Templates: a.store.Templates, Insights: a.store.Insights, Repairs: a.store.Repairs,
		Checkpoints: a.store.Checkpoints, CheckpointKeys: a.vault.CheckpointKeys,
		Lifecycle: starter{a.temporal.Operations, a.store.Admin}, Rehydrator: rehydrator{a.store, a.temporal.Operations}, Trust: a.vault,
		Rotations: rotationStore{a.store.Rotations, a.store.Identities}, RotationDriver: a.temporal.Rotations, Recovery: a.store.Recovery,
		Observe: a.Metrics.HTTPRequests(listenerAdmin), Log: a.Log, Ready: a.ready,
		Package: a.cfg.packageSource(), ReleaseKeys: a.cfg.ReleaseKeys, Release: a.cfg.releases.document, WebURL: a.temporal.WebURL, Faults: a.faults,
		Unclaimed: a.unclaimed,
	})
}

// unclaimed returns the operations that Temporal accepted and that are not on record.
func (a *app) unclaimed(ctx context.Context) ([]stuck.Node, error) {
	return a.temporal.Requests.Unclaimed(ctx, a.store.Insights.OnRecord)
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
	starting := edge.New(edge.Config{Listener: listenerAdmin, Log: a.Log, Secrets: a.secrets, Next: adminapi.NextStep, Guard: func(*http.Request) error { return a.ready() }})
	return edge.Server(a.Log, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := a.adminHandler.Load(); h != nil {
			(*h).ServeHTTP(w, r)
			return
		}
		starting.ServeHTTP(w, r)
	}))
}
