package disk

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
)

// Hint replaces a file that may be lost in a crash: it is renamed into place
// but not synced.
func (s StateDir) Hint(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := s.File(name + Staged)
	if err := os.WriteFile(tmp, data, privateFile); err != nil {
		return err
	}
	return os.Rename(tmp, s.File(name))
}

// Lock locks the state folder for this process until the returned file is closed or the
// process ends. It returns KindOperationInProgress if another process holds the lock.
func (s StateDir) Lock() (*os.File, error) {
	f, err := os.OpenFile(s.File("lock"), os.O_RDWR|os.O_CREATE, privateFile)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		holder, _ := os.ReadFile(f.Name())
		f.Close() //nolint:errcheck // nothing was written
		return nil, schema.NewError(schema.KindOperationInProgress,
			"another agent (pid %s) uses the state folder %s", strings.TrimSpace(string(holder)), s.Path)
	}
	if err := f.Truncate(0); err == nil {
		fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}

// lockTimeout is how long a child process that a previous agent was just starting may
// still hold a copy of the lock.
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
