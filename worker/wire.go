package worker

import (
	"context"

	sdkactivity "go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/providers/manual"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/internal/verifierset"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/workflows"
)

// parts are the adapters that the worker must close, and its metrics.
type parts struct {
	store    *store.Store
	vault    *vault.Client
	sets     *verifierset.Follower
	temporal *temporal.Client
	metrics  *metrics
}

// connect connects each adapter as soon as its service is available and adds its
// health check.
func (p *parts) connect(ctx context.Context, d *daemon.Process, c *config) error {
	sdkMetrics, err := temporal.Metrics(d.Registry)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		open func(ctx context.Context) error
	}{
		{"Postgres", func(ctx context.Context) (err error) {
			p.store, err = store.Open(ctx, store.Config{URL: c.DatabaseURL.Reveal(), CreatingProviders: creating(), Log: d.Log})
			return err
		}},
		{"Vault", func(ctx context.Context) (err error) {
			p.vault, err = vault.Login(ctx, vault.Config{
				Address: c.VaultAddr, RoleIDFile: c.RoleIDFile, SecretIDFile: c.SecretIDFile,
				Env: c.Env, Log: d.Log, Observe: d.Metrics.VaultRequest,
			})
			return err
		}},
		{"a check of the task key", func(ctx context.Context) error {
			p.sets = verifierset.New(p.store.Identities, p.vault, d.Log, d.Metrics.SignerChecked)
			return firstCheck(ctx, p.sets)
		}},
		{"Temporal", func(ctx context.Context) (err error) {
			if p.temporal == nil {
				if p.temporal, err = temporal.Dial(temporal.Config{Logger: d.Log, Metrics: sdkMetrics, Secrets: c.Secrets()}); err != nil {
					return err
				}
			}
			return p.temporal.Installation.MissingAttributes(ctx)
		}},
	} {
		if err := d.Connect(ctx, part.name, part.open); err != nil {
			return err
		}
	}
	d.Health.Add("postgres", p.store.Ping)
	d.Health.Add("vault", p.vault.Healthy)
	d.Health.Add("temporal", p.temporal.Healthy)
	d.Health.Add("task-signer", func(context.Context) error { return p.sets.Healthy() })
	return nil
}

// firstCheck checks the signer once. If its keys differ from the verifier set's,
// the worker runs without signing, and /readyz returns the reason. Without a result (Vault
// or Postgres is unavailable, no set is published) it returns the error.
func firstCheck(ctx context.Context, f *verifierset.Follower) error {
	err := f.Refresh(ctx)
	if schema.KindOf(f.Healthy()) == schema.KindInternal {
		return nil
	}
	return err
}

// close closes the connected adapters in reverse order.
func (p *parts) close() {
	if p.temporal != nil {
		p.temporal.Close()
	}
	if p.vault != nil {
		p.vault.Close()
	}
	if p.store != nil {
		p.store.Close()
	}
}

// providers returns the providers of this worker by name.
func providers() map[string]activities.Provider {
	return map[string]activities.Provider{"manual": manual.Provider{}}
}

// creating returns the names of the providers that create machines.
func creating() []string {
	var names []string
	for name, p := range providers() {
		if p.Creates() {
			names = append(names, name)
		}
	}
	return names
}

// register registers workflows and activities with the adapters as their ports.
func register(w worker.Registry, p *parts, env string) {
	for _, entry := range workflows.Registry() {
		w.RegisterWorkflowWithOptions(entry.Run, workflow.RegisterOptions{Name: entry.Type})
	}
	for _, a := range []any{
		&activities.Record{Records: p.store.Operations, OnEnd: p.metrics.ended},
		&activities.Task{Tasks: p.store.Tasks, Signer: p.vault, Sets: p.sets, Env: env},
		&activities.Reclaim{Reclaimer: p.store.Tasks, OnDecision: p.metrics.reclaimed},
		&activities.Machine{Ledger: p.store.Operations, Providers: providers()},
	} {
		w.RegisterActivityWithOptions(a, sdkactivity.RegisterOptions{})
	}
}
