package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuaas/gpuaas/deploy/vm-image/sparse"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// fileSystem is where the image has the empty file system of the machine's disk.
const fileSystem = "/lib/state.fs"

// mountState mounts the machine's disk, or memory if it has none, and on it the folders of the agent's
// configuration and state.
func mountState() error {
	const safe = unix.MS_NOSUID | unix.MS_NODEV
	disk, err := findDisk("/sys/block", machine.StateDiskSerial)
	if err != nil {
		return err
	}
	if disk == "" {
		say("the machine has no disk for its identity, and loses it when it restarts")
		err = unix.Mount("tmpfs", stateDir, "tmpfs", safe, "mode=0700,size=75%")
	} else if err = format(disk); err == nil {
		err = unix.Mount(disk, stateDir, "ext4", safe, "")
	}
	if err != nil {
		return fmt.Errorf("mounting %s: %w", stateDir, err)
	}
	for path, mode := range map[string]os.FileMode{filepath.Dir(trust.DefaultEnvFile): 0o755, filepath.Dir(trust.DefaultStateDir): 0o700} {
		kept := filepath.Join(stateDir, path)
		if err := os.MkdirAll(kept, mode); err != nil {
			return err
		}
		if err := unix.Mount(kept, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", path, err)
		}
	}
	return nil
}

// format writes a file system to an empty disk.
func format(path string) error {
	fs, err := os.ReadFile(fileSystem)
	if err != nil {
		return err
	}
	disk, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	formatted, err := sparse.Format(disk, fs)
	if err = errors.Join(err, disk.Close()); err != nil {
		return fmt.Errorf("formatting %s: %w", path, err)
	}
	if formatted {
		say("wrote a file system to %s", path)
	}
	return nil
}
