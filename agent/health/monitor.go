package health

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/device"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

// DefaultInterval is the time between two samples.
const DefaultInterval = 45 * time.Second

// Config is what a monitor depends on. The functions may be nil.
type Config struct {
	State disk.StateDir
	// Root is the root of the host's file system, "/" apart from tests.
	Root string
	// BootID is the present boot. BootedAt is zero if it is not known.
	BootID   string
	BootedAt time.Time
	// SMI is the path of nvidia-smi, "" to look it up in PATH.
	SMI string
	// Journal are further arguments of journalctl, for example -D and a folder.
	Journal []string
	// Services returns the states of the services that the node needs; see ServiceNames.
	Services func(ctx context.Context) ([]host.Service, error)
	// ClockOffset is the node's clock minus the server's.
	ClockOffset func() (time.Duration, bool)
	Checks      Selection
	// Interval defaults to DefaultInterval.
	Interval time.Duration
	Now      func() time.Time
	Log      *slog.Logger
}

// Monitor checks the host. It is safe for concurrent use.
type Monitor struct {
	conf     Config
	checkers []health.Checker[host.Sample]
	parser   *device.Parser
	gpus     gpuReader

	sampling chan struct{} // capacity 1: one sample at a time

	mu      sync.Mutex // guards what follows
	sources []*source  // also guarded by sampling
	state   state
	tracker *health.Tracker
	report  *health.Report
	fault   string // of the last write of the state, so that it is logged once
}

// New makes the monitor, which continues from its stored state. An error is one of the tables of the
// program.
func New(c Config) (*Monitor, error) {
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	m := &Monitor{conf: c, sampling: make(chan struct{}, 1), gpus: gpuReader{path: c.SMI}}
	m.sources = []*source{{input: host.InputGPUs, timeout: 20 * time.Second, read: m.readGPUs}}
	m.state = m.load()
	m.tracker = health.NewTracker(m.state.Report)
	if !c.Checks.some {
		return m, nil // the tables and the expressions of the parser are large
	}
	checkers, err := host.Checkers()
	if err != nil {
		return nil, err
	}
	m.checkers, m.parser = c.Checks.of(checkers), device.NewParser()
	m.sources = append(m.sources, []*source{
		{input: host.InputKernel, timeout: 20 * time.Second, read: m.readKernel},
		{input: host.InputDisks, timeout: 10 * time.Second, read: m.readDisks},
		{input: host.InputClock, timeout: 10 * time.Second, read: m.readClock},
		{input: host.InputMemory, timeout: 10 * time.Second, read: m.readMemory},
		{input: host.InputServices, timeout: 10 * time.Second, read: m.readServices},
		{input: host.InputInfiniBand, timeout: 10 * time.Second, read: m.readInfiniBand},
	}...)
	return m, nil
}

// Run samples the host at the interval until ctx ends. It calls changed when a condition changed, and
// for a fault that an earlier process found: the server may not have its report.
func (m *Monitor) Run(ctx context.Context, changed func()) {
	var before health.Report
	for len(m.checkers) > 0 && ctx.Err() == nil {
		if _, _, err := m.Check(ctx, 0); err == nil && differs(before, m.last()) {
			changed()
		}
		before = m.last()
		if wait.Sleep(ctx, m.conf.Interval) != nil {
			return
		}
	}
}

// Report returns the newest report, nil before the first sample.
func (m *Monitor) Report() *health.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.report
}

// Check makes one sample now and returns what the checkers found, and the number of GPUs that can be
// read. gpus is the number that the node must have by its SKU, 0 if it is not known; later samples
// expect it too. An error is that of the context.
func (m *Monitor) Check(ctx context.Context, gpus int) (found []health.Finding, listed int, err error) {
	select {
	case m.sampling <- struct{}{}:
		defer func() { <-m.sampling }()
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	s := m.read(ctx)
	if ctx.Err() != nil {
		return nil, 0, ctx.Err() // what the end of the agent broke off is no fault of the host
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.complete(&s, gpus)
	m.state.History.Fill(&s)
	found = health.Run(m.checkers, s)
	m.state.Report = m.tracker.Observe(s.At, s.BootID, found)
	m.save()
	r := m.state.Report
	m.report = &r
	for _, g := range s.GPUs {
		if !g.Lost {
			listed++
		}
	}
	return found, listed, nil
}

// read asks all sources at once. The slowest that does not hang determines how long it takes.
func (m *Monitor) read(ctx context.Context) host.Sample {
	s := host.Sample{At: m.conf.Now().UTC(), BootID: m.conf.BootID, BootedAt: m.conf.BootedAt, Missing: map[host.Input]string{}}
	begin := time.Now()
	for _, one := range m.sources {
		one.begin(ctx, s.At)
	}
	for _, one := range m.sources {
		one.end(&s, one.timeout+answerGrace-time.Since(begin))
	}
	return s
}

// Reset notes that GPUs were reset, which ends what the kernel logged about them before.
func (m *Monitor) Reset(uuids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range uuids {
		m.state.Resets[id] = m.conf.Now().UTC()
	}
	m.save()
}

// save stores the state. What is not stored is read again after a restart.
func (m *Monitor) save() {
	fault := ""
	if err := m.conf.State.WriteJSON(m.file(), m.state); err != nil {
		fault = err.Error()
	}
	if fault != "" && fault != m.fault {
		m.conf.Log.Error("cannot store the state of the health checks", "err", fault)
	}
	m.fault = fault
}

// last returns the last report of this or an earlier process, the zero Report without one.
func (m *Monitor) last() health.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Report
}

// differs reports whether a condition has another result. The first report of a node is one only if it
// has a fault: the next heartbeat is soon enough for the rest.
func differs(a, b health.Report) bool {
	if a.At.IsZero() {
		return len(b.Faults()) > 0
	}
	return !slices.EqualFunc(a.Conditions, b.Conditions, func(x, y health.Condition) bool {
		return x.Checker == y.Checker && x.Component == y.Component && x.Status == y.Status && x.Reason == y.Reason && x.Code == y.Code && x.Repair == y.Repair
	})
}
