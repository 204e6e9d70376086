package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// stateDir is the agent's memory on the node's disk.
type stateDir struct {
	path string
	disk disk
}

func (s stateDir) file(parts ...string) string {
	return filepath.Join(append([]string{s.path}, parts...)...)
}

// ensure creates the folders.
func (s stateDir) ensure() error {
	for _, d := range []string{s.path, s.file("journal"), s.file("identity")} {
		if err := s.disk.system().MkdirAll(d); err != nil {
			return fmt.Errorf("creating the state folder: %w", err)
		}
	}
	return nil
}

// writeJSON durably replaces a state file.
func (s stateDir) writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.disk.write(path, data)
}

// hint replaces a file that may be lost in a crash: it is renamed into place
// but not synced.
func (s stateDir) hint(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := s.file(name + ".tmp")
	if err := os.WriteFile(tmp, data, privateFile); err != nil {
		return err
	}
	return os.Rename(tmp, s.file(name))
}

// readJSON reads a state file; ok is false when there is none.
func (s stateDir) readJSON(path string, v any) (ok bool, err error) {
	return decodeFile(s.disk.system().ReadFile, path, v)
}

// readJSON is stateDir.readJSON on the operating system's disk.
func readJSON(path string, v any) (ok bool, err error) { return decodeFile(os.ReadFile, path, v) }

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

// lock takes the state folder for this process until the returned file is
// closed or the process ends. A folder already taken is KindOperationInProgress.
func (s stateDir) lock() (*os.File, error) {
	f, err := os.OpenFile(s.file("lock"), os.O_RDWR|os.O_CREATE, privateFile)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		holder, _ := os.ReadFile(f.Name())
		f.Close() //nolint:errcheck // nothing was written
		return nil, schema.Errorf(schema.KindOperationInProgress,
			"another agent (pid %s) uses the state folder %s", strings.TrimSpace(string(holder)), s.path)
	}
	if err := f.Truncate(0); err == nil {
		fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}

// lockPatience covers the moment in which a process that a former agent was
// just starting still holds a copy of its lock.
const lockPatience = time.Second

func flock(f *os.File) error {
	for end := time.Now().Add(lockPatience); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || time.Now().After(end) {
			return err
		}
		pause(context.Background(), lockPatience/20) //nolint:errcheck // this context has no end
	}
}

// flags is the part of the state that tasks switch.
type flags struct {
	mu       sync.Mutex
	state    stateDir
	cordoned bool
	// changed is called after the cordon changed. Set before use.
	changed func()
}

// cordonFile is the stored form of the cordon.
type cordonFile struct {
	Cordoned bool      `json:"cordoned"`
	Since    time.Time `json:"since"`
}

func loadFlags(s stateDir) (*flags, error) {
	var f cordonFile
	if _, err := s.readJSON(s.file("cordon.json"), &f); err != nil {
		return nil, err
	}
	return &flags{state: s, cordoned: f.Cordoned, changed: func() {}}, nil
}

// Cordoned reports whether new workloads are refused.
func (f *flags) Cordoned() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cordoned
}

// setCordoned stores the cordon before it holds. Setting what already stands
// writes nothing.
func (f *flags) setCordoned(on bool) error {
	f.mu.Lock()
	was, err := f.cordoned, error(nil)
	if was != on {
		err = f.state.writeJSON(f.state.file("cordon.json"), cordonFile{Cordoned: on, Since: time.Now().UTC()})
	}
	if err == nil {
		f.cordoned = on
	}
	f.mu.Unlock()
	if err == nil && was != on {
		f.changed()
	}
	return err
}
