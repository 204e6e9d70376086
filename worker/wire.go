package worker

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	sdkactivity "go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/manual"
	"github.com/gpuaas/gpuaas/internal/sets"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/workflows"
)

// parts is everything a worker holds open.
type parts struct {
	store    *store.Store
	vault    *vault.Client
	sets     *sets.Follower
	temporal *temporal.Client
	metrics  *metrics
}

// connect opens every part, in the order in which they fail most usefully. The
// caller closes them.
func connect(ctx context.Context, c Config, reg *prometheus.Registry, log *slog.Logger) (_ *parts, err error) {
	p := &parts{metrics: newMetrics(reg)}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.store, err = store.Open(ctx, store.Config{URL: c.DatabaseURL, CreatingProviders: creating(), Log: log}); err != nil {
		return nil, err
	}
	if p.vault, err = vault.Login(ctx, vault.Config{
		Address: c.VaultAddr, RoleIDFile: c.RoleIDFile, SecretIDFile: c.SecretIDFile,
		Env: c.Env, Log: log, Observe: p.metrics.vaultCall,
	}); err != nil {
		return nil, err
	}
	p.sets = sets.New(p.store.Identities, p.vault, log, p.metrics.signerChecked)
	if err = firstCheck(ctx, p.sets); err != nil {
		return nil, err
	}
	sdkMetrics, err := temporal.Metrics(reg)
	if err != nil {
		return nil, err
	}
	if p.temporal, err = temporal.Dial(ctx, temporal.Config{Logger: log, Metrics: sdkMetrics, Secrets: c.secrets()}); err != nil {
		return nil, err
	}
	return p, p.temporal.MissingAttributes(ctx)
}

// firstCheck checks the signer at the start. With keys that are not the set's the
// worker does all but sign, and its health says why; without a check (Vault or the
// database is away, no set was published) it does not begin.
func firstCheck(ctx context.Context, f *sets.Follower) error {
	err := f.Refresh(ctx)
	if schema.KindOf(f.Healthy()) == schema.KindInternal {
		return nil // checked, and found wrong
	}
	return err
}

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

// providers lists the providers this worker can serve, by name.
func providers() map[string]activities.Provider {
	return map[string]activities.Provider{"manual": manual.Provider{}}
}

func creating() []string {
	var names []string
	for name, p := range providers() {
		if p.Creates() {
			names = append(names, name)
		}
	}
	return names
}

// register is where adapters meet ports.
func register(w worker.Registry, p *parts, env string) {
	for _, entry := range workflows.Registry() {
		w.RegisterWorkflowWithOptions(entry.Run, workflow.RegisterOptions{Name: entry.Type})
	}
	w.RegisterWorkflowWithOptions(workflows.ReclaimStaleDispatch, workflow.RegisterOptions{Name: lifecycle.WorkflowReclaim})
	for _, a := range []any{
		&activities.Record{Records: p.store.Operations, Ended: p.metrics.ended},
		&activities.Task{Tasks: p.store.Tasks, Signer: p.vault, Sets: p.sets, Env: env},
		&activities.Sweep{Reclaimer: p.store.Tasks, Decided: p.metrics.reclaimed},
		&activities.Machine{Ledger: p.store.Operations, Providers: providers()},
	} {
		w.RegisterActivityWithOptions(a, sdkactivity.RegisterOptions{})
	}
}
