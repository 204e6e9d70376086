package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Modes of what the driver writes.
const (
	privateFile = 0o600
	privateDir  = 0o700
)

// file is a file being written.
type file interface {
	io.WriteCloser
	Sync() error
}

// files replaces files so that a reader, after any crash, finds the old content
// or the new.
type files struct {
	// create defaults to os.OpenFile; tests make it fail.
	create func(path string) (file, error)
}

func (f files) write(path string, data []byte) error {
	create := f.create
	if create == nil {
		create = func(path string) (file, error) {
			return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, privateFile)
		}
	}
	tmp := path + ".tmp"
	out, err := create(tmp)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	err = errors.Join(err, out.Sync(), out.Close())
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// readJSON reads a file; ok is false when there is none.
func readJSON(path string, v any) (ok bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return true, nil
}

// bootID is the same until the next boot.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
