package worker

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/internal/verifierset"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// setupActor is the audit actor of verifier sets that Setup publishes.
const setupActor = "gpuaas admin setup"

// publishVerifierSet publishes the first verifier set, or the successor of the
// newest one if its renewal is due. It returns the newest version.
func publishVerifierSet(ctx context.Context, o SetupOptions, databaseURL string) (version int64, err error) {
	db, err := store.Open(ctx, store.Config{URL: databaseURL})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	author, err := vault.NewVerifierSetSigner(o.vaultAdmin(), o.env())
	if err != nil {
		return 0, err
	}
	return verifierset.Publish(ctx, db, author, audit.Subject{Actor: setupActor}, time.Now())
}
