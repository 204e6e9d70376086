package dev

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
)

// sleeper starts a process that sleeps for an hour.
func sleeper(t *testing.T) (identity, <-chan struct{}) {
	t.Helper()
	path, err := exec.LookPath("sleep")
	require.NoError(t, err)
	id, ended, err := spawn(command{path: path, args: []string{"3600"}}, filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	require.Greater(t, id.PID, 1)
	t.Cleanup(func() {
		require.NoError(t, id.signal(syscall.SIGKILL))
		<-ended
	})
	return id, ended
}

func TestStop(t *testing.T) {
	t.Parallel()
	id, ended := sleeper(t)
	require.True(t, id.alive())
	require.NoError(t, id.stop(t.Context(), defaultStop()))
	<-ended
	require.False(t, id.alive())
	require.NoError(t, id.stop(t.Context(), defaultStop()), "stopping an exited process succeeds")
}

func TestReusedPIDIsNotSignaled(t *testing.T) {
	t.Parallel()
	id, ended := sleeper(t)
	for name, other := range map[string]identity{
		"another start time": {PID: id.PID, StartTime: "1", BootID: id.BootID},
		"another boot":       {PID: id.PID, StartTime: id.StartTime, BootID: "another"},
		"no start time":      {PID: id.PID, BootID: id.BootID},
	} {
		require.False(t, other.alive(), name)
		require.NoError(t, other.stop(t.Context(), []stopStep{{syscall.SIGKILL, harness.Timeout}}), name)
		require.NoError(t, other.stopGroup(t.Context()), name)
	}
	select {
	case <-ended:
		t.Fatal("stopped the process of another identity")
	default:
	}
	require.True(t, id.alive())
}

func TestStopEscalates(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	script := `trap "" TERM; echo ready; while :; do sleep 1; done`
	id, ended, err := spawn(command{path: "/bin/sh", args: []string{"-c", script}}, log)
	require.NoError(t, err)
	require.True(t, until(t.Context(), harness.Timeout, func() bool { return size(log) > 0 }))
	require.NoError(t, id.stop(t.Context(), []stopStep{{syscall.SIGTERM, 100 * time.Millisecond}, {syscall.SIGKILL, harness.Timeout}}))
	<-ended
}

// A process that exited and was not reaped is not alive: on systems without a
// reaper, killed parts remain zombies.
func TestZombieIsNotAlive(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sleep", "3600")
	require.NoError(t, cmd.Start())
	id, ok := identify(cmd.Process.Pid)
	require.True(t, ok)
	require.NoError(t, cmd.Process.Kill())
	require.True(t, until(t.Context(), harness.Timeout, func() bool { return !id.alive() }))
	require.NoError(t, id.stop(t.Context(), defaultStop()))
	require.Error(t, cmd.Wait())
}

func TestProcessHasOwnGroup(t *testing.T) {
	t.Parallel()
	id, _ := sleeper(t)
	group, err := syscall.Getpgid(id.PID)
	require.NoError(t, err)
	require.Equal(t, id.PID, group, "it leads its own process group")
}

func TestRunFiles(t *testing.T) {
	t.Parallel()
	l := layout{dir: t.TempDir()}
	require.NoError(t, l.make())
	id, _ := sleeper(t)
	for _, name := range []string{partPostgres, partAPI, agentPrefix + "gpu-17", partVault, partWorker, partTemporal} {
		require.NoError(t, l.processes().save(runFile{Part: name, identity: id, Program: "/bin/sleep"}))
	}
	info, err := os.Stat(l.processes().path(partVault))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	found, ok := l.processes().running(agentPrefix + "gpu-17")
	require.True(t, ok)
	require.Equal(t, id, found)
	runs, err := l.processes().all()
	require.NoError(t, err)
	var order []string
	for _, r := range runs {
		order = append(order, r.Part)
	}
	require.Equal(t, []string{agentPrefix + "gpu-17", partAPI, partWorker, partTemporal, partVault, partPostgres}, order)

	require.NoError(t, l.processes().remove(partVault))
	require.NoError(t, l.processes().remove(partVault))
	_, ok = l.processes().running(partVault)
	require.False(t, ok)
	require.NoError(t, os.WriteFile(l.processes().path(partVault), []byte("{"), 0o600))
	_, err = l.processes().all()
	require.ErrorContains(t, err, "vault.json")
}

func TestLock(t *testing.T) {
	t.Parallel()
	l := layout{dir: t.TempDir()}
	unlock, err := l.lock(t.Context(), t.Output())
	require.NoError(t, err)
	second := make(chan error, 1)
	waiting := &signalWriter{c: make(chan struct{})}
	go func() {
		again, err := l.lock(t.Context(), waiting)
		if err == nil {
			again()
		}
		second <- err
	}()
	<-waiting.c
	require.NoError(t, os.Remove(l.lockFile()))
	unlock()
	require.NoError(t, <-second)
}

// signalWriter closes its channel at the first write.
type signalWriter struct {
	c    chan struct{}
	done bool
}

func (w *signalWriter) Write(p []byte) (int, error) {
	if !w.done {
		w.done = true
		close(w.c)
	}
	return len(p), nil
}
