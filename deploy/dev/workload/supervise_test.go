package workload

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/deploy/dev/internal/proc"
	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// bench is a process driver with its folder.
type bench struct {
	*Driver
	dir      string
	cordoned atomic.Bool
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{dir: filepath.Join(t.TempDir(), "workloads")}
	b.reopen(t)
	killLeftovers(t, b.dir)
	return b
}

// reopen replaces the driver, as a restart of the agent does.
func (b *bench) reopen(t *testing.T) {
	t.Helper()
	c := workload.Config{Cordoned: b.cordoned.Load, Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
	c.State.Path = filepath.Join(filepath.Dir(b.dir), "state")
	d, err := New(c)
	require.NoError(t, err)
	b.Driver = d
}

func (b *bench) names(t *testing.T) []string {
	t.Helper()
	list, err := b.List(t.Context())
	require.NoError(t, err)
	names := []string{}
	for _, w := range list {
		require.Equal(t, Name, w.Kind)
		require.WithinDuration(t, time.Now(), w.Since, time.Minute)
		names = append(names, w.Name)
	}
	return names
}

func writeSpec(t *testing.T, dir, name string, restart bool, command ...string) {
	t.Helper()
	data, err := json.Marshal(processSpec{Command: command, Restart: restart})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".json"), data, 0o600))
}

func sidecar(t *testing.T, dir, name string) process {
	t.Helper()
	var s process
	ok, err := statefile.ReadJSON(filepath.Join(dir, name+".state"), &s)
	require.NoError(t, err)
	require.True(t, ok)
	return s
}

// killLeftovers ends the workloads that a test leaves running.
func killLeftovers(tb testing.TB, dir string) {
	tb.Helper()
	tb.Cleanup(func() {
		files, _ := filepath.Glob(filepath.Join(dir, "*.state"))
		for _, f := range files {
			var s process
			if ok, err := statefile.ReadJSON(f, &s); ok && err == nil && s.Phase == phaseRunning && proc.StartTime(s.PID) == s.StartTime {
				_ = signalGroup(s.PID, syscall.SIGKILL)
			}
		}
	})
}

// ends waits until a workload no longer runs.
func (b *bench) ends(t *testing.T, name string) {
	t.Helper()
	harness.Eventually(t, "the end of "+name, func() bool {
		return !slices.Contains(b.names(t), name)
	})
}

// touch modifies a spec file.
func (b *bench) touch(t *testing.T, name string) {
	t.Helper()
	at := time.Now().Add(time.Duration(sidecar(t, b.dir, name).Starts) * time.Second)
	require.NoError(t, os.Chtimes(b.file(name, ".json"), at, at))
}

func TestCordonPreventsStarts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cordoned.Store(true)
	writeSpec(t, b.dir, "job", true, "sleep", "1000")
	b.reconcile()
	require.Empty(t, b.names(t))
	b.cordoned.Store(false)
	b.reconcile()
	require.Equal(t, []string{"job"}, b.names(t))
}

func TestStoppedWorkloadStaysStopped(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	writeSpec(t, b.dir, "job", true, "sleep", "1000")
	b.reconcile()
	require.NoError(t, b.Stop(t.Context(), "job"))
	require.NoError(t, b.Stop(t.Context(), "job"), "a second stop changes nothing")
	b.ends(t, "job")
	require.Len(t, sidecar(t, b.dir, "job").Stops, 1)
	b.reconcile()
	require.Empty(t, b.names(t))
	b.reopen(t)
	b.procs["job"].StartedAt = time.Now().Add(-time.Hour) // past every restart delay
	b.reconcile()
	require.Empty(t, b.names(t))
	b.touch(t, "job")
	b.reconcile()
	require.Equal(t, []string{"job"}, b.names(t))
	require.Empty(t, sidecar(t, b.dir, "job").Stops)
}

func TestEndedWorkload(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	writeSpec(t, b.dir, "once", false, "true")
	writeSpec(t, b.dir, "again", true, "true")
	b.reconcile()
	b.ends(t, "once")
	b.ends(t, "again")
	b.reconcile()
	require.Equal(t, 1, sidecar(t, b.dir, "again").Starts, "restarts are spaced out")
	b.procs["again"].StartedAt = time.Now().Add(-time.Hour)
	b.procs["once"].StartedAt = time.Now().Add(-time.Hour)
	b.reconcile()
	require.Equal(t, 2, sidecar(t, b.dir, "again").Starts)
	require.Equal(t, 1, sidecar(t, b.dir, "once").Starts)
	require.Equal(t, phaseEnded, sidecar(t, b.dir, "once").Phase)
}

func TestRemovedSpec(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	writeSpec(t, b.dir, "job", false, "sleep", "1000")
	b.reconcile()
	require.NoError(t, os.Remove(b.file("job", ".json")))
	b.reconcile()
	require.Equal(t, []string{"job"}, b.names(t), "a running workload is left alone")
	require.NoError(t, b.Kill(t.Context(), "job"))
	b.ends(t, "job")
	b.reconcile()
	require.NoFileExists(t, b.file("job", ".state"))
}

func TestAdoption(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	writeSpec(t, b.dir, "job", false, "sleep", "1000")
	b.reconcile()
	pid := sidecar(t, b.dir, "job").PID
	b.reopen(t)
	b.reconcile()
	require.Equal(t, []string{"job"}, b.names(t))
	require.Equal(t, pid, sidecar(t, b.dir, "job").PID)
	require.NoError(t, b.Stop(t.Context(), "job"))
	b.ends(t, "job")
}

// TestReusedPIDNotSignaled: the recorded pid now belongs to another
// process, or the host was rebooted.
func TestReusedPIDNotSignaled(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*process){
		"other start time": func(s *process) { s.StartTime = "1" },
		"other boot":       func(s *process) { s.BootID = schema.NewID() },
		"no start time":    func(s *process) { s.StartTime = "" },
		"no pid":           func(s *process) { s.PID = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			writeSpec(t, b.dir, "bystander", false, "sleep", "1000")
			b.reconcile()
			bystander := sidecar(t, b.dir, "bystander")
			pid := bystander.PID // the record below has another one
			t.Cleanup(func() { _ = signalGroup(pid, syscall.SIGKILL) })
			s := bystander
			change(&s)
			s.StartID = schema.NewID()
			data, err := json.Marshal(s)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(b.file("bystander", ".state"), data, 0o600))
			b.reopen(t)
			require.NoError(t, b.Stop(t.Context(), "bystander"))
			require.NoError(t, b.Kill(t.Context(), "bystander"))
			require.Empty(t, b.names(t))
			require.Equal(t, bystander.StartTime, proc.StartTime(bystander.PID), "the bystander was killed")
		})
	}
}

// TestRejectGroupSignals: kill(2) reads 0, 1 negated and negative numbers
// as groups of other processes. Signal 0 only checks, so a failure is harmless.
func TestRejectGroupSignals(t *testing.T) {
	t.Parallel()
	for _, pid := range []int{1, 0, -1, -1000} {
		require.ErrorIs(t, signalGroup(pid, 0), errBadPID)
		require.ErrorIs(t, signalOne(pid, 0), errBadPID)
	}
}

// TestCountStrays: a workload whose first process exited runs as long as another
// process of its session does.
func TestCountStrays(t *testing.T) {
	t.Parallel()
	need.That(t, runtime.GOOS == "linux", "sessions are only known on Linux")
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "pid")
	writeSpec(t, b.dir, "job", false, "sh", "-c", `sleep 1000 & echo $! > "$0.tmp"; mv "$0.tmp" "$0"`, file)
	b.reconcile()
	harness.Eventually(t, "the first process's end", func() bool { return proc.StartTime(sidecar(t, b.dir, "job").PID) == "" })
	require.Equal(t, []string{"job"}, b.names(t))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	stray, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	b.reopen(t)
	require.Equal(t, []string{"job"}, b.names(t))
	require.NoError(t, b.Stop(t.Context(), "job"))
	b.ends(t, "job")
	require.Empty(t, proc.StartTime(stray))
}

func TestSpecFaults(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, text := range map[string]string{
		"empty": `{}`, "no command": `{"command":[]}`, "unknown": `{"command":["sleep","1000"],"shell":true}`,
		"torn": `{"command":["sle`, "blank": `{"command":[""]}`, "-dash": `{"command":["sleep","1000"]}`,
	} {
		require.NoError(t, os.WriteFile(b.file(name, ".json"), []byte(text), 0o600))
	}
	b.reconcile()
	require.Empty(t, b.names(t))
	require.Len(t, b.bad, 6)

	writeSpec(t, b.dir, "absent", false, "/no/such/program")
	b.reconcile()
	b.ends(t, "absent")
	log, err := os.ReadFile(b.file("absent", ".log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "not found")
}

// TestNoUnrecordedProcess: a process whose pid cannot be stored never
// becomes its command.
func TestNoUnrecordedProcess(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	path := filepath.Join(t.TempDir(), "ran")
	writeSpec(t, b.dir, "job", false, "touch", path)
	blockState(t, b, "job")
	b.reconcile()
	<-b.wake // the gate exited
	require.NoFileExists(t, path)
	require.Empty(t, b.names(t))
}

// blockState makes writes of a workload's state file fail until the returned
// function is called.
func blockState(t *testing.T, b *bench, name string) (unblock func()) {
	t.Helper()
	path := b.file(name, ".state")
	require.NoError(t, os.RemoveAll(path))
	require.NoError(t, os.MkdirAll(filepath.Join(path, "blocked"), 0o700))
	return func() { require.NoError(t, os.RemoveAll(path)) }
}

// TestWorkloadsGetNoToken: workloads do not inherit the agent's environment.
func TestWorkloadsGetNoToken(t *testing.T) {
	t.Setenv("GPUAAS_ENROLLMENT_TOKEN", "gpuet_hunter2")
	b := newBench(t)
	writeSpec(t, b.dir, "job", false, "env")
	b.reconcile()
	b.ends(t, "job")
	out, err := os.ReadFile(b.file("job", ".log"))
	require.NoError(t, err)
	require.Contains(t, string(out), "GPUAAS_WORKLOAD=job")
	require.NotContains(t, string(out), "hunter2")
}

func TestStopRequiresRecord(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	writeSpec(t, b.dir, "job", false, "sleep", "1000")
	b.reconcile()
	unblock := blockState(t, b, "job")
	require.Error(t, b.Stop(t.Context(), "job"))
	require.Equal(t, []string{"job"}, b.names(t))
	unblock()
	require.NoError(t, b.Stop(t.Context(), "job"))
	b.ends(t, "job")
	require.Len(t, sidecar(t, b.dir, "job").Stops, 1)
}
