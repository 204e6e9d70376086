package worker

import (
	"context"

	sdkactivity "go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/archive"
	"github.com/gpuaas/gpuaas/internal/boot"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/workflows"
)

// parts are the adapters of the worker, and its metrics.
type parts struct {
	*daemon.Process
	cfg      *config
	store    *store.Store
	vault    *vault.Client
	sets     *vault.SetFollower
	rotator  *vault.Rotator // nil without the rotator's login
	temporal *temporal.Client
	metrics  *metrics
}

// connect connects each adapter as soon as its service is available. Each is
// closed with the process and has a health check.
func (p *parts) connect(ctx context.Context) error {
	sdkMetrics, err := temporal.Metrics(p.Registry)
	if err != nil {
		return err
	}
	return p.Connect(ctx,
		daemon.Dependency{Name: "Postgres", Open: p.openStore},
		daemon.Dependency{Name: "the database schema", Open: func(ctx context.Context) error { return p.store.CheckSchema(ctx) }},
		daemon.Dependency{Name: "the providers in the database", Open: func(ctx context.Context) error { return describe(ctx, p.store.Inventory, p.cfg.infos()) }},
		daemon.Dependency{Name: "Vault", Open: func(ctx context.Context) (err error) {
			p.vault, err = vault.LoginDaemon(ctx, p.Process, p.cfg.Engines)
			if err == nil {
				p.cfg.ProviderSettings.vault = p.vault
				p.Health.Add("vault", p.vault.Healthy)
			}
			return err
		}},
		daemon.Dependency{Name: "a check of the task key", Open: func(ctx context.Context) error {
			p.sets = vault.NewSetFollower(p.store.Identities, p.vault.Follow, p.Log, p.Metrics.SignerChecked)
			return firstCheck(ctx, p.sets)
		}},
		daemon.Dependency{Name: "Vault as the rotator", Open: p.openRotator},
		daemon.Dependency{Name: "Temporal", Open: func(ctx context.Context) error { return p.openTemporal(ctx, sdkMetrics) }},
	)
}

func (p *parts) openStore(ctx context.Context) (err error) {
	p.store, err = store.Open(ctx, store.Config{URL: p.cfg.DatabaseURL.Reveal(), MaxConns: p.cfg.DatabasePool, Log: p.Log})
	if err != nil {
		return err
	}
	p.OnClose(p.store.Close)
	p.Registry.MustRegister(postgres.NewCollector(p.store.Pools()))
	p.Health.Add("postgres", p.store.Ping)
	p.Health.Add("schema", p.store.SchemaHealthy)
	return nil
}

func (p *parts) openRotator(ctx context.Context) (err error) {
	if !p.cfg.rotates() {
		return nil
	}
	p.rotator, err = vault.LoginRotator(ctx, vault.Config{Address: p.cfg.VaultAddr, RoleIDFile: p.cfg.RotatorRoleID, SecretIDFile: p.cfg.RotatorSecretID,
		Kubernetes: vault.KubernetesLogin{Role: p.cfg.RotatorKubeRole, Mount: p.cfg.KubeMount, TokenFile: p.cfg.KubeToken}, Env: p.cfg.Env, Log: p.Log, Observe: p.Metrics.VaultRequest})
	if err == nil {
		p.OnClose(p.rotator.Close)
		p.Health.Add("vault-rotator", p.rotator.Healthy)
	}
	return err
}

func (p *parts) openTemporal(ctx context.Context, m client.MetricsHandler) (err error) {
	if p.temporal == nil {
		p.temporal, err = temporal.Dial(temporal.Config{Logger: p.Log, Metrics: m, Tracer: p.Tracer, Secrets: p.cfg.Secrets()})
		if err == nil {
			err = p.cfg.CheckTemporal(p.temporal.Address(), p.temporal.Encrypted(), p.Log)
		}
		if err != nil {
			return err
		}
		p.OnClose(p.temporal.Close)
		p.cfg.withholdWith(p.temporal.Withhold)
	}
	return p.temporal.Installation.MissingAttributes(ctx)
}

// firstCheck checks the signer once. If its keys differ from the verifier set's,
// the worker runs without signing, and /readyz returns the reason. Without a result (Vault
// or Postgres is unavailable, no set is published) it returns the error.
func firstCheck(ctx context.Context, f *vault.SetFollower) error {
	err := f.Refresh(ctx)
	if schema.KindOf(f.Healthy()) == schema.KindInternal {
		return nil
	}
	return err
}

// registerTrust registers the activities that use the root key.
func registerTrust(w worker.Registry, p *parts, env string) {
	w.RegisterActivityWithOptions(&activities.Trust{Rotations: p.store.Rotations, Sets: p.store.Identities, Rotator: timelyRotator{p.rotator, p.Clocks},
		Driver: p.temporal.Rotations, Signer: p.vault, Follow: p.sets.Refresh, NewTasks: p.newTasks(env)}, sdkactivity.RegisterOptions{})
}

// newTasks signs every new task of this worker.
func (p *parts) newTasks(env string) activities.TaskSigner {
	return activities.TaskSigner{Signer: timelySigner{p.vault, p.Clocks}, Sets: p.sets, Env: env}
}

// retention returns the activity that deletes old records.
func (p *parts) retention() *activities.Retention {
	r := &activities.Retention{Records: p.store.Retention, Trail: p.store.Retention, Keys: p.vault.CheckpointKeys, OnDelete: p.metrics.deleted,
		Keep: activities.Keep{Tasks: p.cfg.RetainTasks, Identities: p.cfg.RetainIdentities, Messages: p.cfg.RetainMessages, Signals: p.cfg.RetainSignals, Repairs: p.cfg.RetainRepairs,
			Evidence: p.cfg.RetainEvidence, Audit: p.cfg.RetainAudit}}
	if p.cfg.ArchiveDir != "" {
		r.Archive = archive.New(p.cfg.ArchiveDir)
	}
	return r
}

// register registers workflows and activities with the adapters as their ports.
func register(w worker.Registry, p *parts, env string) {
	for _, entry := range workflows.Registry() {
		w.RegisterWorkflowWithOptions(entry.Run, workflow.RegisterOptions{Name: entry.Type})
	}
	for _, a := range []any{
		&activities.Record{Records: p.store.Operations, OnEnd: p.metrics.ended},
		&activities.Task{Records: p.store.Operations, Tasks: p.store.Tasks, NewTasks: p.newTasks(env)},
		&activities.Reclaim{Reclaimer: p.store.Tasks, OnDecision: p.metrics.reclaimed},
		&activities.Watch{Abandoner: p.store.Operations, Runs: p.temporal.Operations, OnAbandon: p.metrics.abandoned},
		p.retention(),
		p.sweep(),
		p.explain(),
		&activities.Repair{Repairs: p.store.Repairs, Providers: p.cfg.sources, OnAttempt: p.metrics.attempted},
		&activities.RepairRounds{Decisions: p.store.Recovery, Starter: p.temporal.Operations, OnRound: p.metrics.decided},
		&activities.DriftScan{Drifts: p.store.Templates, Starter: p.temporal.Operations},
		&activities.Machine{Ledger: p.store.Operations, Providers: p.cfg.sources,
			Boots: boot.Issuer{Tokens: p.store.Identities, CA: p.vault.ServerCA, NodeURL: p.cfg.NodeURL}},
	} {
		w.RegisterActivityWithOptions(a, sdkactivity.RegisterOptions{})
	}
}
