package agenttest

import (
	"github.com/gpuaas/gpuaas/agent/internal/disk"
)

// HookDisk is the operating system's disk with another way to create files.
type HookDisk struct {
	disk.OS
	OnCreate func(path string) (disk.File, error) // nil: the system's
}

// Create implements FS.
func (d *HookDisk) Create(path string) (disk.File, error) {
	if d.OnCreate == nil {
		return d.OS.Create(path)
	}
	return d.OnCreate(path)
}
