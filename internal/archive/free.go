package archive

import (
	"os"
	"syscall"

	"github.com/gpuaas/gpuaas/schema"
)

// Free returns the bytes that are free for the folder, and an error if it does not exist or cannot
// be written.
func (f *Folder) Free() (int64, error) {
	probe, err := os.CreateTemp(f.path, ".check-*")
	if err != nil {
		return 0, schema.Wrap(schema.KindServiceUnavailable, err, "writing to %s", f.path).WithNext("create the folder, or give the worker write access to it")
	}
	if err := remove(probe); err != nil {
		return 0, schema.Wrap(schema.KindInternal, err, "removing %s", probe.Name())
	}
	var s syscall.Statfs_t
	if err := syscall.Statfs(f.path, &s); err != nil {
		return 0, schema.Wrap(schema.KindInternal, err, "reading the free space of %s", f.path)
	}
	return int64(s.Bavail * uint64(s.Bsize)), nil
}
