// Package simulate has the machine of a simulated node: a boot ID, faults that a test injects through
// a file, and repairs that cure them. gpuaas-dev-agent and gpuaas-fleet use it; the node agent of
// production does not have it.
package simulate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
)

// DefaultReboot is how long a simulated reboot takes unless the faults file says otherwise.
const DefaultReboot = 2 * time.Second

// readEvery is the interval at which the faults file is read.
const readEvery = time.Second

// maxFile bounds the faults file.
const maxFile = 4 << 20

// Faults is the content of a faults file. The file may change at any time; write it beside its
// place and rename it, so that no node reads a part. A fault that a repair cured returns if it
// leaves the file and enters it again.
type Faults struct {
	// RebootSeconds is how long a reboot takes; 0 is DefaultReboot.
	RebootSeconds float64 `json:"reboot_seconds,omitempty"`
	Faults        []Fault `json:"faults"`
}

// Fault is one condition of some nodes.
type Fault struct {
	// Hosts are the host names, as patterns of path.Match. Empty means all that read the file.
	Hosts []string `json:"hosts,omitempty"`
	// Sticky faults last until they leave the file. The others end with a reboot, and those whose
	// condition has the repair reset_gpu also with a reset of the GPUs.
	Sticky bool `json:"sticky,omitempty"`
	// Condition is what the node reports. Since and Samples are the node's own; the status defaults to
	// unhealthy.
	Condition health.Condition `json:"condition"`
}

// Config is the configuration of a machine.
type Config struct {
	Host string
	// Faults is the path of the faults file, "" for none.
	Faults string
	// State is the file that keeps the machine's boots and its cured faults.
	State string
	Now   func() time.Time
}

// state is what survives the process of the machine.
type state struct {
	Boots int `json:"boots"`
	// Cured are the faults that a repair cured, in their JSON form.
	Cured []string `json:"cured,omitempty"`
}

// key identifies a condition.
type key struct{ checker, component string }

// Machine is one simulated machine. It is safe for concurrent use.
type Machine struct {
	conf Config

	mu         sync.Mutex
	state      state
	file       Faults
	fault      error // of the last reading
	read       os.FileInfo
	conditions map[key]health.Condition
	at         time.Time
}

// New makes a machine, or continues the one of its state file.
func New(c Config) *Machine {
	m := &Machine{conf: c, conditions: map[key]health.Condition{}}
	raw, err := os.ReadFile(c.State)
	if err == nil {
		_ = json.Unmarshal(raw, &m.state) // a damaged state is that of a new machine
	}
	m.state.Boots = max(m.state.Boots, 1)
	m.Check()
	return m
}

// BootID is the machine's boot ID. It changes with each reboot.
func (m *Machine) BootID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bootID()
}

func (m *Machine) bootID() string { return fmt.Sprintf("%.40s-boot-%d", m.conf.Host, m.state.Boots) }

// Run checks the machine every second until ctx ends, and calls changed when a condition changed.
func (m *Machine) Run(ctx context.Context, changed func()) {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if m.Check() {
				changed()
			}
		}
	}
}

// Report returns the machine's conditions, which always include a check of its disk.
func (m *Machine) Report() *health.Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := slices.SortedFunc(maps.Values(m.conditions), func(a, b health.Condition) int {
		return cmp.Or(cmp.Compare(a.Checker, b.Checker), cmp.Compare(a.Component, b.Component))
	})
	return &health.Report{At: m.at, BootID: m.bootID(), Conditions: list[:min(len(list), health.MaxConditions)]}
}

// Fault returns why the faults file cannot be used, nil if it can.
func (m *Machine) Fault() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fault
}

// Check reads the faults file and makes one sample of every condition. It reports whether a
// condition changed.
func (m *Machine) Check() (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.load()
	m.at = m.conf.Now().UTC()
	next := map[key]health.Condition{}
	for k := range m.conditions { // what was unhealthy before is healthy now, unless a fault says otherwise
		next[k] = health.Condition{Checker: k.checker, Component: k.component, Status: health.Healthy, Reason: "Simulated"}
	}
	next[key{checker: "host_disk"}] = health.Condition{Checker: "host_disk", Status: health.Healthy, Reason: "Simulated"}
	for _, f := range m.active() {
		c := f.Condition
		c.Status = cmp.Or(c.Status, health.Unhealthy)
		next[key{c.Checker, c.Component}] = c
	}
	for k, c := range next {
		old, there := m.conditions[k]
		c.Since, c.Samples = m.at, 1
		if there && old.Status == c.Status {
			c.Since, c.Samples = old.Since, old.Samples+1
		}
		changed = changed || !there || old.Status != c.Status || old.Reason != c.Reason || old.Code != c.Code
		next[k] = c
	}
	m.conditions = next
	return changed
}

// active returns the faults of this machine that no repair cured.
func (m *Machine) active() []Fault {
	return slices.DeleteFunc(m.own(), func(f Fault) bool { return slices.Contains(m.state.Cured, text(f)) })
}

// own returns the faults of the file that concern this machine.
func (m *Machine) own() []Fault {
	return slices.DeleteFunc(slices.Clone(m.file.Faults), func(f Fault) bool {
		return len(f.Hosts) > 0 && !slices.ContainsFunc(f.Hosts, func(pattern string) bool {
			ok, err := path.Match(pattern, m.conf.Host)
			return ok && err == nil
		})
	})
}

// load reads the faults file if it changed. It forgets that a fault was cured when the fault is no
// longer in the file.
func (m *Machine) load() {
	if m.conf.Faults == "" {
		return
	}
	info, err := os.Stat(m.conf.Faults)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		m.file, m.read, m.fault = Faults{}, nil, nil
	case err != nil:
		m.fault = err
		return
	case m.read != nil && os.SameFile(info, m.read) && info.ModTime().Equal(m.read.ModTime()) && info.Size() == m.read.Size():
		return
	default:
		var file Faults
		if file, m.fault = read(m.conf.Faults, info.Size()); m.fault != nil {
			return
		}
		m.file, m.read = file, info
	}
	var there []string
	for _, f := range m.own() {
		there = append(there, text(f))
	}
	kept := slices.DeleteFunc(slices.Clone(m.state.Cured), func(t string) bool { return !slices.Contains(there, t) })
	if len(kept) != len(m.state.Cured) {
		m.state.Cured = kept
		m.fault = m.save()
	}
}

func read(file string, size int64) (f Faults, err error) {
	if size > maxFile {
		return f, fmt.Errorf("%s has more than %d bytes", file, maxFile)
	}
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", file, err)
	}
	return f, err
}

// text is a fault in its JSON form.
func text(f Fault) string {
	raw, _ := json.Marshal(f) //nolint:errchkjson // strings and numbers always encode
	return string(raw)
}

func (m *Machine) save() error {
	raw, err := json.Marshal(m.state)
	if err == nil {
		err = os.WriteFile(m.conf.State+".tmp", raw, 0o600)
	}
	if err == nil {
		err = os.Rename(m.conf.State+".tmp", m.conf.State)
	}
	return err
}

// cure ends the faults that the repair ends.
func (m *Machine) cure(ends func(Fault) bool) {
	for _, f := range m.active() {
		if !f.Sticky && ends(f) {
			m.state.Cured = append(m.state.Cured, text(f))
		}
	}
}

// Reboot gives the machine another boot ID and ends its faults, apart from sticky ones. It returns
// how long the machine is off.
func (m *Machine) Reboot() (off time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.Boots++
	m.cure(func(Fault) bool { return true })
	off = time.Duration(m.file.RebootSeconds * float64(time.Second))
	return cmp.Or(off, DefaultReboot), m.save()
}

// Reset resets the GPUs, which ends the faults whose repair that is. It returns the named GPUs.
func (m *Machine) Reset(p task.ResetParams) (task.ResetResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cure(func(f Fault) bool {
		return f.Condition.Repair == health.RepairResetGPU && (len(p.GPUs) == 0 || slices.Contains(p.GPUs, f.Condition.Component))
	})
	return task.ResetResult{Reset: append([]string{}, p.GPUs...)}, m.save()
}

// Verify tests the machine: one test for each fault that it has, or one that passes.
func (m *Machine) Verify() task.VerifyResult {
	m.Check()
	m.mu.Lock()
	defer m.mu.Unlock()
	r := task.VerifyResult{OK: true, BootID: m.bootID()}
	for _, f := range m.active() {
		if cmp.Or(f.Condition.Status, health.Unhealthy) == health.Unhealthy {
			r.OK = false
			r.Tests = append(r.Tests, recovery.Test{Name: f.Condition.Checker, Detail: "simulated: " + f.Condition.Reason})
		}
	}
	if r.OK {
		r.Tests = []recovery.Test{{Name: "simulated", OK: true, Detail: "no simulated fault"}}
	}
	return r
}
