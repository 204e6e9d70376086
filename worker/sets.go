package worker

import (
	"context"
	"io"
	"time"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/internal/verifierset"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// setupActor is the actor of a setup in the audit trail.
const setupActor = "gpuaas admin setup"

// publishVerifierSet publishes the first verifier set, or the successor of the
// newest one if its renewal is due. It returns the newest version.
func publishVerifierSet(ctx context.Context, c setupConfig, talk io.Writer) (version int64, err error) {
	db, err := store.Open(ctx, store.Config{URL: c.DatabaseURL.Reveal()})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	author, err := vault.NewVerifierSetSigner(c.vaultAdmin(talk), c.Env)
	if err != nil {
		return 0, err
	}
	return verifierset.Publish(ctx, db, author, audit.Subject{Actor: setupActor}, time.Now())
}
