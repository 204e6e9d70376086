package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
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

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/agent/workload"
	devworkload "github.com/gpuaas/gpuaas/deploy/dev/workload"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
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

// jobState is what the process driver stores of a workload.
type jobState struct {
	Phase           string    `json:"phase"`
	PID             int       `json:"pid"`
	StopRequestedAt time.Time `json:"stop_requested_at,omitzero"`
	Stops           []jobStop `json:"stops,omitempty"`
}

type jobStop struct {
	At     time.Time `json:"at"`
	Signal string    `json:"signal"`
}

func jobFile(c Config, name string) string { return filepath.Join(workloadDir(c), name+".state") }

func readJob(t *testing.T, c Config, name string) jobState {
	t.Helper()
	var s jobState
	ok, err := disk.At("").ReadJSON(jobFile(c, name), &s)
	require.NoError(t, err)
	require.True(t, ok)
	return s
}

// changeJob changes what the process driver stores of a workload.
func changeJob(t *testing.T, c Config, name string, fields map[string]any) {
	t.Helper()
	var s map[string]json.RawMessage // a number keeps its digits
	_, err := disk.At("").ReadJSON(jobFile(c, name), &s)
	require.NoError(t, err)
	for k, v := range fields {
		s[k], err = json.Marshal(v)
		require.NoError(t, err)
	}
	data, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(jobFile(c, name), data, 0o600))
}

// workloadDir is the folder that the driver of development supervises.
func workloadDir(c Config) string { return filepath.Join(filepath.Dir(c.StateDir), "workloads") }

// newProcessDriver makes a driver of a test's workloads next to the agent's.
func newProcessDriver(tb testing.TB, c Config) workload.Driver {
	tb.Helper()
	d, err := devworkload.New(workload.Config{
		State: disk.At(c.StateDir), Cordoned: func() bool { return false }, Changed: func() {}, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(tb, err)
	return d
}

// killLeftovers ends the workloads that a test leaves running.
func killLeftovers(tb testing.TB, c Config) {
	tb.Helper()
	tb.Cleanup(func() {
		d := newProcessDriver(tb, c)
		ctx := context.WithoutCancel(tb.Context())
		list, _ := d.List(ctx)
		for _, w := range list {
			_ = d.Kill(ctx, w.Name)
		}
	})
}

// running reports whether a process runs and is no zombie.
func processRuns(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(fields) > 0 && fields[0] != "Z" && fields[0] != "X"
}

func TestDrainReportsBlockers(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	file := stubbornJob(t, c, "stubborn")
	writeSpec(t, c, "polite", false, "sleep", "1000")
	start(t, c, Deps{})
	eventually(t, "both up", func() bool { return exists(file+".up") && exists(filepath.Join(workloadDir(c), "polite.state")) })

	// Long enough for the polite one to stop on a busy machine.
	p := f.Payload(task.WorkloadDrain, 1, task.DrainParams{Deadline: time.Now().Add(10 * time.Second)})
	f.Offers <- f.OfferOf(p, 1)
	r := decode[task.DrainResult](t, f.Result(p.TaskID).Output)
	require.Equal(t, []string{"polite"}, r.Stopped)
	require.Len(t, r.Blocked, 1)
	require.Equal(t, "stubborn", r.Blocked[0].Workload)
	require.Contains(t, r.Blocked[0].Reason, "still ran at the deadline")
	require.Equal(t, 1, terms(file))

	// A second drain with force kills it without another stop request.
	p = f.Payload(task.WorkloadDrain, 2, task.DrainParams{Deadline: time.Now().Add(100 * time.Millisecond), Force: true})
	f.Offers <- f.OfferOf(p, 1)
	r = decode[task.DrainResult](t, f.Result(p.TaskID).Output)
	require.Equal(t, task.DrainResult{Stopped: []string{"stubborn"}}, r)
	require.Equal(t, 1, terms(file))
	s := readJob(t, c, "stubborn")
	require.Equal(t, "stopped", s.Phase)
	require.Len(t, s.Stops, 2)
	require.Equal(t, []string{"TERM", "KILL"}, []string{s.Stops[0].Signal, s.Stops[1].Signal})
}

func TestDrainEmptyNode(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	start(t, configFor(f), Deps{})
	p := f.Payload(task.WorkloadDrain, 1, task.DrainParams{Deadline: time.Now().Add(-time.Minute)})
	f.Offers <- f.OfferOf(p, 1)
	require.JSONEq(t, `{"stopped":[]}`, string(f.Result(p.TaskID).Output))
}

// agentProcess is a real agent in a process of its own.
type agentProcess struct {
	cmd *exec.Cmd
	log *agenttest.LogBuffer
}

func startProcess(t *testing.T, c Config) *agentProcess {
	t.Helper()
	return startProcessWith(t, c, "PATH="+os.Getenv("PATH"))
}

// startProcessWith starts an agent with further variables.
func startProcessWith(t *testing.T, c Config, vars ...string) *agentProcess {
	t.Helper()
	p := &agentProcess{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "run"), log: &agenttest.LogBuffer{}}
	p.cmd.Env = append(append(environ(c), reexecVar+"=1"), vars...)
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
// signaled once.
func TestDrainSurvivesKill9(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	file := stubbornJob(t, c, "job")
	a := startProcess(t, c)
	eventually(t, "the workload", func() bool { return exists(file + ".up") })
	cordon := f.Payload(task.WorkloadCordon, 1, nil)
	f.Offers <- f.OfferOf(cordon, 1)
	f.Result(cordon.TaskID)
	p := f.Payload(task.WorkloadDrain, 2, task.DrainParams{Deadline: time.Now().Add(time.Minute)})
	f.Offers <- f.OfferOf(p, 1)
	eventually(t, "the signal", func() bool { return terms(file) == 1 })
	pid := readJob(t, c, "job").PID

	for range 2 {
		a.kill()
		f.Deserted()
		require.NoError(t, syscall.Kill(pid, 0), "the workload must outlive the agent")
		n := f.Count("progress")
		a = startProcess(t, c)
		f.Until("the question whether the task is still wanted", func() bool { return f.Counts["progress"] > n })
	}
	require.NoError(t, os.WriteFile(file+".release", nil, 0o600))
	r := f.Result(p.TaskID)
	require.Equal(t, task.DrainResult{Stopped: []string{"job"}}, decode[task.DrainResult](t, r.Output))
	require.Equal(t, 1, terms(file))
	s := readJob(t, c, "job")
	require.Len(t, s.Stops, 1)
	require.Equal(t, "stopped", s.Phase)
	require.Equal(t, pid, s.PID)
}

// TestDrainResumesAtEachStep builds what a crash leaves between each two steps
// of a drain and starts an agent over it: the workload is asked at most once,
// and the result names it.
func TestDrainResumesAtEachStep(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	asked := map[string]any{"stop_requested_at": now, "stops": []jobStop{{At: now, Signal: "TERM"}}}
	for name, c := range map[string]struct {
		memo    string         // of the drain
		state   map[string]any // of the workload
		signal  bool           // it was sent before the crash
		ended   bool           // the workload ended while no agent ran
		terms   int
		blocked bool
	}{
		"accepted":                       {terms: 1},
		"targets known":                  {memo: `["job"]`, terms: 1},
		"intent stored, signal not sent": {memo: `["job"]`, state: asked, terms: 0, blocked: true},
		"signal sent":                    {memo: `["job"]`, state: asked, signal: true, terms: 1, blocked: true},
		"signal sent, ended while the agent was down": {memo: `["job"]`, state: asked, signal: true, ended: true, terms: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			cfg := configFor(f)
			file := stubbornJob(t, cfg, "job")
			s := strayStart(t, cfg, "job")
			eventually(t, "the workload", func() bool { return exists(file + ".up") })
			if c.state != nil {
				changeJob(t, cfg, "job", c.state)
			}
			if c.signal {
				require.NoError(t, syscall.Kill(-s.PID, syscall.SIGTERM))
				eventually(t, "the signal", func() bool { return terms(file) == 1 })
			}
			release := func() { require.NoError(t, os.WriteFile(file+".release", nil, 0o600)) }
			if c.ended {
				release()
				eventually(t, "its end", func() bool { return !processRuns(s.PID) })
			}
			deadline := time.Now().Add(time.Minute)
			if c.blocked {
				deadline = time.Now().Add(200 * time.Millisecond)
			}
			p := f.Payload(task.WorkloadDrain, 1, task.DrainParams{Deadline: deadline})
			seed(t, f, cfg, p, func(e *runner.Entry) { e.Memo = []byte(c.memo) })
			start(t, cfg, Deps{})
			if !c.blocked {
				eventually(t, "the signals", func() bool { return terms(file) == c.terms })
				release()
			}
			r := decode[task.DrainResult](t, f.Result(p.TaskID).Output)
			require.Equal(t, c.terms, terms(file))
			if c.blocked {
				require.Equal(t, "job", r.Blocked[0].Workload)
			} else {
				require.Equal(t, task.DrainResult{Stopped: []string{"job"}}, r)
			}
			require.Len(t, readJob(t, cfg, "job").Stops, 1)
		})
	}
}

// strayStart starts a spec's process as a previous agent would have.
func strayStart(t *testing.T, c Config, name string) jobState {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	d := newProcessDriver(t, c)
	wg.Go(func() { d.Run(ctx) })
	eventually(t, "the process", func() bool { return exists(jobFile(c, name)) })
	cancel()
	wg.Wait()
	return readJob(t, c, name)
}
