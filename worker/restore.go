package worker

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/restore"
)

// RestoreAction is what RestoreMode does.
type RestoreAction string

// The actions.
const (
	RestoreStart  RestoreAction = "start"
	RestoreStop   RestoreAction = "stop"
	RestoreStatus RestoreAction = "status"
)

// RestoreOptions are the options of RestoreMode.
type RestoreOptions struct {
	Action RestoreAction
	// Reason and For are those of a start.
	Reason string
	For    time.Duration
	// Actor is who asks, for the audit trail: user@host, as the client asserts it.
	Actor string
	// Getenv reads the environment.
	Getenv func(string) string
}

// restoreConfig is the configuration of RestoreMode.
type restoreConfig struct {
	DatabaseURL schema.Secret `env:"GPUAAS_DATABASE_URL,required" help:"Postgres connection URL of the owner of the tables."`
}

// RestoreMode starts, ends or reads the restore mode in the database; see
// restore.Mode.
func RestoreMode(ctx context.Context, o RestoreOptions) (restore.Mode, error) {
	var c restoreConfig
	if err := daemon.Load(&c, o.Getenv); err != nil {
		return restore.Mode{}, schema.AsError(err).WithNext("gpuaas admin restore-mode start --help")
	}
	db, err := store.Open(ctx, store.Config{URL: c.DatabaseURL.Reveal(), Name: "gpuaas-restore-mode"})
	if err != nil {
		return restore.Mode{}, err
	}
	defer db.Close()
	by := audit.Subject{Actor: o.Actor}
	switch o.Action {
	case RestoreStart:
		return db.Restore.Start(ctx, o.Reason, o.For, by)
	case RestoreStop:
		return db.Restore.Stop(ctx, by)
	default:
		return db.Restore.Status(ctx)
	}
}
