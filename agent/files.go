package agent

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Modes of what the agent writes: nobody but its own user reads its state.
const (
	privateFile = 0o600
	privateDir  = 0o700
)

// outFile is the part of *os.File that a durable write needs.
type outFile interface {
	io.WriteCloser
	Sync() error
}

// disk writes files so that a reader, after any crash, finds the old content or
// the new and never a part. The zero value uses the operating system.
type disk struct {
	// create opens a new file for writing; tests make it fail. Defaults to
	// os.OpenFile.
	create func(path string, mode os.FileMode) (outFile, error)
}

func (d disk) open(path string, mode os.FileMode) (outFile, error) {
	if d.create != nil {
		return d.create(path, mode)
	}
	// A leftover of a crash may have another mode.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
}

// stage writes and syncs data beside path and returns the staged name. On an
// error nothing stays behind and path is untouched.
func (d disk) stage(path string, data []byte) (string, error) {
	tmp := path + ".tmp"
	f, err := d.open(tmp, privateFile)
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		os.Remove(tmp) //nolint:errcheck // best effort; the write's error is the one to report
		return "", err
	}
	return tmp, nil
}

// write replaces path by data: staged file, fsync, rename, fsync of the folder.
func (d disk) write(path string, data []byte) error {
	tmp, err := d.stage(path, data)
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
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
