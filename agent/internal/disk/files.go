package disk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// Staged ends the name of a file until it is renamed into place.
const Staged = ".tmp"

// StateDir is the agent's state folder and the file system that it is on.
type StateDir struct {
	Path string
	// Ballast is the file that is removed when the disk is full, so that the agent can
	// write its state; see KeepBallast. "" for none.
	Ballast string
	FS
}

// At is a folder of the operating system's file system.
func At(path string) StateDir { return StateDir{Path: path, FS: OS{}} }

// File is a path in the folder.
func (s StateDir) File(parts ...string) string {
	return filepath.Join(append([]string{s.Path}, parts...)...)
}

// Ensure creates the state folder and the named folders in it.
func (s StateDir) Ensure(folders ...string) error {
	for _, d := range append([]string{""}, folders...) {
		if err := s.MkdirAll(s.File(d)); err != nil {
			return fmt.Errorf("creating the state folder: %w", err)
		}
	}
	return nil
}

// put writes and syncs a new file at path.
func (s StateDir) put(path string, data []byte) error {
	f, err := s.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Write replaces path by data: staged file, fsync, rename, fsync of the folder. A
// reader finds the old content or the new after any crash, and never a part. On an
// error before the rename nothing stays behind and path is untouched.
func (s StateDir) Write(path string, data []byte) error {
	tmp := path + Staged
	err := s.put(tmp, data)
	if Full(err) && s.free() {
		err = s.put(tmp, data)
	}
	if err != nil {
		s.Remove(tmp) //nolint:errcheck // best effort; the write's error is the one to report
		return err
	}
	if err := s.Rename(tmp, path); err != nil {
		return err
	}
	return s.SyncDir(filepath.Dir(path))
}

// Replace writes path unless it contains data already. It makes the folder if there
// is none.
func (s StateDir) Replace(path string, data []byte) error {
	if old, err := s.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := s.MkdirAll(filepath.Dir(path)); err != nil {
		return err
	}
	return s.Write(path, data)
}

// WriteJSON durably replaces a state file.
func (s StateDir) WriteJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.Write(path, data)
}

// ReadJSON reads a state file; ok is false when there is none.
func (s StateDir) ReadJSON(path string, v any) (ok bool, err error) {
	data, err := s.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return true, nil
}
