package host

import (
	"strconv"
	"strings"
	"syscall"
)

// space is the size of a file system, or of the memory, in bytes.
type space struct{ total, free int64 }

// spaceOf returns the size and free space of the file system that holds path.
func spaceOf(path string) (space, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return space{}, err
	}
	block := int64(s.Bsize) //nolint:unconvert // an int32 elsewhere
	return space{total: int64(s.Blocks) * block, free: int64(s.Bavail) * block}, nil
}

// Free returns the bytes that are free in the file system of path.
func Free(path string) (int64, error) {
	s, err := spaceOf(path)
	return s.free, err
}

// parseUptime reads the first number of /proc/uptime.
func parseUptime(line string) int64 {
	first, _, _ := strings.Cut(line, " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil || seconds < 0 {
		return 0
	}
	return int64(seconds)
}
