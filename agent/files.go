package agent

import (
	"os"
	"path/filepath"
)

// Modes of what the agent writes: nobody but its own user reads its state.
const (
	privateFile = 0o600
	privateDir  = 0o700
)

// outFile is a file being written.
type outFile = File

// disk writes files so that a reader, after any crash, finds the old content or
// the new and never a part. The zero value uses the operating system.
type disk struct {
	// fs defaults to OS.
	fs FS
	// create opens a new file for writing in place of fs; tests make it fail.
	create func(path string, mode os.FileMode) (outFile, error)
}

func (d disk) system() FS {
	if d.fs == nil {
		return OS{}
	}
	return d.fs
}

func (d disk) open(path string, mode os.FileMode) (outFile, error) {
	if d.create != nil {
		return d.create(path, mode)
	}
	return d.system().Create(path)
}

// put writes and syncs a new file at path.
func (d disk) put(path string, data []byte) error {
	f, err := d.open(path, privateFile)
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

// write replaces path by data: staged file, fsync, rename, fsync of the folder.
// On an error before the rename nothing stays behind and path is untouched.
func (d disk) write(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := d.put(tmp, data); err != nil {
		d.system().Remove(tmp) //nolint:errcheck // best effort; the write's error is the one to report
		return err
	}
	if err := d.system().Rename(tmp, path); err != nil {
		return err
	}
	return d.system().SyncDir(filepath.Dir(path))
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
