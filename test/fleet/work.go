package fleet

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
)

// slowest bounds what a slow node takes for a task whose time limit is long.
const slowest = 2 * time.Minute

// dress puts a pretended duration before an executor of the agent, and a
// pretended machine in the place of this one. What remains is the agent's own:
// its cordon, its drain of the pretended workloads, its trust.
func (m *member) dress(kind task.Type, x agent.Executor) agent.Executor {
	own, work := x.Run, x.Run
	switch kind {
	case task.FactsCollect:
		work = m.facts
	case task.NodeProbe:
		work = m.probe
	case task.WorkloadUncordon:
		work = func(ctx context.Context, t agent.Task) (any, error) {
			out, err := own(ctx, t)
			if err == nil {
				m.load.begin()
			}
			return out, err
		}
	}
	x.Folder = false // nothing is written, and thousands of folders are slow
	x.Run = func(ctx context.Context, t agent.Task) (any, error) {
		m.tally.works.Add(1)
		if err := m.labour(ctx, t); err != nil {
			return nil, err
		}
		return work(ctx, t)
	}
	return x
}

// labour takes the time of the work. In it a node dies that does.
func (m *member) labour(ctx context.Context, t agent.Task) error {
	if m.wrong == Dies && m.first(t.TaskID) {
		m.endAfter(0, errDied)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return sleep(ctx, m.taskTime(t))
}

func (m *member) taskTime(t agent.Task) time.Duration {
	if m.wrong != Slow {
		return m.fleet.TaskTime.draw()
	}
	limit := min(time.Duration(t.MaxRuntime)*time.Second, slowest)
	return Span{limit / 2, limit * 9 / 10}.draw()
}

// facts are those of a machine that fits every SKU without GPUs.
func (m *member) facts(context.Context, agent.Task) (any, error) {
	return inventory.Facts{Hostname: m.conf.NodeID, OS: "pretended", Kernel: "pretended", Arch: runtime.GOARCH, CPUs: 256,
		MemoryBytes: 4 << 40, Disks: []inventory.Disk{}, NICs: []inventory.NIC{}, GPUs: []inventory.GPU{}, CollectedAt: time.Now().UTC()}, nil
}

func (m *member) probe(context.Context, agent.Task) (any, error) {
	return inventory.ProbeReport{Healthy: true, Checks: []inventory.ProbeCheck{{Name: "disk", OK: true, Detail: "pretended"}}}, nil
}

// load is a node's pretended workloads. They end at once when they are asked to,
// and begin again with an uncordon or a restart of the fleet.
type load struct {
	size  int
	since time.Time

	mu    sync.Mutex
	ended map[string]bool
}

// List implements agent.Workloads.
func (l *load) List(context.Context) ([]task.Workload, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []task.Workload{}
	for i := range l.size {
		if name := fmt.Sprintf("pretended-%02d", i+1); !l.ended[name] {
			out = append(out, task.Workload{Name: name, Kind: "process", Since: l.since})
		}
	}
	return out, nil
}

// Stop implements agent.Workloads.
func (l *load) Stop(_ context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.ended = map[string]bool{}
	}
	l.ended[name] = true
	return nil
}

// Kill implements agent.Workloads.
func (l *load) Kill(ctx context.Context, name string) error { return l.Stop(ctx, name) }

// Run implements agent.Workloads.
func (l *load) Run(ctx context.Context) { <-ctx.Done() }

// begin starts all workloads again.
func (l *load) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = nil
}
