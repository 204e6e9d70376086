package identity

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
)

// staleMark is in the names of the files and folders of older identities. The bootstrap
// script, the installer and the line of a reissue rename them so, and delete nothing.
const staleMark = ".stale-"

// wipeStale wipes older identities: renamed certificates and keys, renamed parts of the
// state folder, and renamed state folders.
func wipeStale(d disk.StateDir, c Config) error {
	faults := []error{wipeMatching(d, d.Path, "")}
	for _, path := range []string{c.CertPath, c.KeyPath, d.Path} {
		faults = append(faults, wipeMatching(d, filepath.Dir(path), filepath.Base(path)))
	}
	return errors.Join(faults...)
}

// wipeMatching wipes the entries of a folder that were renamed from name, "" for any name.
func wipeMatching(d disk.StateDir, folder, name string) error {
	entries, err := d.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	faults := []error{err}
	for _, e := range entries {
		was, _, stale := strings.Cut(e.Name(), staleMark)
		if stale && (name == "" || was == name) {
			faults = append(faults, wipeEntry(d, filepath.Join(folder, e.Name()), e))
		}
	}
	return errors.Join(faults...)
}

// wipeEntry wipes a file or all files of a folder. It removes a link and leaves its target.
func wipeEntry(d disk.StateDir, path string, e fs.DirEntry) error {
	switch {
	case e.Type().IsRegular():
		return d.Wipe(path)
	case !e.IsDir():
		return d.Remove(path)
	}
	entries, err := d.ReadDir(path)
	faults := []error{err}
	for _, inside := range entries {
		faults = append(faults, wipeEntry(d, filepath.Join(path, inside.Name()), inside))
	}
	return errors.Join(append(faults, d.Remove(path))...)
}
