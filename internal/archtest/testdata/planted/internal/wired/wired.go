// Package wired is an adapter that imports the package that wires it.
package wired

import "github.com/gpuaas/gpuaas/api/server" // want: depguard

// ID is used by the importers.
const ID = server.ID
