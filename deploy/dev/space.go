package dev

import (
	"fmt"
	"syscall"
)

// minSpace is the free space that the start of a stack needs: an empty database has 40 MiB, and
// Postgres writes its log ahead in files of 16 MiB.
const minSpace = 256 << 20

// checkSpace returns an error if the disk of a folder has less free space than need, in bytes. Postgres and Temporal
// would fail later, with errors in their logs only.
func checkSpace(dir string, need uint64) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return fmt.Errorf("reading the free space of %s: %w", dir, err)
	}
	free := uint64(disk.Bavail) * uint64(disk.Bsize) //nolint:unconvert // the types depend on the system, and the values are positive
	if free >= need {
		return nil
	}
	return stackError("free some space, or choose a folder on another disk: gpuaas dev up --dir DIR",
		"the disk of %s has %d MiB free, and the stack needs %d MiB", dir, free>>20, need>>20).WithReason("disk_full")
}
