package agenttest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
)

// FakeWorkloads is a driver under a test's control.
type FakeWorkloads struct {
	Mu      sync.Mutex
	Running []task.Workload
	Lists   int
	OnList  func(n int) error
	OnStop  func(name string) error
	Asked   []string
	Killed  []string
}

// Stub writes an executable shell script.
func Stub(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	// A child forked while the file is open for writing would keep it busy.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700))
	return path
}

func (w *FakeWorkloads) List(context.Context) ([]task.Workload, error) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Lists++
	if w.OnList != nil {
		if err := w.OnList(w.Lists); err != nil {
			return nil, err
		}
	}
	return append([]task.Workload{}, w.Running...), nil
}

func (w *FakeWorkloads) Stop(_ context.Context, name string) error {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	if err := w.OnStop(name); err != nil {
		return err
	}
	w.Asked = append(w.Asked, name)
	for i := range w.Running {
		w.Running[i].Stopping = w.Running[i].Stopping || w.Running[i].Name == name
	}
	return nil
}

func (w *FakeWorkloads) Kill(_ context.Context, name string) error {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Killed = append(w.Killed, name)
	return errors.New("no permission")
}

func (w *FakeWorkloads) Run(ctx context.Context) { <-ctx.Done() }
