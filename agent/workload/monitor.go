package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Limits of a driver that does not answer.
const (
	// listTimeout bounds the listing of workloads for a summary.
	listTimeout = 10 * time.Second
	// answerGrace is how long after the end of its context a call may still return.
	answerGrace = 2 * time.Second
	// summaryWait is how long a summary waits for the listing that it began.
	summaryWait = 200 * time.Millisecond
)

// Monitor is a driver whose calls end with their context even if the calls of the
// driver behind it do not, and which keeps a summary of the workloads. While a call is
// late, further calls fail, so that goroutines do not accumulate.
type Monitor struct {
	name    string // of the driver, in errors
	driver  Driver
	gpus    *GPUs // nil for none
	now     func() time.Time
	changed func()
	log     *slog.Logger

	mu    sync.Mutex
	late  int       // calls whose context ended before they returned
	since time.Time // begin of the first late call

	listing chan struct{} // closed when the listing under way ends; nil without one
	missed  bool          // a summary did not wait for the listing under way
	last    Summary
}

// Summary is the last known list of workloads.
type Summary struct {
	Workloads []task.Workload
	// At is the begin of the listing, zero before the first.
	At time.Time
	// Fault is why there is no newer list; FaultSince is zero without one.
	Fault      string
	FaultSince time.Time
}

// List returns the workloads as the server sees them. While there is no newer list, an
// entry says so, because what is not listed would not prevent a retirement of the node.
func (s Summary) List() []task.Workload {
	if s.Fault == "" {
		return s.Workloads
	}
	unknown := task.Workload{
		Name: fmt.Sprintf("unknown workloads since %s: %s", text.FormatTime(cmp.Or(s.At, s.FaultSince)), s.Fault),
		Kind: task.KindUnknown, Since: s.FaultSince.UTC(),
	}
	return append([]task.Workload{unknown}, s.Workloads...)
}

// Reportable returns the workloads as the server accepts them: at most
// wire.MaxWorkloads, with printable names and warnings. Both are for people only.
func Reportable(list []task.Workload) []task.Workload {
	list = slices.Clone(list[:min(len(list), wire.MaxWorkloads)])
	for i := range list {
		list[i].Name = text.Printable(list[i].Name, wire.MaxWorkloadName)
		list[i].Warning = text.Printable(list[i].Warning, wire.MaxWorkloadWarning)
	}
	return list
}

// NewMonitor makes the monitor of a driver. changed is called when there is a newer
// summary than the one that a call of Summary returned without waiting.
func NewMonitor(d Driver, now func() time.Time, changed func(), log *slog.Logger) *Monitor {
	return &Monitor{name: "the workload driver", driver: d, now: now, changed: changed, log: log}
}

// Observe adds the GPU processes to all that the monitor lists, except in List. It must be
// called before the first listing.
func (m *Monitor) Observe(g *GPUs) { m.gpus = g }

// GPUProcesses returns what GPUs.Processes does, nil if the monitor observes none.
func (m *Monitor) GPUProcesses(ctx context.Context) []task.Workload {
	if m.gpus == nil {
		return nil
	}
	return m.gpus.Processes(ctx)
}

// all lists the workloads of the driver and the GPU processes.
func (m *Monitor) all(ctx context.Context) ([]task.Workload, error) {
	list, err := m.List(ctx)
	if err != nil {
		return nil, err
	}
	return append(list, m.GPUProcesses(ctx)...), nil
}

// bounded makes a call of the driver, unless ctx has ended, and returns soon after ctx
// ends. If it returns an error, the call may still be in progress.
func (m *Monitor) bounded(ctx context.Context, call func() error) error {
	begin := m.now()
	err := cmp.Or(m.lateError(), ctx.Err())
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = call()
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case <-done:
		return err
	case <-time.After(answerGrace):
		return m.noAnswer(m.markLate(begin, done))
	}
}

// markLate counts a call as late until it is done, and returns when the first of the
// late calls began.
func (m *Monitor) markLate(begin time.Time, done <-chan struct{}) (since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.late++; m.late == 1 {
		m.since = begin
	}
	go func() {
		<-done
		m.mu.Lock()
		defer m.mu.Unlock()
		m.late--
	}()
	return m.since
}

// lateError returns an error while a call is late.
func (m *Monitor) lateError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.late == 0 {
		return nil
	}
	return m.noAnswer(m.since)
}

func (m *Monitor) noAnswer(since time.Time) error {
	return fmt.Errorf("no answer from %s since %s", m.name, text.FormatTime(since))
}

// List implements Driver. The list has no GPU processes.
func (m *Monitor) List(ctx context.Context) ([]task.Workload, error) {
	var list atomic.Pointer[[]task.Workload] // a late call may still write it
	err := m.bounded(ctx, func() error {
		found, err := m.driver.List(ctx)
		list.Store(&found)
		return err
	})
	if found := list.Load(); found != nil {
		return *found, err
	}
	return nil, err
}

// Stop implements Driver.
func (m *Monitor) Stop(ctx context.Context, name string) error {
	return m.bounded(ctx, func() error { return m.driver.Stop(ctx, name) })
}

// Kill implements Driver.
func (m *Monitor) Kill(ctx context.Context, name string) error {
	return m.bounded(ctx, func() error { return m.driver.Kill(ctx, name) })
}

// Finish implements Restorer. It does nothing for a driver that is none.
func (m *Monitor) Finish(ctx context.Context) error {
	return m.bounded(ctx, func() error { return finish(ctx, m.driver) })
}

// Restore implements Restorer. It does nothing for a driver that is none.
func (m *Monitor) Restore(ctx context.Context, names ...string) error {
	return m.bounded(ctx, func() error { return restore(ctx, m.driver, names...) })
}

// Cordon implements Cordoner. It does nothing for a driver that is none.
func (m *Monitor) Cordon(ctx context.Context, on bool) error {
	return m.bounded(ctx, func() error { return cordon(ctx, m.driver, on) })
}

// Leave implements Leaver. It does nothing for a driver that is none.
func (m *Monitor) Leave(ctx context.Context) error {
	return m.bounded(ctx, func() error { return leave(ctx, m.driver) })
}

// Run implements Driver. It does not wait for a driver that ignores its context.
func (m *Monitor) Run(ctx context.Context) {
	err := m.bounded(ctx, func() error {
		m.driver.Run(ctx)
		return nil
	})
	if err != nil && !errors.Is(err, ctx.Err()) {
		m.log.Warn("the workload driver does not end", "err", err.Error())
	}
}

// Summary begins a listing, unless one is under way, and returns the last known
// summary. It waits for the listing that it began for a moment, and not while the
// driver fails.
func (m *Monitor) Summary(ctx context.Context) Summary {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listing == nil {
		m.listing = make(chan struct{})
		go m.list(ctx, m.listing)
		if m.last.FaultSince.IsZero() {
			m.await(m.listing)
		}
	}
	m.missed = m.missed || m.listing != nil
	return m.last
}

// await waits for a listing for a moment, without the lock.
func (m *Monitor) await(listing <-chan struct{}) {
	m.mu.Unlock()
	defer m.mu.Lock()
	select {
	case <-listing:
	case <-time.After(summaryWait):
	}
}

// Known lists the workloads for a result. It returns the last known ones if the driver
// fails.
func (m *Monitor) Known(ctx context.Context) []task.Workload {
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	begin := m.now()
	list, err := m.all(limited)
	if err == nil {
		return list
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed(begin, err).List()
}

// failed returns the summary after a listing that failed.
func (m *Monitor) failed(begin time.Time, err error) Summary {
	s := m.last
	s.Fault = text.Truncate(err.Error())
	if s.FaultSince.IsZero() {
		s.FaultSince = begin
	}
	return s
}

// list updates the summary.
func (m *Monitor) list(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	begin := m.now()
	list, err := m.all(limited)
	m.mu.Lock()
	defer m.mu.Unlock()
	next := Summary{Workloads: list, At: begin}
	switch {
	case ctx.Err() != nil:
		next = m.last
	case err != nil:
		m.log.Warn("cannot list the workloads", "err", err.Error())
		next = m.failed(begin, err)
	}
	differs := m.last.At.IsZero() != next.At.IsZero() || !m.last.FaultSince.Equal(next.FaultSince) || !slices.Equal(m.last.Workloads, next.Workloads)
	if m.missed && differs {
		m.changed()
	}
	m.last, m.listing, m.missed = next, nil, false
}
