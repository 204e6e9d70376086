package pgtest

import (
	"runtime"
	"syscall"
)

// enough is the space for the databases of a test process and their log. Those of
// internal/store took 160 MB at most.
const enough = 1 << 30

// hasSpace reports whether a file system has space for the databases of the test processes
// that go test runs at once. That of a container often has 64 MB.
func hasSpace(path string) bool {
	var fs syscall.Statfs_t
	return syscall.Statfs(path, &fs) == nil && fs.Bavail*uint64(fs.Bsize) >= enough*uint64(runtime.NumCPU())
}
