package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
)

// Name is the driver's name in GPUAAS_WORKLOAD_DRIVER and the kind of its
// workloads.
const Name = "process"

// Config is what a driver depends on.
type Config struct {
	// Dir is the supervised folder.
	Dir string
	// Cordoned reports whether nothing new must start.
	Cordoned func() bool
	// Changed is called when the list changed.
	Changed func()
	// ReadOnly makes a driver that lists and writes nothing.
	ReadOnly bool
	Log      *slog.Logger
}

// Driver supervises processes: NAME.json in its folder is a spec that it starts
// as a process in a session of its own, NAME.state is the stored state of that
// process, NAME.log its output. Processes outlive the agent; the next agent adopts
// them by pid and start time, so that it never signals a reused pid.
//
// A process that ended is started again when its spec sets restart, or when the
// spec is touched. One that was stopped is only started again when its spec is
// touched. Nothing is started while the node is cordoned. A running process keeps
// running when its spec is removed.
type Driver struct {
	conf  Config
	files files
	host  processTable
	wake  chan struct{}

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
	phaseStopped = "stopped" // ended after it was asked to
)

// process is the content of NAME.state.
type process struct {
	Name      string    `json:"name"`
	Phase     string    `json:"phase"`
	PID       int       `json:"pid"`
	StartTime string    `json:"start_time"` // the kernel's, as an identity of the pid
	StartID   string    `json:"start_id"`   // new at every start
	BootID    string    `json:"boot_id"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	Starts    int       `json:"starts"`
	// SpecTime is the spec's modification time in ns when it was last acted on.
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

// New makes a driver and adopts the processes of a former one.
func New(c Config) (*Driver, error) {
	if !c.ReadOnly {
		if err := os.MkdirAll(c.Dir, privateDir); err != nil {
			return nil, fmt.Errorf("creating GPUAAS_WORKLOAD_DIR: %w", err)
		}
	}
	p := &Driver{conf: c, host: newProcessTable(), wake: make(chan struct{}, 1), procs: map[string]*process{}, bad: map[string]badSpec{}}
	err := p.adopt()
	return p, err
}

func (p *Driver) file(name, ext string) string { return filepath.Join(p.conf.Dir, name+ext) }

// adopt reads what a former agent left.
func (p *Driver) adopt() error {
	files, err := filepath.Glob(p.file("*", ".state"))
	if err != nil {
		return err
	}
	for _, f := range files {
		var s process
		_, err := readJSON(f, &s)
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

// List returns what runs now, sorted by name.
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

// refresh notes which processes ended, and reports whether any did.
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

// alive reports whether the very process that was started still runs, or one of
// its session that outlived it.
func (p *Driver) alive(s *process) bool {
	if s.BootID != p.host.bootID() || s.PID <= 1 || s.StartTime == "" {
		return false
	}
	return p.host.startTime(s.PID) == s.StartTime || len(p.host.session(s.PID, s.mark())) > 0
}

// mark is in the environment of every process of one start. It distinguishes a reused
// session id from this one.
func (s *process) mark() string { return "GPUAAS_WORKLOAD_START=" + s.StartID }

func (p *Driver) save(s *process) error {
	if p.conf.ReadOnly {
		return nil
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return p.files.write(p.file(s.Name, ".state"), append(data, '\n'))
}

// Stop sends SIGTERM to the process group, once per start. Stopping a process that
// does not run is no error.
func (p *Driver) Stop(_ context.Context, name string) error {
	return p.signal(name, syscall.SIGTERM, "TERM", func(s *process) bool { return s.StopRequestedAt.IsZero() })
}

// Kill sends SIGKILL to the process group.
func (p *Driver) Kill(_ context.Context, name string) error {
	return p.signal(name, syscall.SIGKILL, "KILL", func(*process) bool { return true })
}

// signal records the wish durably and then sends the signal. A crash between
// the two leaves a process that was not signaled and never will be by Stop:
// at most once is the promise, and a drain reports such a process as blocked.
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
		for _, pid := range p.host.session(s.PID, s.mark()) {
			err = errors.Join(err, signalOne(pid, sig))
		}
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
