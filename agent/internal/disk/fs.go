package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// Modes of the agent's files: only its own user reads its state.
const (
	privateFile = 0o600
	privateDir  = 0o700
)

// FS is the part of a file system that the agent writes through. Each method
// that changes something is a step at which a disk may fail or a machine may stop.
// The agent's state is consistent after each of them.
type FS interface {
	ReadFile(path string) ([]byte, error)
	ReadDir(path string) ([]fs.DirEntry, error)
	// MkdirAll makes a folder for the agent's user alone.
	MkdirAll(path string) error
	// Create makes a new file for the agent's user alone, replacing an
	// existing one.
	Create(path string) (File, error)
	Rename(from, to string) error
	// Remove removes a file or an empty folder.
	Remove(path string) error
	// Wipe overwrites a file with zeros, syncs it and removes it. A missing file
	// is not an error.
	Wipe(path string) error
	// SyncDir makes renames and removals in a folder durable.
	SyncDir(path string) error
}

// File is a file being written.
type File interface {
	io.WriteCloser
	Sync() error
}

// OS is the operating system's file system.
type OS struct{}

// ReadFile implements FS.
func (OS) ReadFile(path string) ([]byte, error) { return os.ReadFile(path) }

// ReadDir implements FS.
func (OS) ReadDir(path string) ([]fs.DirEntry, error) { return os.ReadDir(path) }

// MkdirAll implements FS.
func (OS) MkdirAll(path string) error { return os.MkdirAll(path, privateDir) }

// Create implements FS. A leftover of a crash may have another mode, so it is
// not opened but replaced.
func (OS) Create(path string) (File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, privateFile)
}

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (OS) Remove(path string) error { return os.Remove(path) }

// Wipe implements FS. On a disk that moves blocks, the old blocks may survive; the server
// has revoked what they hold.
func (OS) Wipe(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err == nil {
		_, err = f.Write(make([]byte, fi.Size()))
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Remove(path))
}

// SyncDir implements FS.
func (OS) SyncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
