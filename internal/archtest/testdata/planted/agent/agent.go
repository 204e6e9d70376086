// Package agent imports what it must not.
package agent

import (
	"github.com/hashicorp/vault/api"                 // want: depguard
	"github.com/jackc/pgx/v5"                        // want: depguard
	"github.com/prometheus/client_golang/prometheus" // want: depguard
	"go.temporal.io/sdk/client"                      // want: depguard

	"github.com/gpuaas/gpuaas/internal/store" // want: depguard
	"github.com/gpuaas/gpuaas/schema"
)

// ID is used by the importers.
const ID = schema.ID + store.ID

// Deps holds something of each import.
type Deps struct {
	Counter  prometheus.Counter
	Level    pgx.TxIsoLevel
	Temporal client.Client
	Vault    *api.Client
}
