package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// shell is an executor that runs a script as the agent runs programs.
func shell(script string) runner.Executor {
	return runner.Executor{Check: runner.NoParams, Folder: true, Run: func(ctx context.Context, t runner.Task) (any, error) {
		out, _, err := programsOf(t).Run(ctx, 1<<10, "sh", "-c", script)
		return out, err
	}}
}

// TestTaskProgram runs in a folder of its own that is gone afterwards, and
// what it printed goes with the result, whether it succeeds or not.
func TestTaskProgram(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	require.NoError(t, os.MkdirAll(filepath.Join(c.StateDir, "work", "left", "over"), 0o700))
	a := start(t, c, Deps{Executors: map[task.Type]runner.Executor{
		task.WorkloadCordon:   shell(`echo out; echo err >&2; pwd; ls -A; stat -c %a .; echo x > file`),
		task.WorkloadUncordon: shell(`head -c 100000 /dev/zero | tr '\0' x; echo end >&2; exit 3`),
	}})
	require.NoDirExists(t, filepath.Join(c.StateDir, "work"), "left by a previous process")
	for i := range 2 {
		p := f.Payload(task.WorkloadCordon, int64(i+1), nil)
		f.Offers <- f.OfferOf(p, 1)
		r := f.Result(p.TaskID)
		require.Equal(t, task.Succeeded, r.Status, r.Message)
		dir := filepath.Join(c.StateDir, "work", p.TaskID)
		require.Contains(t, r.OutputTail, "err\n")
		require.Equal(t, "out\n"+dir+"\n700\n", decode[string](t, r.Output))
		require.NoDirExists(t, dir)
	}
	p := f.Payload(task.WorkloadUncordon, 3, nil)
	f.Offers <- f.OfferOf(p, 1)
	r := f.Result(p.TaskID)
	require.Equal(t, task.Failed, r.Status)
	require.Len(t, r.OutputTail, task.MaxOutputTail)
	require.NotContains(t, a.log.String(), strings.Repeat("x", 1000))
}

// TestCancelKillsTheProcessGroup: the processes of a program end with it.
func TestCancelKillsTheProcessGroup(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	file := filepath.Join(t.TempDir(), "pid")
	var stop atomic.Bool
	f.Progress = func(string, task.Progress) (wire.ProgressResponse, error) {
		return wire.ProgressResponse{Cancel: stop.Load()}, nil
	}
	start(t, configFor(f), Deps{Executors: map[task.Type]runner.Executor{
		task.WorkloadCordon: shell(`sleep 1000 & echo $! > ` + file + `.tmp; echo begun; mv ` + file + `.tmp ` + file + `; wait`),
	}})
	p := f.Payload(task.WorkloadCordon, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	eventually(t, "the child", func() bool { return exists(file) })
	pid := pidOf(t, file)
	stop.Store(true)
	r := f.Result(p.TaskID)
	require.Equal(t, task.Canceled, r.Status)
	require.Equal(t, "begun\n", r.OutputTail)
	eventually(t, "the child's end", func() bool { return !processRuns(pid) })
}

// TestPausedDrain stops no workload while it is paused, continues after the pause,
// and ends at its deadline in both cases.
func TestPausedDrain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		force   bool
		unpause bool
	}{"continues": {unpause: true}, "to its deadline": {}, "to its deadline, by force": {force: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			var paused atomic.Bool
			paused.Store(true)
			f.Progress = func(string, task.Progress) (wire.ProgressResponse, error) {
				return wire.ProgressResponse{Paused: paused.Load()}, nil
			}
			w := &agenttest.FakeWorkloads{Running: []task.Workload{{Name: "a"}}, OnStop: func(string) error { return nil }}
			cfg := configFor(f)
			deadline := time.Now().Add(time.Hour)
			if !c.unpause {
				deadline = time.Now().Add(2 * time.Second)
			}
			p := f.Payload(task.WorkloadDrain, 1, task.DrainParams{Deadline: deadline, Force: c.force})
			seed(t, f, cfg, p, nil) // a resumed task learns of the pause before it begins
			start(t, cfg, Deps{Workloads: w})
			asked := func() []string {
				w.Mu.Lock()
				defer w.Mu.Unlock()
				return append(append([]string{}, w.Asked...), w.Killed...)
			}
			if c.unpause {
				eventually(t, "looks at the workloads", func() bool { w.Mu.Lock(); defer w.Mu.Unlock(); return w.Lists > 2 })
				require.Empty(t, asked())
				paused.Store(false)
				eventually(t, "the stop", func() bool { return len(asked()) == 1 })
				return
			}
			r := decode[task.DrainResult](t, f.Result(p.TaskID).Output)
			require.Contains(t, r.Blocked[0].Reason, "was paused")
			require.Empty(t, asked())
		})
	}
}

// TestPausedTaskDoesNotStart until it is unpaused or its time is over.
func TestPausedTaskDoesNotStart(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]bool{"unpaused": false, "to the end of its time": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			var calls atomic.Int32
			f.Progress = func(string, task.Progress) (wire.ProgressResponse, error) {
				return wire.ProgressResponse{Paused: calls.Add(1) < 4 || over}, nil
			}
			c := configFor(f)
			p := f.Payload(task.WorkloadCordon, 1, nil)
			seed(t, f, c, p, func(e *runner.Entry) {
				if over {
					e.TrustedAt = p.ExpiresAt.Add(-time.Second)
				}
			})
			var begun atomic.Int32
			start(t, c, Deps{Executors: script{task.WorkloadCordon: func(context.Context, runner.Task) (any, error) {
				begun.Store(calls.Load())
				return nil, nil
			}}.executors()})
			r := f.Result(p.TaskID)
			if over {
				require.Zero(t, begun.Load())
				require.Contains(t, r.Message, "before it could start")
				return
			}
			require.GreaterOrEqual(t, begun.Load(), int32(4))
			require.Equal(t, task.Succeeded, r.Status)
		})
	}
}

// TestWipeIdentity reports, then wipes and stops; the result is what the server
// has by then.
func TestWipeIdentity(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	f.OnResult = func(n int, _ string, _ task.Result) error {
		if n == 1 {
			return schema.NewError(schema.KindServiceUnavailable, "away")
		}
		require.FileExists(t, c.KeyPath)
		return nil
	}
	a := start(t, c, Deps{})
	p := f.Payload(task.WipeIdentity, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	a.ends(t)
	require.NoError(t, a.err)
	require.Equal(t, task.Succeeded, f.Result(p.TaskID).Status)
	require.NoFileExists(t, c.KeyPath)
	require.NoFileExists(t, c.CertPath)
	require.FileExists(t, filepath.Join(c.StateDir, "removed.json"))
}

// TestUnwantedWipe: a wipe of an ended operation, or of a previous identity, wipes
// nothing.
func TestUnwantedWipe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		incarnation int64
		err         error
	}{"operation over": {1, schema.NewError(schema.KindLeaseLost, "voided")}, "older incarnation": {0, nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			f.OnResult = func(int, string, task.Result) error { return c.err }
			cfg := configFor(f)
			p := f.Payload(task.WipeIdentity, 1, nil)
			seed(t, f, cfg, p, func(e *runner.Entry) {
				old := p
				old.Incarnation, old.ParamsSHA256 = c.incarnation, ""
				e.Payload = f.Body(old)
				e.Finish(task.Result{Status: task.Succeeded})
			})
			a := start(t, cfg, Deps{})
			f.Until("the report", func() bool { return f.Counts["result"] > 0 })
			eventually(t, "its end in the journal", func() bool { return len(a.journal.Held()) == 0 })
			f.Polls()
			require.FileExists(t, cfg.KeyPath)
		})
	}
}

// TestClosedList: the agent has an executor for each type of the table and no other.
func TestClosedList(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	a, _ := newAgent(t, configFor(f), Deps{})
	defer a.Close()
	x := a.executors()
	require.Len(t, x, len(task.Types()))
	for _, row := range task.Types() {
		one, ok := x[row.Type]
		require.True(t, ok, row.Type)
		// What may run again after a crash although it destroys: a drain, which
		// remembers whom it asked, a wipe, which begins after its report, and an upgrade,
		// which restarts the agent itself, a reboot, which begins after its report, and a reset of
		// GPUs that no process uses.
		resumable := slices.Contains([]task.Type{task.WorkloadDrain, task.WipeIdentity, task.AgentUpgrade, task.NodeReboot, task.GPUReset}, row.Type)
		require.Equal(t, resumable, one.Resumable, row.Type)
	}
}

func TestHolderName(t *testing.T) {
	t.Parallel()
	at := time.Unix(1700000000, 0)
	require.Regexp(t, "^0d1c-1-1700000000-[A-Z2-7]{10}$", sessionName("0d1c-1", at))
	require.Regexp(t, "^ab-1700000000-", sessionName("a b\n/é", at))
	first, second := sessionName("a", at), sessionName("a", at)
	require.NotEqual(t, first, second, "two machines that start at once")
	require.LessOrEqual(t, len(sessionName(strings.Repeat("x", 500), at)), 128)
}

// TestSetTornResultAside: a result that reads but is another is not reported.
func TestSetTornResultAside(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	c := configFor(f)
	p := f.Payload(task.WorkloadCordon, 1, nil)
	seed(t, f, c, p, func(e *runner.Entry) {
		e.Finish(task.Result{Status: task.Failed})
		e.Result.Status = task.Succeeded
	})
	a, log := newAgent(t, c, Deps{})
	defer a.Close()
	require.Empty(t, a.journal.Held())
	require.Contains(t, log.String(), "not the one that was recorded")
}

// TestFullDiskAfterRun: a result that did not fit on the disk is journaled as soon as
// the disk has space, even if the server has the result already.
func TestFullDiskAfterRun(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	var full atomic.Bool
	c := configFor(f)
	a, log := newAgent(t, c, Deps{FS: hookDisk{create: func(path string) (disk.File, error) {
		if full.Load() && (strings.Contains(path, "/journal/") || strings.Contains(path, "seq-floor")) {
			return nil, syscall.ENOSPC
		}
		return disk.OS{}.Create(path)
	}}, Executors: script{
		task.WorkloadCordon: func(context.Context, runner.Task) (any, error) { full.Store(true); return "done", nil },
	}.executors()})
	r := launch(t, a, log)
	p := f.Payload(task.WorkloadCordon, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	f.Result(p.TaskID)
	eventually(t, "tries to store", func() bool { return strings.Count(log.String(), "cannot journal the task") > 2 })
	full.Store(false)
	eventually(t, "the stored report", func() bool {
		list, damaged, err := runner.Entries(disk.At(c.StateDir))
		return err == nil && len(damaged) == 0 && len(list) == 1 && list[0].Reported && list[0].Step == "finished"
	})
	r.halt()
}

func pidOf(t *testing.T, file string) int {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	require.NoError(t, err)
	return pid
}
