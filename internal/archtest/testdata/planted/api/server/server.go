// Package server wires adapters and must not import the agent.
package server

import (
	"github.com/gpuaas/gpuaas/agent" // want: depguard
	"github.com/gpuaas/gpuaas/internal/store"
)

// ID is used by the importers.
const ID = agent.ID + store.ID
