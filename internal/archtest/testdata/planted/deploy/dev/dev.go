// Package dev imports what it must not.
package dev

import (
	"github.com/gpuaas/gpuaas/internal/store" // want: depguard
	"github.com/gpuaas/gpuaas/schema"
)

// ID is used by the importers.
const ID = schema.ID + store.ID
