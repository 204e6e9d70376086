// Package workload may import the agent, and no adapter.
package workload

import (
	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/internal/store" // want: depguard
)

// ID is used by the importers.
const ID = agent.ID + store.ID
