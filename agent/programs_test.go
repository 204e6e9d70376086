package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestTailKeepsTheEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"short":                {"a\nb", "a\nb"},
		"nul and broken bytes": {"a\x00b\xffc", "a?b?c"},
		"cut in a character":   {strings.Repeat("é", task.MaxOutputTail/2) + "x", strings.Repeat("é", task.MaxOutputTail/2-1) + "x"},
	} {
		for _, size := range []int{1, 1000, len(c.in)} {
			w := &tail{}
			for in := c.in; in != ""; in = in[min(size, len(in)):] {
				_, err := w.Write([]byte(in[:min(size, len(in))]))
				require.NoError(t, err)
			}
			require.Equal(t, c.want, w.text(), "%s by %d", name, size)
		}
	}
	w := &tail{}
	fmt.Fprint(w, strings.Repeat("\xe2\x82", task.MaxOutputTail))
	require.True(t, utf8.ValidString(w.text()))
	require.LessOrEqual(t, len(w.text()), task.MaxOutputTail)
}

// shell is an executor that runs a script as the agent runs programs.
func shell(script string) Executor {
	return Executor{Check: noParams, Folder: true, Run: func(ctx context.Context, t Task) (any, error) {
		out, _, err := programsOf(t).run(ctx, 1<<10, "sh", "-c", script)
		return out, err
	}}
}

// TestProgramOfATask runs in a folder of its own that is gone afterwards, and
// what it printed goes with the result, whether it succeeds or not.
func TestProgramOfATask(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	require.NoError(t, os.MkdirAll(filepath.Join(c.StateDir, workFolder, "left", "over"), privateDir))
	a := start(t, c, Deps{Executors: map[task.Type]Executor{
		task.WorkloadCordon:   shell(`echo out; echo err >&2; pwd; ls -A; stat -c %a .; echo x > file`),
		task.WorkloadUncordon: shell(`head -c 100000 /dev/zero | tr '\0' x; echo end >&2; exit 3`),
	}})
	require.NoDirExists(t, filepath.Join(c.StateDir, workFolder), "left by a former process")
	for i := range 2 {
		p := f.payload(task.WorkloadCordon, int64(i+1), nil)
		f.offers <- f.offerOf(p, 1)
		r := f.result(p.TaskID)
		require.Equal(t, task.Succeeded, r.Status, r.Message)
		dir := filepath.Join(c.StateDir, workFolder, p.TaskID)
		require.Contains(t, r.OutputTail, "err\n")
		require.Equal(t, "out\n"+dir+"\n700\n", decode[string](t, r.Output))
		require.NoDirExists(t, dir)
	}
	p := f.payload(task.WorkloadUncordon, 3, nil)
	f.offers <- f.offerOf(p, 1)
	r := f.result(p.TaskID)
	require.Equal(t, task.Failed, r.Status)
	require.Len(t, r.OutputTail, task.MaxOutputTail)
	require.NotContains(t, a.log.String(), strings.Repeat("x", 1000))
}

// TestCancelKillsTheProcessGroup: what a program started ends with it.
func TestCancelKillsTheProcessGroup(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	file := filepath.Join(t.TempDir(), "pid")
	var stop atomic.Bool
	f.progress = func(string, task.Progress) (wire.ProgressResponse, error) {
		return wire.ProgressResponse{Cancel: stop.Load()}, nil
	}
	start(t, f.config(), Deps{Executors: map[task.Type]Executor{
		task.WorkloadCordon: shell(`sleep 1000 & echo $! > ` + file + `.tmp; mv ` + file + `.tmp ` + file + `; echo begun; wait`),
	}})
	p := f.payload(task.WorkloadCordon, 1, nil)
	f.offers <- f.offerOf(p, 1)
	eventually(t, "the child", func() bool { return exists(file) })
	pid := pidOf(t, file)
	stop.Store(true)
	r := f.result(p.TaskID)
	require.Equal(t, task.Canceled, r.Status)
	require.Equal(t, "begun\n", r.OutputTail)
	eventually(t, "the child's end", func() bool { return newProcessTable().startTime(pid) == "" })
}

// TestPausedDrain asks nobody while it is paused, goes on when it is not any
// more, and ends at its deadline either way.
func TestPausedDrain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		force   bool
		unpause bool
	}{"goes on": {unpause: true}, "to its deadline": {}, "to its deadline, by force": {force: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			var paused atomic.Bool
			paused.Store(true)
			f.progress = func(string, task.Progress) (wire.ProgressResponse, error) {
				return wire.ProgressResponse{Paused: paused.Load()}, nil
			}
			w := &fakeWorkloads{running: []task.Workload{{Name: "a"}}, stop: func(string) error { return nil }}
			cfg := f.config()
			deadline := time.Now().Add(time.Hour)
			if !c.unpause {
				deadline = time.Now().Add(2 * time.Second)
			}
			p := f.payload(task.WorkloadDrain, 1, task.DrainParams{Deadline: deadline, Force: c.force})
			seed(t, f, cfg, p, nil) // a resumed task hears of the pause before it begins
			start(t, cfg, Deps{Workloads: w})
			asked := func() []string {
				w.mu.Lock()
				defer w.mu.Unlock()
				return append(append([]string{}, w.asked...), w.killed...)
			}
			eventually(t, "looks at the workloads", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.lists > 2 })
			require.Empty(t, asked())
			if c.unpause {
				paused.Store(false)
				eventually(t, "the stop", func() bool { return len(asked()) == 1 })
				return
			}
			r := decode[task.DrainResult](t, f.result(p.TaskID).Output)
			require.Contains(t, r.Blocked[0].Reason, "was paused")
			require.Empty(t, asked())
		})
	}
}

// TestPausedTaskIsNotBegun until it is unpaused or its time is over.
func TestPausedTaskIsNotBegun(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]bool{"unpaused": false, "to the end of its time": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			var calls atomic.Int32
			f.progress = func(string, task.Progress) (wire.ProgressResponse, error) {
				return wire.ProgressResponse{Paused: calls.Add(1) < 4 || over}, nil
			}
			c := f.config()
			p := f.payload(task.WorkloadCordon, 1, nil)
			seed(t, f, c, p, func(e *entry) {
				if over {
					e.TrustedAt = p.ExpiresAt.Add(-time.Second)
				}
			})
			var begun atomic.Int32
			start(t, c, Deps{Executors: script{task.WorkloadCordon: func(context.Context, Task) (any, error) {
				begun.Store(calls.Load())
				return nil, nil
			}}.executors()})
			r := f.result(p.TaskID)
			if over {
				require.Zero(t, begun.Load())
				require.Contains(t, r.Message, "was paused until")
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
	f := newFakeAPI(t)
	c := f.config()
	f.onResult = func(n int, _ string, _ task.Result) error {
		if n == 1 {
			return schema.NewError(schema.KindServiceUnavailable, "away")
		}
		require.FileExists(t, c.KeyPath)
		return nil
	}
	a := start(t, c, Deps{})
	p := f.payload(task.WipeIdentity, 1, nil)
	f.offers <- f.offerOf(p, 1)
	a.ends(t)
	require.NoError(t, a.err)
	require.Equal(t, task.Succeeded, f.result(p.TaskID).Status)
	require.NoFileExists(t, c.KeyPath)
	require.NoFileExists(t, c.CertPath)
	require.True(t, stateDir{path: c.StateDir}.gone(c))
}

// TestUnwantedWipe: a wipe whose operation is over, or of an identity before the
// present one, wipes nothing.
func TestUnwantedWipe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		incarnation int64
		err         error
	}{"operation over": {1, schema.NewError(schema.KindLeaseLost, "voided")}, "older incarnation": {0, nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			f.onResult = func(int, string, task.Result) error { return c.err }
			cfg := f.config()
			p := f.payload(task.WipeIdentity, 1, nil)
			seed(t, f, cfg, p, func(e *entry) {
				old := p
				old.Incarnation, old.ParamsSHA256 = c.incarnation, ""
				e.Payload = f.body(old)
				_ = e.finish(task.Result{Status: task.Succeeded})
			})
			a := start(t, cfg, Deps{})
			f.until("the report", func() bool { return f.counts["result"] > 0 })
			eventually(t, "its end in the journal", func() bool { return len(a.tasks.journal.have()) == 0 })
			f.polls()
			require.FileExists(t, cfg.KeyPath)
		})
	}
}

// TestClosedList: the agent can do each type of the table and nothing else.
func TestClosedList(t *testing.T) {
	t.Parallel()
	f := newQuietAPI(t)
	a, _ := newAgent(t, f.config(), Deps{})
	defer a.Close()
	x := a.executors()
	require.Len(t, x, len(task.Types()))
	for _, row := range task.Types() {
		one, ok := x[row.Type]
		require.True(t, ok, row.Type)
		// What may run again after a crash although it destroys: a drain, which
		// remembers whom it asked, and a wipe, which begins after its report.
		resumable := row.Type == task.WorkloadDrain || row.Type == task.WipeIdentity
		require.Equal(t, resumable, one.Resumable, row.Type)
	}
}

func TestHolderName(t *testing.T) {
	t.Parallel()
	at := time.Unix(1700000000, 0)
	require.Equal(t, "0d1c-1-1700000000", holderName("0d1c-1", at))
	require.Equal(t, "ab-1700000000", holderName("a b\n/é", at))
	require.LessOrEqual(t, len(holderName(strings.Repeat("x", 500), at)), 128)
}

// TestTornResultIsPutAside: a result that reads but is another is not reported.
func TestTornResultIsPutAside(t *testing.T) {
	t.Parallel()
	f := newQuietAPI(t)
	c := f.config()
	p := f.payload(task.WorkloadCordon, 1, nil)
	seed(t, f, c, p, func(e *entry) {
		_ = e.finish(task.Result{Status: task.Failed})
		e.Result.Status = task.Succeeded
	})
	a, log := newAgent(t, c, Deps{})
	defer a.Close()
	require.Empty(t, a.tasks.journal.have())
	require.Contains(t, log.String(), "not the one that was recorded")
}

// TestFullDiskAtTheEnd: a result that found no room is in the journal as soon as
// there is some, also after the server has it.
func TestFullDiskAtTheEnd(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	var full atomic.Bool
	c := f.config()
	a, log := newAgent(t, c, Deps{Executors: script{
		task.WorkloadCordon: func(context.Context, Task) (any, error) { full.Store(true); return "done", nil },
	}.executors()})
	a.tasks.journal.state.disk.create = func(path string, mode os.FileMode) (outFile, error) {
		if full.Load() {
			return nil, syscall.ENOSPC
		}
		return disk{}.open(path, mode)
	}
	r := launch(t, a, log)
	p := f.payload(task.WorkloadCordon, 1, nil)
	f.offers <- f.offerOf(p, 1)
	f.result(p.TaskID)
	eventually(t, "tries to store", func() bool { return strings.Count(log.String(), "still not journalled") > 2 })
	full.Store(false)
	eventually(t, "the stored report", func() bool {
		var e entry
		ok, err := readJSON(a.tasks.journal.path(p.TaskID), &e)
		return ok && err == nil && e.Reported && e.whole() == nil && e.Step == stepFinished
	})
	r.halt()
}
