// Package worker imports what it must not.
package worker

import (
	"github.com/gpuaas/gpuaas/agent" // want: depguard
	"github.com/gpuaas/gpuaas/cli"   // want: depguard
	"github.com/gpuaas/gpuaas/workflows"
)

// ID is used by the importers.
const ID = agent.ID + cli.ID

// Workflow returns one.
func Workflow() any { return workflows.Clean }
