package workload

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// reconcileEvery is how often the driver checks its folder. The exit of a child
// process triggers a check immediately.
const reconcileEvery = time.Second

var processName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Retry intervals of a workload that did not start.
const (
	invalidSpecRetry = time.Hour // only repeats the log message
	startRetry       = 10 * time.Second
)

// badSpec is a spec that did not start.
type badSpec struct {
	specTime int64
	until    time.Time
}

// Run starts workloads until ctx ends. It leaves their processes running.
func (p *Driver) Run(ctx context.Context) {
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

// checkNow triggers the supervisor.
func (p *Driver) checkNow() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// reconcile starts the workloads that should run and do not.
func (p *Driver) reconcile() {
	p.mu.Lock()
	changed := p.refresh()
	specs, err := filepath.Glob(p.file("*", ".json"))
	if err != nil {
		p.conf.Log.Error("cannot read the workload folder", "err", err.Error())
	}
	for _, path := range specs {
		changed = p.consider(path) || changed
	}
	p.forget()
	p.mu.Unlock()
	if changed {
		p.conf.Changed()
	}
}

// consider starts the process of one spec if it should run now.
func (p *Driver) consider(path string) (started bool) {
	name := strings.TrimSuffix(filepath.Base(path), ".json")
	mod, err := specTime(path)
	if err != nil || p.conf.Cordoned() {
		return false
	}
	s := p.procs[name]
	touched := s == nil || s.SpecTime != mod
	if s != nil && (s.Phase == phaseRunning || s.Phase == phaseStopped && !touched) {
		return false
	}
	if b := p.bad[name]; b.specTime == mod && time.Now().Before(b.until) {
		return false
	}
	spec, err := readSpec(name, path)
	if err != nil {
		p.bad[name] = badSpec{mod, time.Now().Add(invalidSpecRetry)}
		p.conf.Log.Error("invalid workload spec", "workload", name, "err", err.Error())
		return false
	}
	if !touched && (!spec.Restart || time.Since(s.StartedAt) < restartDelay(s.Starts)) {
		return false
	}
	next := process{Name: name, SpecTime: mod, Starts: 1, StartID: schema.NewID()}
	if !touched {
		next.Starts = s.Starts + 1
	}
	if err := p.start(&next, spec); err != nil {
		p.bad[name] = badSpec{mod, time.Now().Add(startRetry)}
		p.conf.Log.Error("cannot start workload", "workload", name, "err", err.Error())
		return false
	}
	p.procs[name] = &next
	p.conf.Log.Info("workload started", "workload", name, "pid", next.PID)
	return true
}

// restartDelay is the backoff of a process that exits repeatedly.
func restartDelay(starts int) time.Duration {
	return min(time.Second<<min(starts, 6), time.Minute)
}

// forget drops processes that have exited and have no spec.
func (p *Driver) forget() {
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
		return s, errors.New("the name must have 1 to 63 characters of A-Z a-z 0-9 . _ -")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := schema.DecodeStrict(data, wire.MaxBodyBytes, &s); err != nil {
		return s, err
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return s, errors.New("command is empty")
	}
	return s, nil
}
