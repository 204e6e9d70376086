package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
)

// StateDir is the agent's state folder.
type StateDir struct {
	Path  string
	Files Files
}

// File is a path in the folder.
func (s StateDir) File(parts ...string) string {
	return filepath.Join(append([]string{s.Path}, parts...)...)
}

// Ensure creates the state folder and the named folders in it.
func (s StateDir) Ensure(folders ...string) error {
	for _, d := range append([]string{""}, folders...) {
		if err := s.Files.System().MkdirAll(s.File(d)); err != nil {
			return fmt.Errorf("creating the state folder: %w", err)
		}
	}
	return nil
}

// WriteJSON durably replaces a state file.
func (s StateDir) WriteJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.Files.Write(path, data)
}

// Hint replaces a file that may be lost in a crash: it is renamed into place
// but not synced.
func (s StateDir) Hint(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := s.File(name + ".tmp")
	if err := os.WriteFile(tmp, data, privateFile); err != nil {
		return err
	}
	return os.Rename(tmp, s.File(name))
}

// ReadJSON reads a state file; ok is false when there is none.
func (s StateDir) ReadJSON(path string, v any) (ok bool, err error) {
	return decodeFile(s.Files.System().ReadFile, path, v)
}

// ReadJSON is StateDir.ReadJSON on the operating system's disk.
func ReadJSON(path string, v any) (ok bool, err error) { return decodeFile(os.ReadFile, path, v) }

func decodeFile(read func(string) ([]byte, error), path string, v any) (ok bool, err error) {
	data, err := read(path)
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

// Lock takes the state folder for this process until the returned file is
// closed or the process ends. A folder already taken is KindOperationInProgress.
func (s StateDir) Lock() (*os.File, error) {
	f, err := os.OpenFile(s.File("lock"), os.O_RDWR|os.O_CREATE, privateFile)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		holder, _ := os.ReadFile(f.Name())
		f.Close() //nolint:errcheck // nothing was written
		return nil, schema.Errorf(schema.KindOperationInProgress,
			"another agent (pid %s) uses the state folder %s", strings.TrimSpace(string(holder)), s.Path)
	}
	if err := f.Truncate(0); err == nil {
		fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}

// lockTimeout covers the moment in which a process that a former agent was
// just starting still holds a copy of its lock.
const lockTimeout = time.Second

func flock(f *os.File) error {
	for end := time.Now().Add(lockTimeout); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || time.Now().After(end) {
			return err
		}
		wait.Sleep(context.Background(), lockTimeout/20) //nolint:errcheck // this context has no end
	}
}
