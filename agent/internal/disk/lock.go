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

// Lock is the lock of a state folder.
type Lock struct{ f *os.File }

// Lock locks the state folder for this process until the lock is released or the process
// ends. It returns KindOperationInProgress if another process holds the lock.
func (s StateDir) Lock() (Lock, error) {
	f, err := os.OpenFile(s.File("lock"), os.O_RDWR|os.O_CREATE, privateFile)
	if err != nil {
		return Lock{}, err
	}
	if err := flock(f); err != nil {
		holder, _ := os.ReadFile(f.Name())
		f.Close() //nolint:errcheck // nothing was written
		return Lock{}, schema.NewError(schema.KindOperationInProgress,
			"another agent (pid %s) uses the state folder %s", strings.TrimSpace(string(holder)), s.Path)
	}
	if err := f.Truncate(0); err == nil {
		fmt.Fprintln(f, os.Getpid())
	}
	return Lock{f}, nil
}

// Release unlocks the folder, also if a child process that is just starting holds a copy
// of the descriptor: closing alone leaves the lock to the copy.
func (l Lock) Release() {
	syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN) //nolint:errcheck // fails after a release
	l.f.Close()                                   //nolint:errcheck // nothing is written through it
}

// lockTimeout is how long a child process that a killed agent was just starting may
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
