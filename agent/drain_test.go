package agent

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
)

// stubborn is a workload that notes each SIGTERM in FILE.terms and ends only
// when FILE.release exists.
const stubborn = `trap 'echo TERM >> "$1.terms"' TERM; touch "$1.up"; while [ ! -e "$1.release" ]; do sleep 0.02; done`

// stubbornJob writes the spec of a stubborn workload and returns its FILE.
func stubbornJob(t *testing.T, c Config, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	writeSpec(t, c, name, false, "sh", "-c", stubborn, "sh", file)
	return file
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func terms(file string) int {
	data, _ := os.ReadFile(file + ".terms")
	return strings.Count(string(data), "TERM")
}

func sidecar(t *testing.T, c Config, name string) process {
	t.Helper()
	var s process
	ok, err := readJSON(filepath.Join(c.WorkloadDir, name+".state"), &s)
	require.NoError(t, err)
	require.True(t, ok)
	return s
}

// killLeftovers ends what a test's workloads left running.
func killLeftovers(tb testing.TB, c Config) {
	tb.Helper()
	tb.Cleanup(func() {
		files, _ := filepath.Glob(filepath.Join(c.WorkloadDir, "*.state"))
		for _, f := range files {
			var s process
			if ok, err := readJSON(f, &s); ok && err == nil && s.Phase == phaseRunning && newProcessTable().startTime(s.PID) == s.StartTime {
				_ = signalGroup(s.PID, syscall.SIGKILL)
			}
		}
	})
}

func TestDrainReportsWhatBlocked(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	file := stubbornJob(t, c, "stubborn")
	writeSpec(t, c, "polite", false, "sleep", "1000")
	start(t, c, Deps{})
	eventually(t, "both up", func() bool { return exists(file+".up") && exists(filepath.Join(c.WorkloadDir, "polite.state")) })

	p := f.payload(task.WorkloadDrain, 1, task.DrainParams{Deadline: time.Now().Add(300 * time.Millisecond)})
	f.offers <- f.offerOf(p, 1)
	r := decode[task.DrainResult](t, f.result(p.TaskID).Output)
	require.Equal(t, []string{"polite"}, r.Stopped)
	require.Len(t, r.Blocked, 1)
	require.Equal(t, "stubborn", r.Blocked[0].Workload)
	require.Contains(t, r.Blocked[0].Reason, "still ran at the deadline")
	require.Equal(t, 1, terms(file))

	// A second drain with force kills it; it is not asked again.
	p = f.payload(task.WorkloadDrain, 2, task.DrainParams{Deadline: time.Now().Add(100 * time.Millisecond), Force: true})
	f.offers <- f.offerOf(p, 1)
	r = decode[task.DrainResult](t, f.result(p.TaskID).Output)
	require.Equal(t, task.DrainResult{Stopped: []string{"stubborn"}}, r)
	require.Equal(t, 1, terms(file))
	s := sidecar(t, c, "stubborn")
	require.Equal(t, phaseStopped, s.Phase)
	require.Len(t, s.Stops, 2)
	require.Equal(t, []string{"TERM", "KILL"}, []string{s.Stops[0].Signal, s.Stops[1].Signal})
}

func TestDrainOfAnEmptyNode(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	start(t, f.config(), Deps{})
	p := f.payload(task.WorkloadDrain, 1, task.DrainParams{Deadline: time.Now().Add(-time.Minute)})
	f.offers <- f.offerOf(p, 1)
	require.JSONEq(t, `{"stopped":[]}`, string(f.result(p.TaskID).Output))
}

// agentProcess is a real agent in a process of its own.
type agentProcess struct {
	cmd *exec.Cmd
	log *logBuffer
}

func startProcess(t *testing.T, c Config) *agentProcess {
	t.Helper()
	p := &agentProcess{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "run"), log: &logBuffer{}}
	p.cmd.Env = append(environ(c), reexecVar+"=1", "PATH="+os.Getenv("PATH"))
	p.cmd.Stderr = p.log
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	return p
}

func (p *agentProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// TestDrainSurvivesKill9 kills a real agent twice while a drain waits for a
// workload: the drain ends as if nothing had happened, and the workload was
// signalled once.
func TestDrainSurvivesKill9(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	file := stubbornJob(t, c, "job")
	a := startProcess(t, c)
	eventually(t, "the workload", func() bool { return exists(file + ".up") })
	cordon := f.payload(task.WorkloadCordon, 1, nil)
	f.offers <- f.offerOf(cordon, 1)
	f.result(cordon.TaskID)
	p := f.payload(task.WorkloadDrain, 2, task.DrainParams{Deadline: time.Now().Add(time.Minute)})
	f.offers <- f.offerOf(p, 1)
	eventually(t, "the signal", func() bool { return terms(file) == 1 })
	pid := sidecar(t, c, "job").PID

	for range 2 {
		a.kill()
		f.deserted()
		require.NoError(t, signalOne(pid, 0), "the workload must outlive the agent")
		n := f.count("progress")
		a = startProcess(t, c)
		f.until("the question whether the task is still wanted", func() bool { return f.counts["progress"] > n })
	}
	require.NoError(t, os.WriteFile(file+".release", nil, privateFile))
	r := f.result(p.TaskID)
	require.Equal(t, task.DrainResult{Stopped: []string{"job"}}, decode[task.DrainResult](t, r.Output))
	require.Equal(t, 1, terms(file))
	s := sidecar(t, c, "job")
	require.Len(t, s.Stops, 1)
	require.Equal(t, phaseStopped, s.Phase)
	require.Equal(t, pid, s.PID)
}

// TestDrainResumedAtEachStep builds what a crash leaves between each two steps
// of a drain and starts an agent over it: the workload is asked at most once,
// and the result names it.
func TestDrainResumedAtEachStep(t *testing.T) {
	t.Parallel()
	asked := func(s *process) {
		s.StopRequestedAt = time.Now().UTC()
		s.Stops = []processStop{{At: s.StopRequestedAt, Signal: "TERM"}}
	}
	for name, c := range map[string]struct {
		memo    string         // of the drain
		state   func(*process) // of the workload
		signal  bool           // it was sent before the crash
		ended   bool           // the workload ended while no agent ran
		terms   int
		blocked bool
	}{
		"accepted":                               {terms: 1},
		"targets known":                          {memo: `["job"]`, terms: 1},
		"intent stored, signal not sent":         {memo: `["job"]`, state: asked, terms: 0, blocked: true},
		"signal sent":                            {memo: `["job"]`, state: asked, signal: true, terms: 1, blocked: true},
		"signal sent, ended while nobody looked": {memo: `["job"]`, state: asked, signal: true, ended: true, terms: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			cfg := f.config()
			file := stubbornJob(t, cfg, "job")
			s := strayStart(t, cfg, "job")
			eventually(t, "the workload", func() bool { return exists(file + ".up") })
			if c.state != nil {
				c.state(&s)
				require.NoError(t, stateDir{}.writeJSON(filepath.Join(cfg.WorkloadDir, "job.state"), s))
			}
			if c.signal {
				require.NoError(t, signalGroup(s.PID, syscall.SIGTERM))
				eventually(t, "the signal", func() bool { return terms(file) == 1 })
			}
			release := func() { require.NoError(t, os.WriteFile(file+".release", nil, privateFile)) }
			if c.ended {
				release()
				eventually(t, "its end", func() bool { return newProcessTable().startTime(s.PID) == "" })
			}
			deadline := time.Now().Add(time.Minute)
			if c.blocked {
				deadline = time.Now().Add(200 * time.Millisecond)
			}
			p := f.payload(task.WorkloadDrain, 1, task.DrainParams{Deadline: deadline})
			seed(t, f, cfg, p, func(e *entry) { e.Memo = []byte(c.memo) })
			start(t, cfg, Deps{})
			if !c.blocked {
				eventually(t, "the signals", func() bool { return terms(file) == c.terms })
				release()
			}
			r := decode[task.DrainResult](t, f.result(p.TaskID).Output)
			require.Equal(t, c.terms, terms(file))
			if c.blocked {
				require.Equal(t, "job", r.Blocked[0].Workload)
			} else {
				require.Equal(t, task.DrainResult{Stopped: []string{"job"}}, r)
			}
			require.Len(t, sidecar(t, cfg, "job").Stops, 1)
		})
	}
}

// strayStart starts a spec's process as a former agent would have, and leaves
// it to nobody.
func strayStart(t *testing.T, c Config, name string) process {
	t.Helper()
	d, err := newProcessDriver(c.WorkloadDir, disk{}, func() bool { return false }, func() {}, newLog())
	require.NoError(t, err)
	d.reconcile()
	return sidecar(t, c, name)
}

// fakeWorkloads is a driver under a test's control.
type fakeWorkloads struct {
	mu      sync.Mutex
	running []task.Workload
	lists   int
	list    func(n int) error
	stop    func(name string) error
	asked   []string
	killed  []string
}

func (w *fakeWorkloads) List(context.Context) ([]task.Workload, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists++
	if w.list != nil {
		if err := w.list(w.lists); err != nil {
			return nil, err
		}
	}
	return append([]task.Workload{}, w.running...), nil
}

func (w *fakeWorkloads) Stop(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.stop(name); err != nil {
		return err
	}
	w.asked = append(w.asked, name)
	for i := range w.running {
		w.running[i].Stopping = w.running[i].Stopping || w.running[i].Name == name
	}
	return nil
}

func (w *fakeWorkloads) Kill(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.killed = append(w.killed, name)
	return errors.New("no permission")
}

func (w *fakeWorkloads) Run(ctx context.Context) { <-ctx.Done() }

func drainTask(memo *bytes.Buffer, p task.DrainParams) Task {
	return Task{
		Payload:  task.Payload{Params: p.Encode()},
		Note:     func(string) {},
		Remember: func(v any) error { memo.Reset(); return encodeTo(memo, v) },
		Recall:   func(any) (bool, error) { return false, nil },
		Paused:   func() bool { return false },
	}
}

func TestDrainGoesOnWhenTheDriverFails(t *testing.T) {
	t.Parallel()
	w := &fakeWorkloads{
		running: []task.Workload{{Name: "a", Kind: "docker"}, {Name: "b", Kind: "docker"}},
		list: func(n int) error {
			if n == 1 || n == 3 {
				return errors.New("daemon busy")
			}
			return nil
		},
		stop: func(name string) error {
			if name == "b" {
				return errors.New("device busy")
			}
			return nil
		},
	}
	var memo bytes.Buffer
	out, err := drain{w, time.Now}.run(t.Context(), drainTask(&memo, task.DrainParams{Deadline: time.Now().Add(time.Second)}))
	require.NoError(t, err)
	r, ok := out.(task.DrainResult)
	require.True(t, ok)
	require.Equal(t, []string{"a"}, w.asked)
	require.Len(t, r.Blocked, 2)
	require.Contains(t, r.Blocked[0].Reason, "was asked to stop")
	require.Contains(t, r.Blocked[1].Reason, "device busy")
	require.JSONEq(t, `["a","b"]`, memo.String())
}

// TestDrainAsksNobodyBeforeItRemembers: when its memory is not durable, no
// workload hears of the drain.
func TestDrainAsksNobodyBeforeItRemembers(t *testing.T) {
	t.Parallel()
	w := &fakeWorkloads{running: []task.Workload{{Name: "a"}}, stop: func(string) error { return nil }}
	task := drainTask(&bytes.Buffer{}, task.DrainParams{Deadline: time.Now().Add(200 * time.Millisecond)})
	tries := 0
	task.Remember = func(any) error { tries++; return syscall.ENOSPC }
	_, err := drain{w, time.Now}.run(t.Context(), task)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Greater(t, tries, 1)
	require.Empty(t, w.asked)
}

func TestDrainLimit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := task.Payload{Params: task.DrainParams{Deadline: now.Add(time.Hour)}.Encode()}
	require.Equal(t, time.Hour+drainGrace, drainLimit(p, now).Round(time.Second))
	p.Params = task.DrainParams{Deadline: now.Add(-time.Hour)}.Encode()
	require.Equal(t, drainGrace, drainLimit(p, now))
}

func pidOf(t *testing.T, file string) int {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	require.NoError(t, err)
	return pid
}
