package worker

import (
	"context"
	"io"
	"time"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// setupActor is the actor of a setup in the audit trail.
const setupActor = "gpuaas admin setup"

// setStore stores verifier sets; see store.Store.
type setStore interface {
	NewestSet(ctx context.Context) (trust.StoredSet, error)
	PutSet(ctx context.Context, set trust.StoredSet, by audit.Subject) error
}

// setSigner makes verifier sets; see vault.SetSigner.
type setSigner interface {
	First(ctx context.Context, now time.Time) (trust.StoredSet, error)
	Renewal(ctx context.Context, set trust.StoredSet, now time.Time) (next trust.StoredSet, due bool, err error)
}

// setupSets publishes the first verifier set, or a successor when the newest has
// less than half of its lifetime left, and returns the newest version.
func setupSets(ctx context.Context, c setupConfig, talk io.Writer) (version int64, err error) {
	db, err := store.Open(ctx, store.Config{URL: c.DatabaseURL.Reveal()})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	signer, err := vault.NewSetSigner(c.vaultAdmin(talk), c.Env)
	if err != nil {
		return 0, err
	}
	return publishSet(ctx, db, signer, time.Now())
}

// publishSet publishes a verifier set unless the newest one is recent enough. When
// another setup publishes first, publishSet checks that set instead.
func publishSet(ctx context.Context, sets setStore, signer setSigner, now time.Time) (version int64, err error) {
	for range 3 {
		newest, err := sets.NewestSet(ctx)
		next, due := trust.StoredSet{}, true
		switch {
		case schema.KindOf(err) == schema.KindNotFound:
			next, err = signer.First(ctx, now)
		case err == nil:
			next, due, err = signer.Renewal(ctx, newest, now)
		}
		if err != nil {
			return 0, err
		}
		if !due {
			return newest.Version, nil
		}
		err = sets.PutSet(ctx, next, audit.Subject{Actor: setupActor})
		if err == nil {
			return next.Version, nil
		}
		if schema.AsError(err).Reason != "set_outdated" {
			return 0, err
		}
	}
	return 0, schema.NewError(schema.KindServiceUnavailable, "the verifier set changed concurrently; try again").WithNext("gpuaas admin setup")
}
