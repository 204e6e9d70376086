package fleet

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/deploy/dev/workload/machine"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/version"
)

// slowest is the maximum time that a slow node takes for a task.
const slowest = 2 * time.Minute

// wrapExecutor adds a simulated duration to an executor of the agent and replaces
// this machine by a simulated one. Cordon, drain of the simulated workloads and
// trust stay the agent's own.
func (m *member) wrapExecutor(kind task.Type, x runner.Executor) runner.Executor {
	own, work := x.Run, x.Run
	switch kind {
	case task.FactsCollect:
		work = m.facts
	case task.NodeProbe:
		work = m.probe
	case task.GPUReset, task.NodeVerify:
		work = machine.Repairs(m.machine, kind, x).Run
	case task.AgentUpgrade: // a simulated node has no binary
		work = func(context.Context, runner.Task) (any, error) {
			return task.UpgradeResult{Version: version.Version()}, nil
		}
	case task.WorkloadUncordon:
		work = func(ctx context.Context, t runner.Task) (any, error) {
			out, err := own(ctx, t)
			if err == nil {
				m.load.begin()
			}
			return out, err
		}
	}
	x.Folder = false // nothing is written, and thousands of folders are slow
	x.Run = func(ctx context.Context, t runner.Task) (any, error) {
		m.tally.works.Add(1)
		if t.Effect == task.EffectDestructive && !m.firstIn(t.OperationID, t.Type) {
			m.tally.repeated.Add(1)
		}
		if err := m.simulateWork(ctx, t); err != nil {
			return nil, err
		}
		return work(ctx, t)
	}
	return x
}

// simulateWork waits for the duration of the task's work. A node dies or becomes silent
// here, once per task: after the server has confirmed a destructive task.
func (m *member) simulateWork(ctx context.Context, t runner.Task) error {
	switch {
	case m.misbehavior == Dies && m.first(t.TaskID):
		m.endAfter(0, errDied)
		<-ctx.Done()
		return context.Cause(ctx)
	case m.misbehavior == Silent && m.first(t.TaskID):
		m.muted.Store(true)
		m.endAfter(around(m.fleet.RestartAfter).draw(), errSilenced)
	}
	return sleep(ctx, m.taskTime(t))
}

func (m *member) taskTime(t runner.Task) time.Duration {
	if m.misbehavior != Slow {
		return m.fleet.TaskTime.draw()
	}
	limit := min(time.Duration(t.MaxRuntime)*time.Second, slowest)
	return Span{limit / 2, limit * 9 / 10}.draw()
}

// facts returns those of a machine that fits every SKU without GPUs.
func (m *member) facts(context.Context, runner.Task) (any, error) {
	return inventory.Facts{Hostname: m.conf.NodeID, OS: "simulated", Kernel: "simulated", Arch: runtime.GOARCH, CPUs: 256,
		MemoryBytes: 4 << 40, Disks: []inventory.Disk{}, NICs: []inventory.NIC{}, GPUs: []inventory.GPU{}, CollectedAt: time.Now().UTC()}, nil
}

func (m *member) probe(context.Context, runner.Task) (any, error) {
	return inventory.ProbeReport{Healthy: true, Checks: []inventory.ProbeCheck{{Name: "disk", OK: true, Detail: "simulated"}}}, nil
}

// load is a node's simulated workloads. They stop immediately on request, and restart
// with an uncordon or a restart of the fleet.
type load struct {
	size  int
	since time.Time

	mu    sync.Mutex
	ended map[string]bool
}

// List implements workload.Driver.
func (l *load) List(context.Context) ([]task.Workload, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []task.Workload{}
	for i := range l.size {
		if name := fmt.Sprintf("workload-%02d", i+1); !l.ended[name] {
			out = append(out, task.Workload{Name: name, Kind: "process", Since: l.since})
		}
	}
	return out, nil
}

// Stop implements workload.Driver.
func (l *load) Stop(_ context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.ended = map[string]bool{}
	}
	l.ended[name] = true
	return nil
}

// Kill implements workload.Driver.
func (l *load) Kill(ctx context.Context, name string) error { return l.Stop(ctx, name) }

// Run implements workload.Driver.
func (l *load) Run(ctx context.Context) { <-ctx.Done() }

// begin restarts all workloads.
func (l *load) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = nil
}
