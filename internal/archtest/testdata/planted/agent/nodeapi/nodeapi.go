// Package nodeapi is imported by the room beside it.
package nodeapi

import "github.com/gpuaas/gpuaas/schema"

// ID is used by the importers.
const ID = schema.ID
