// Package nodeapi imports what it must not.
package nodeapi

import (
	"github.com/hashicorp/vault/api" // want: depguard
	"go.temporal.io/sdk/client"      // want: depguard

	"github.com/gpuaas/gpuaas/internal/store" // want: depguard
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/workflows" // want: depguard
)

// ID is used by the importers.
const ID = schema.ID + store.ID

// Deps holds something of each import.
type Deps struct {
	Temporal client.Client
	Vault    *api.Client
}

// Workflow returns one.
func Workflow() any { return workflows.Clean }
