package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// reconcileEvery is how often the process driver looks at its folder. Ends of
// its own children wake it at once.
const reconcileEvery = time.Second

// processDriver supervises real processes: NAME.json in its folder is a spec
// that it starts as a process in a session of its own, NAME.state is what it
// knows of that process, NAME.log its output. Processes outlive the agent; the
// next agent adopts them by pid and start time, so that a reused pid is never
// signalled.
//
// A process that ended is started again when its spec says restart, or when the
// spec is touched. One that was stopped is only started again when its spec is
// touched. Nothing is started while the node is cordoned. Removing the spec of
// a running process leaves it running.
type processDriver struct {
	dir      string
	disk     disk
	cordoned func() bool
	changed  func()
	log      *slog.Logger
	host     processTable
	wake     chan struct{}
	readOnly bool

	mu    sync.Mutex
	procs map[string]*process
	bad   map[string]int64 // specs already complained about, by their time
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
	BootID    string    `json:"boot_id"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	Starts    int       `json:"starts"`
	// SpecTime is the spec's modification time in ns when it was last acted on.
	SpecTime int64 `json:"spec_time"`
	// StopRequestedAt is durable before the signal is sent.
	StopRequestedAt time.Time `json:"stop_requested_at,omitzero"`
	// Stops lists the signals of this start, each durable before it is sent.
	Stops []processStop `json:"stops,omitempty"`
}

type processStop struct {
	At     time.Time `json:"at"`
	Signal string    `json:"signal"`
}

var processName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func newProcessDriver(dir string, d disk, cordoned func() bool, changed func(), log *slog.Logger) (*processDriver, error) {
	if err := os.MkdirAll(dir, privateDir); err != nil {
		return nil, fmt.Errorf("creating GPUAAS_WORKLOAD_DIR: %w", err)
	}
	p := &processDriver{
		dir: dir, disk: d, cordoned: cordoned, changed: changed, log: log, host: newProcessTable(),
		wake: make(chan struct{}, 1), procs: map[string]*process{}, bad: map[string]int64{},
	}
	return p, p.adopt()
}

func (p *processDriver) file(name, ext string) string { return filepath.Join(p.dir, name+ext) }

// adopt reads what a former agent left.
func (p *processDriver) adopt() error {
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

// Run implements Workloads.
func (p *processDriver) Run(ctx context.Context) {
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for {
		p.reconcile()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.wake:
		}
	}
}

// nudge asks for a look at once.
func (p *processDriver) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// List implements Workloads.
func (p *processDriver) List(context.Context) ([]schema.Workload, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refresh()
	list := []schema.Workload{}
	for _, s := range p.procs {
		if s.Phase == phaseRunning {
			list = append(list, schema.Workload{
				Name: s.Name, Kind: DriverProcess, Since: s.StartedAt, Stopping: !s.StopRequestedAt.IsZero(),
			})
		}
	}
	slices.SortFunc(list, func(a, b schema.Workload) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// refresh notes which processes ended, and reports whether any did.
func (p *processDriver) refresh() bool {
	any := false
	for _, s := range p.procs {
		if s.Phase != phaseRunning || p.alive(s) {
			continue
		}
		any = true
		s.Phase, s.EndedAt = phaseEnded, time.Now().UTC()
		if !s.StopRequestedAt.IsZero() {
			s.Phase = phaseStopped
		}
		p.log.Info("workload ended", "workload", s.Name, "pid", s.PID, "phase", s.Phase)
		if err := p.save(s); err != nil {
			p.log.Error("workload state not stored", "workload", s.Name, "err", err.Error())
		}
	}
	return any
}

// alive reports whether the very process that was started still runs.
func (p *processDriver) alive(s *process) bool {
	return s.BootID == p.host.bootID() && s.PID > 1 && s.StartTime != "" && p.host.startTime(s.PID) == s.StartTime
}

func (p *processDriver) save(s *process) error {
	if p.readOnly {
		return nil
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return p.disk.write(p.file(s.Name, ".state"), append(data, '\n'))
}

// Stop implements Workloads: SIGTERM to the process group, once per start.
func (p *processDriver) Stop(_ context.Context, name string) error {
	return p.signal(name, syscall.SIGTERM, "TERM", func(s *process) bool { return s.StopRequestedAt.IsZero() })
}

// Kill implements Workloads: SIGKILL to the process group.
func (p *processDriver) Kill(_ context.Context, name string) error {
	return p.signal(name, syscall.SIGKILL, "KILL", func(*process) bool { return true })
}

// signal records the wish durably and then sends the signal. A crash between
// the two leaves a process that was not signalled and never will be by Stop:
// at most once is the promise, and a drain reports such a process as blocked.
func (p *processDriver) signal(name string, sig syscall.Signal, label string, wanted func(*process) bool) error {
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
	p.log.Info("workload signalled", "workload", name, "pid", s.PID, "signal", label)
	if err := syscall.Kill(-s.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// reconcile starts what should run and is not running.
func (p *processDriver) reconcile() {
	p.mu.Lock()
	changed := p.refresh()
	specs, err := filepath.Glob(p.file("*", ".json"))
	if err != nil {
		p.log.Error("workload folder does not read", "err", err.Error())
	}
	for _, path := range specs {
		changed = p.consider(path) || changed
	}
	p.forget()
	p.mu.Unlock()
	if changed {
		p.changed()
	}
}

// consider starts the process of one spec when it should run now.
func (p *processDriver) consider(path string) (started bool) {
	name := strings.TrimSuffix(filepath.Base(path), ".json")
	mod, err := specTime(path)
	if err != nil || p.cordoned() {
		return false
	}
	s := p.procs[name]
	touched := s == nil || s.SpecTime != mod
	if s != nil && (s.Phase == phaseRunning || s.Phase == phaseStopped && !touched) {
		return false
	}
	if p.bad[name] == mod {
		return false
	}
	spec, err := readSpec(name, path)
	if err != nil {
		p.bad[name] = mod
		p.log.Error("workload spec refused", "workload", name, "err", err.Error())
		return false
	}
	if !touched && (!spec.Restart || time.Since(s.StartedAt) < restartDelay(s.Starts)) {
		return false
	}
	next := process{Name: name, SpecTime: mod, Starts: 1}
	if !touched {
		next.Starts = s.Starts + 1
	}
	if err := p.start(&next, spec); err != nil {
		p.bad[name] = mod
		p.log.Error("workload does not start", "workload", name, "err", err.Error())
		return false
	}
	p.procs[name] = &next
	p.log.Info("workload started", "workload", name, "pid", next.PID)
	return true
}

// restartDelay keeps a process that ends at once from being started in a loop.
func restartDelay(starts int) time.Duration {
	b := backoff{min: time.Second, max: time.Minute, failures: min(starts, 16)}
	return b.step()
}

// forget drops what ended and has no spec any more.
func (p *processDriver) forget() {
	for name, s := range p.procs {
		if s.Phase == phaseRunning {
			continue
		}
		if _, err := os.Stat(p.file(name, ".json")); errors.Is(err, fs.ErrNotExist) {
			if err := os.Remove(p.file(name, ".state")); err == nil || errors.Is(err, fs.ErrNotExist) {
				delete(p.procs, name)
			}
		}
	}
}

func specTime(path string) (int64, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return fi.ModTime().UnixNano(), nil
}

func readSpec(name, path string) (processSpec, error) {
	var s processSpec
	if !processName.MatchString(name) {
		return s, errors.New("the name is not [A-Za-z0-9._-], 63 at most")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := schema.DecodeStrict(data, schema.MaxBodyBytes, &s); err != nil {
		return s, err
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return s, errors.New("command is empty")
	}
	return s, nil
}
