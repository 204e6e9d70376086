package disk

import (
	"os"
	"path/filepath"
)

// Modes of the agent's files: only its own user reads its state.
const (
	privateFile = 0o600
	privateDir  = 0o700
)

// Files writes files so that a reader, after any crash, finds the old content or
// the new and never a part. The zero value uses the operating system.
type Files struct {
	// FS defaults to OS.
	FS FS
}

// System is the file system below.
func (d Files) System() FS {
	if d.FS == nil {
		return OS{}
	}
	return d.FS
}

// Put writes and syncs a new file at path.
func (d Files) Put(path string, data []byte) error {
	f, err := d.System().Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Write replaces path by data: staged file, fsync, rename, fsync of the folder.
// On an error before the rename nothing stays behind and path is untouched.
func (d Files) Write(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := d.Put(tmp, data); err != nil {
		d.System().Remove(tmp) //nolint:errcheck // best effort; the write's error is the one to report
		return err
	}
	if err := d.System().Rename(tmp, path); err != nil {
		return err
	}
	return d.System().SyncDir(filepath.Dir(path))
}

// syncDir makes renames and removals in dir durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read only
	return f.Sync()
}
