package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/deploy/dev/internal/proc"
	"github.com/gpuaas/gpuaas/deploy/dev/internal/statefile"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Name is the driver's name in GPUAAS_WORKLOAD_DRIVER and the kind of its
// workloads.
const Name = "process"

// Driver supervises processes. In its folder, NAME.json is the spec of a workload,
// NAME.state the stored state of its process, and NAME.log its output. Each process
// has its own session and outlives the agent. The next agent adopts it by pid and
// start time, so that it never signals a reused pid.
//
// The driver restarts a process that exited if its spec sets restart, or if the spec
// file was modified. It restarts a process that it stopped only if the spec file was
// modified. It starts no process while the node is cordoned. Removing a spec does
// not stop its process.
type Driver struct {
	conf workload.Config
	dir  string
	wake chan struct{}

	mu    sync.Mutex
	procs map[string]*process
	bad   map[string]badSpec
}

// processSpec is the content of NAME.json.
type processSpec struct {
	Command []string `json:"command"`
	Restart bool     `json:"restart"`
}

// Phases of a process.
const (
	phaseRunning = "running"
	phaseEnded   = "ended"
	phaseStopped = "stopped" // exited after a signal of the driver
)

// process is the content of NAME.state.
type process struct {
	Name      string    `json:"name"`
	Phase     string    `json:"phase"`
	PID       int       `json:"pid"`
	StartTime string    `json:"start_time"` // from the kernel; distinguishes processes with the same pid
	StartID   string    `json:"start_id"`   // new at every start
	BootID    string    `json:"boot_id"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	Starts    int       `json:"starts"`
	// SpecTime is the modification time, in ns, of the spec that was last applied.
	SpecTime int64 `json:"processSpectime"`
	// StopRequestedAt is durable before the signal is sent.
	StopRequestedAt time.Time `json:"stop_requested_at,omitzero"`
	// Stops lists the signals of this start, each durable before it is sent.
	Stops []processStop `json:"stops,omitempty"`
}

type processStop struct {
	At     time.Time `json:"at"`
	Signal string    `json:"signal"`
}

// Drivers are the drivers of the development agent, by name.
func Drivers() map[string]workload.Maker {
	return map[string]workload.Maker{Name: func(c workload.Config) (workload.Driver, error) { return New(c) }}
}

// New returns the driver for the folder "workloads" next to the agent's state
// folder. It adopts the processes of an earlier driver.
func New(c workload.Config) (*Driver, error) {
	dir := filepath.Join(filepath.Dir(c.State.Path), "workloads")
	if !c.ReadOnly {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("creating the workload folder: %w", err)
		}
	}
	p := &Driver{conf: c, dir: dir, wake: make(chan struct{}, 1), procs: map[string]*process{}, bad: map[string]badSpec{}}
	err := p.adopt()
	return p, err
}

func (p *Driver) file(name, ext string) string { return filepath.Join(p.dir, name+ext) }

// adopt reads the processes that an earlier agent started.
func (p *Driver) adopt() error {
	files, err := filepath.Glob(p.file("*", ".state"))
	if err != nil {
		return err
	}
	for _, f := range files {
		var s process
		_, err := statefile.ReadJSON(f, &s)
		if err == nil && s.Name != strings.TrimSuffix(filepath.Base(f), ".state") {
			err = fmt.Errorf("%s names workload %q", f, s.Name)
		}
		if err != nil {
			return fmt.Errorf("workload state: %w", err)
		}
		p.procs[s.Name] = &s
	}
	return nil
}

// List returns the running workloads, sorted by name.
func (p *Driver) List(context.Context) ([]task.Workload, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refresh()
	list := []task.Workload{}
	for _, s := range p.procs {
		if s.Phase == phaseRunning {
			list = append(list, task.Workload{
				Name: s.Name, Kind: Name, Since: s.StartedAt, Stopping: !s.StopRequestedAt.IsZero(),
			})
		}
	}
	slices.SortFunc(list, func(a, b task.Workload) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// refresh records the processes that have exited and reports whether there are any.
func (p *Driver) refresh() bool {
	ended := false
	for _, s := range p.procs {
		if s.Phase != phaseRunning || p.alive(s) {
			continue
		}
		ended = true
		s.Phase, s.EndedAt = phaseEnded, time.Now().UTC()
		if !s.StopRequestedAt.IsZero() {
			s.Phase = phaseStopped
		}
		p.conf.Log.Info("workload ended", "workload", s.Name, "pid", s.PID, "phase", s.Phase)
		if err := p.save(s); err != nil {
			p.conf.Log.Error("workload state not stored", "workload", s.Name, "err", err.Error())
		}
	}
	return ended
}

// alive reports whether the process that was started still runs, or another
// process of its session does.
func (p *Driver) alive(s *process) bool {
	if s.BootID != proc.BootID() || s.PID <= 1 || s.StartTime == "" {
		return false
	}
	return proc.StartTime(s.PID) == s.StartTime || len(proc.Session(s.PID, s.mark())) > 0
}

// mark is in the environment of every process of one start. It distinguishes a reused
// session id from this one.
func (s *process) mark() string { return "GPUAAS_WORKLOAD_START=" + s.StartID }

func (p *Driver) save(s *process) error {
	if p.conf.ReadOnly {
		return nil
	}
	return statefile.WriteJSON(p.file(s.Name, ".state"), s)
}

// Stop sends SIGTERM to the process group, once per start. It succeeds if the
// process does not run.
func (p *Driver) Stop(_ context.Context, name string) error {
	return p.signal(name, syscall.SIGTERM, "TERM", func(s *process) bool { return s.StopRequestedAt.IsZero() })
}

// Kill sends SIGKILL to the process group.
func (p *Driver) Kill(_ context.Context, name string) error {
	return p.signal(name, syscall.SIGKILL, "KILL", func(*process) bool { return true })
}

// signal stores the signal durably and then sends it. After a crash between the two,
// Stop never signals that process: a stop is sent at most once, and a drain reports
// the process as a blocker.
func (p *Driver) signal(name string, sig syscall.Signal, label string, wanted func(*process) bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.procs[name]
	if !ok || s.Phase != phaseRunning || !wanted(s) || !p.alive(s) {
		return nil
	}
	now := time.Now().UTC()
	if s.StopRequestedAt.IsZero() {
		s.StopRequestedAt = now
	}
	s.Stops = append(s.Stops, processStop{now, label})
	if t, err := specTime(p.file(name, ".json")); err == nil {
		s.SpecTime = t
	}
	if err := p.save(s); err != nil {
		s.Stops = s.Stops[:len(s.Stops)-1]
		if len(s.Stops) == 0 {
			s.StopRequestedAt = time.Time{}
		}
		return err
	}
	p.conf.Log.Info("workload signaled", "workload", name, "pid", s.PID, "signal", label)
	err := signalGroup(s.PID, sig)
	if sig == syscall.SIGKILL {
		for _, pid := range proc.Session(s.PID, s.mark()) {
			err = errors.Join(err, signalOne(pid, sig))
		}
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
