// Package activities imports what it must not.
package activities

import (
	"context"
	"net/http" // want: depguard

	"github.com/jackc/pgx/v5"   // want: depguard
	"go.temporal.io/sdk/client" // want: depguard

	"github.com/gpuaas/gpuaas/internal/store" // want: depguard
	"github.com/gpuaas/gpuaas/schema"
)

// ID is used by the importers.
const ID = schema.ID + store.ID

// Deps holds something of each import.
type Deps struct {
	Client client.Client
	HTTP   *http.Client
	Level  pgx.TxIsoLevel
}

// Do is an activity.
func (*Deps) Do(context.Context) error { return nil }
