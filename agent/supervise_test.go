package agent

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func newLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newLogTo(w io.Writer) *slog.Logger { return slog.New(slog.NewJSONHandler(w, nil)) }

func encodeTo(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// bench is a process driver with its folder.
type bench struct {
	*processDriver
	conf     Config
	cordoned atomic.Bool
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{conf: Config{WorkloadDir: t.TempDir()}}
	b.reopen(t)
	killLeftovers(t, b.conf)
	return b
}

// reopen is what a restarted agent does.
func (b *bench) reopen(t *testing.T) {
	t.Helper()
	d, err := newProcessDriver(b.conf.WorkloadDir, disk{}, b.cordoned.Load, func() {}, newLog())
	require.NoError(t, err)
	b.processDriver = d
}

func (b *bench) names(t *testing.T) []string {
	t.Helper()
	list, err := b.List(t.Context())
	require.NoError(t, err)
	names := []string{}
	for _, w := range list {
		require.Equal(t, DriverProcess, w.Kind)
		require.WithinDuration(t, time.Now(), w.Since, time.Minute)
		names = append(names, w.Name)
	}
	return names
}

// ends waits until a workload no longer runs.
func (b *bench) ends(t *testing.T, name string) {
	t.Helper()
	eventually(t, "the end of "+name, func() bool {
		return !slices.Contains(b.names(t), name)
	})
}

// touch makes a spec new.
func (b *bench) touch(t *testing.T, name string) {
	t.Helper()
	at := time.Now().Add(time.Duration(sidecar(t, b.conf, name).Starts) * time.Second)
	require.NoError(t, os.Chtimes(b.file(name, ".json"), at, at))
}

func TestCordonPreventsStarts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cordoned.Store(true)
	writeSpec(t, b.conf, "job", true, "sleep", "1000")
	b.reconcile()
	require.Empty(t, b.names(t))
	b.cordoned.Store(false)
	b.reconcile()
	require.Equal(t, []string{"job"}, b.names(t))
}

func TestStoppedWorkloadStaysStoppedUntilTouched(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	writeSpec(t, b.conf, "job", true, "sleep", "1000")
	b.reconcile()
	require.NoError(t, b.Stop(t.Context(), "job"))
	require.NoError(t, b.Stop(t.Context(), "job"), "a second stop changes nothing")
	b.ends(t, "job")
	require.Len(t, sidecar(t, b.conf, "job").Stops, 1)
	b.reconcile()
	require.Empty(t, b.names(t))
	b.reopen(t)
	b.procs["job"].StartedAt = time.Now().Add(-time.Hour) // past every restart delay
	b.reconcile()
	require.Empty(t, b.names(t))
	b.touch(t, "job")
	b.reconcile()
	require.Equal(t, []string{"job"}, b.names(t))
	require.Empty(t, sidecar(t, b.conf, "job").Stops)
}

func TestEndedWorkload(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	writeSpec(t, b.conf, "once", false, "true")
	writeSpec(t, b.conf, "again", true, "true")
	b.reconcile()
	b.ends(t, "once")
	b.ends(t, "again")
	b.reconcile()
	require.Equal(t, 1, sidecar(t, b.conf, "again").Starts, "restarts are spaced out")
	b.procs["again"].StartedAt = time.Now().Add(-time.Hour)
	b.procs["once"].StartedAt = time.Now().Add(-time.Hour)
	b.reconcile()
	require.Equal(t, 2, sidecar(t, b.conf, "again").Starts)
	require.Equal(t, 1, sidecar(t, b.conf, "once").Starts)
	require.Equal(t, phaseEnded, sidecar(t, b.conf, "once").Phase)
}

func TestRemovedSpec(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	writeSpec(t, b.conf, "job", false, "sleep", "1000")
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
	writeSpec(t, b.conf, "job", false, "sleep", "1000")
	b.reconcile()
	pid := sidecar(t, b.conf, "job").PID
	b.reopen(t)
	b.reconcile()
	require.Equal(t, []string{"job"}, b.names(t))
	require.Equal(t, pid, sidecar(t, b.conf, "job").PID)
	require.NoError(t, b.Stop(t.Context(), "job"))
	b.ends(t, "job")
}

// TestReusedPidIsNeverSignalled: the pid of the record now belongs to somebody
// else, or the host was booted since.
func TestReusedPidIsNeverSignalled(t *testing.T) {
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
			writeSpec(t, b.conf, "bystander", false, "sleep", "1000")
			b.reconcile()
			bystander := sidecar(t, b.conf, "bystander")
			pid := bystander.PID // the record below says something else
			t.Cleanup(func() { _ = signalGroup(pid, syscall.SIGKILL) })
			s := bystander
			change(&s)
			s.StartID = schema.NewID()
			require.NoError(t, stateDir{}.writeJSON(b.file("bystander", ".state"), s))
			b.reopen(t)
			require.NoError(t, b.Stop(t.Context(), "bystander"))
			require.NoError(t, b.Kill(t.Context(), "bystander"))
			require.Empty(t, b.names(t))
			require.Equal(t, bystander.StartTime, newProcessTable().startTime(bystander.PID), "the bystander was killed")
		})
	}
}

// TestSignalsOfManyAreRefused: kill(2) reads 0, 1 negated and negative numbers
// as groups of strangers. Signal 0 asks only; nothing is harmed if this fails.
func TestSignalsOfManyAreRefused(t *testing.T) {
	t.Parallel()
	for _, pid := range []int{1, 0, -1, -1000} {
		require.ErrorIs(t, signalGroup(pid, 0), errBadPID)
		require.ErrorIs(t, signalOne(pid, 0), errBadPID)
	}
}

// TestStraysCount: a workload whose first process ended runs for as long as
// something of its session does.
func TestStraysCount(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("sessions are only known on Linux")
	}
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "pid")
	writeSpec(t, b.conf, "job", false, "sh", "-c", `sleep 1000 & echo $! > "$0.tmp"; mv "$0.tmp" "$0"`, file)
	b.reconcile()
	eventually(t, "the first process's end", func() bool { return newProcessTable().startTime(sidecar(t, b.conf, "job").PID) == "" })
	require.Equal(t, []string{"job"}, b.names(t))
	stray := pidOf(t, file)
	b.reopen(t)
	require.Equal(t, []string{"job"}, b.names(t))
	require.NoError(t, b.Stop(t.Context(), "job"))
	b.ends(t, "job")
	require.Empty(t, newProcessTable().startTime(stray))
}

func TestSpecFaults(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, text := range map[string]string{
		"empty": `{}`, "no command": `{"command":[]}`, "unknown": `{"command":["sleep","1000"],"shell":true}`,
		"torn": `{"command":["sle`, "blank": `{"command":[""]}`, "-dash": `{"command":["sleep","1000"]}`,
	} {
		require.NoError(t, os.WriteFile(b.file(name, ".json"), []byte(text), privateFile))
	}
	b.reconcile()
	require.Empty(t, b.names(t))
	require.Len(t, b.bad, 6)

	writeSpec(t, b.conf, "absent", false, "/no/such/program")
	b.reconcile()
	b.ends(t, "absent")
	log, err := os.ReadFile(b.file("absent", ".log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "not found")
}

// TestNothingRunsThatNobodyKnows: a process whose pid cannot be stored never
// becomes its command.
func TestNothingRunsThatNobodyKnows(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "ran")
	writeSpec(t, b.conf, "job", false, "touch", file)
	b.disk.create = func(string, os.FileMode) (outFile, error) { return nil, syscall.ENOSPC }
	b.reconcile()
	<-b.wake // the gate's end
	require.NoFileExists(t, file)
	require.Empty(t, b.names(t))
}

// TestWorkloadsDoNotSeeTheToken: nothing of the agent's environment reaches
// what it starts.
func TestWorkloadsDoNotSeeTheToken(t *testing.T) {
	t.Setenv("GPUAAS_ENROLLMENT_TOKEN", "gpuet_hunter2")
	b := newBench(t)
	writeSpec(t, b.conf, "job", false, "env")
	b.reconcile()
	b.ends(t, "job")
	out, err := os.ReadFile(b.file("job", ".log"))
	require.NoError(t, err)
	require.Contains(t, string(out), "GPUAAS_WORKLOAD=job")
	require.NotContains(t, string(out), "hunter2")
}

func TestStopIsNotSentWhenItCannotBeRecorded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	writeSpec(t, b.conf, "job", false, "sleep", "1000")
	b.reconcile()
	b.disk.create = func(string, os.FileMode) (outFile, error) { return nil, syscall.ENOSPC }
	require.ErrorIs(t, b.Stop(t.Context(), "job"), syscall.ENOSPC)
	require.Equal(t, []string{"job"}, b.names(t))
	b.disk.create = nil
	require.NoError(t, b.Stop(t.Context(), "job"))
	b.ends(t, "job")
	require.Len(t, sidecar(t, b.conf, "job").Stops, 1)
}
