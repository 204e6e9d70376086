package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/schema"
)

// slowest bounds what a slow node takes for a task whose time limit is long.
const slowest = 2 * time.Minute

// executors pretend to do every type of task. All may run again after a
// restart, since none does anything.
func (m *member) executors() map[schema.TaskType]agent.Executor {
	out := map[schema.TaskType]agent.Executor{}
	for _, row := range schema.TaskTypes() {
		out[row.Type] = agent.Executor{Check: func(json.RawMessage) error { return nil }, Run: m.pretend, Resumable: true}
	}
	return out
}

// pretend is the work of any task.
func (m *member) pretend(ctx context.Context, t agent.Task) (any, error) {
	if m.wrong == Dies && m.first(t.TaskID) {
		m.endAfter(0, errDied)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if err := sleep(ctx, m.taskTime(t)); err != nil {
		return nil, err
	}
	return m.output(t)
}

func (m *member) taskTime(t agent.Task) time.Duration {
	if m.wrong != Slow {
		return m.fleet.TaskTime.draw()
	}
	limit := min(time.Duration(t.MaxRuntime)*time.Second, slowest)
	return Span{limit / 2, limit * 9 / 10}.draw()
}

// output is what a healthy node of any SKU without GPUs would answer.
func (m *member) output(t agent.Task) (any, error) {
	switch t.Type {
	case schema.TaskFactsCollect:
		return schema.Facts{Hostname: m.conf.NodeID, OS: "pretended", Kernel: "pretended", Arch: runtime.GOARCH, CPUs: 256,
			MemoryBytes: 4 << 40, Disks: []schema.Disk{}, NICs: []schema.NIC{}, GPUs: []schema.GPU{}, CollectedAt: time.Now().UTC()}, nil
	case schema.TaskNodeProbe:
		return schema.ProbeReport{Healthy: true, Checks: []schema.ProbeCheck{{Name: "disk", OK: true, Detail: "pretended"}}}, nil
	case schema.TaskWorkloadCordon, schema.TaskWorkloadUncordon:
		return m.load.cordon(t)
	case schema.TaskWorkloadDrain:
		return m.load.drain(), nil
	}
	return struct{}{}, nil
}

// load is a node's pretended workloads and its cordon. A drain ends the
// workloads, an uncordon begins them again; a restart of the fleet does too.
type load struct {
	size int

	mu       sync.Mutex
	cordoned bool
	ended    bool
}

// List implements agent.Workloads.
func (l *load) List(context.Context) ([]schema.Workload, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list(), nil
}

func (l *load) list() []schema.Workload {
	out := []schema.Workload{}
	for i := 0; i < l.size && !l.ended; i++ {
		out = append(out, schema.Workload{Name: fmt.Sprintf("pretended-%d", i+1), Kind: "process"})
	}
	return out
}

// Stop implements agent.Workloads. Nobody calls it: the executors pretend.
func (l *load) Stop(context.Context, string) error { return nil }

// Kill implements agent.Workloads. Nobody calls it.
func (l *load) Kill(context.Context, string) error { return nil }

// Run implements agent.Workloads.
func (l *load) Run(ctx context.Context) { <-ctx.Done() }

// cordon sets or lifts the cordon. A second run reports what stood before the
// first.
func (l *load) cordon(t agent.Task) (schema.CordonResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.cordoned
	known, err := t.Recall(&was)
	if err == nil && !known {
		err = t.Remember(was)
	}
	if err != nil {
		return schema.CordonResult{}, err
	}
	l.cordoned = t.Type == schema.TaskWorkloadCordon
	l.ended = l.ended && l.cordoned
	return schema.CordonResult{Cordoned: l.cordoned, Was: was, Workloads: l.list()}, nil
}

func (l *load) drain() schema.DrainResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := schema.DrainResult{Stopped: []string{}}
	for _, w := range l.list() {
		r.Stopped = append(r.Stopped, w.Name)
	}
	l.ended = true
	return r
}
