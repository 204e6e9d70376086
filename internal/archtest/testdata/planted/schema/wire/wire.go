// Package wire may import schema, and nothing else of this module.
package wire

import (
	"github.com/gpuaas/gpuaas/api/nodeapi" // want: depguard
	"github.com/gpuaas/gpuaas/schema"
)

// ID is used by the importers.
const ID = nodeapi.ID + schema.ID
