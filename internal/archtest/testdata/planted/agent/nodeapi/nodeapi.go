// Package nodeapi is imported by another package of the agent.
package nodeapi

import "github.com/gpuaas/gpuaas/schema"

// ID is used by the importers.
const ID = schema.ID
