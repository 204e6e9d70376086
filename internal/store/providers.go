package store

import (
	"context"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// PutProviders stores the descriptions of the providers that this worker has, and returns those
// that it did not store: within machine.DescriptionLife, the description of a provider that another
// worker has enabled stays, unless the new one is enabled, too, and of the same host.
func (s *Inventory) PutProviders(ctx context.Context, providers []machine.Info) (kept []machine.Info, err error) {
	return write(ctx, s.db, "storing the providers", func(ctx context.Context, tx *tx) (kept []machine.Info, err error) {
		for _, p := range providers {
			stored, err := tx.PutProvider(ctx, p.Name, p, machine.DescriptionLife.Seconds())
			if err != nil {
				return nil, err
			}
			if stored == 0 {
				kept = append(kept, p)
			}
		}
		return kept, nil
	})
}

// Providers implements adminapi.Machines.
func (s *Machines) Providers(ctx context.Context) ([]machine.Provider, error) {
	rows, err := query(ctx, s.db, "reading the providers", s.db.q.ListProviders)
	return convert(rows, func(r sqlc.Provider) machine.Provider {
		return machine.Provider{Info: r.Info, UpdatedAt: r.UpdatedAt.UTC()}
	}), err
}

// providerOf returns the description of a provider, only its name if no worker has stored it.
func providerOf(ctx context.Context, tx *tx, name string) (machine.Info, error) {
	p, err := tx.GetProvider(ctx, name)
	if postgres.NotFound(err) {
		return machine.Info{Name: name}, nil
	}
	return p.Info, err
}

// checkProvider rejects an onboarding mode that is not the name of a provider. Empty is the
// default.
func checkProvider(ctx context.Context, tx *tx, mode string) error {
	if mode == "" || mode == inventory.ProviderManual {
		return nil
	}
	_, err := tx.GetProvider(ctx, mode)
	return orMissing(err, schema.NewError(schema.KindInvalidRequest, "onboarding_mode: there is no provider %q", mode).
		WithReason("no_adapter").WithNext("gpuaas provider list"))
}
