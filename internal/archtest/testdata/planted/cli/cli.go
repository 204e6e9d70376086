// Package cli imports what it must not.
package cli

import (
	"github.com/jackc/pgx/v5" // want: depguard

	"github.com/gpuaas/gpuaas/activities"     // want: depguard
	"github.com/gpuaas/gpuaas/deploy/dev"     // want: depguard
	"github.com/gpuaas/gpuaas/internal/store" // want: depguard
	"github.com/gpuaas/gpuaas/schema"
)

// ID is used by the importers.
const ID = activities.ID + dev.ID + schema.ID + store.ID

// Level is something of pgx.
const Level = pgx.Serializable
