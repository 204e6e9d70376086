package pgtest

import "syscall"

// enough is the space that the databases of a test process and their log take at most.
const enough = 2 << 30

// hasSpace reports whether a file system has space for the databases of a test process. That
// of a container often has 64 MB.
func hasSpace(path string) bool {
	var fs syscall.Statfs_t
	return syscall.Statfs(path, &fs) == nil && fs.Bavail*uint64(fs.Bsize) >= enough
}
