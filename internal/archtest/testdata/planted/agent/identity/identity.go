// Package identity imports what it must not.
package identity

import (
	"github.com/gpuaas/gpuaas/agent/nodeapi" // want: depguard
	"github.com/gpuaas/gpuaas/schema"
)

// ID is used by the importers.
const ID = schema.ID + nodeapi.ID
