package fleet

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/deploy/dev/simulate"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// The reasons why an agent's process ends while the fleet continues.
var (
	errFlapped  = errors.New("the agent flaps")
	errDied     = errors.New("the agent died after it accepted a task")
	errSilenced = errors.New("the silent agent is restarted")
)

const (
	// brokenPause is the pause after an agent that does not start.
	brokenPause = 5 * time.Second
	// restartPause is the pause before a normal restart.
	restartPause = time.Second / 2
)

// member is one node of the fleet. Its agent is restarted whenever it ends,
// until the node is removed.
type member struct {
	conf        agent.Config
	fleet       Config
	misbehavior Misbehavior
	tally       *tally
	connections connections
	load        load
	machine     *simulate.Machine

	seen  atomic.Bool // the server accepted a poll
	muted atomic.Bool // sends no requests

	mu     sync.Mutex
	runs   int                     // number of the current process
	end    context.CancelCauseFunc // of the current process
	known  map[string]bool         // tasks that the node misbehaved for
	leases map[string]leaseEnd
	// destroyed are the operations and types of which the node started a destructive task.
	destroyed map[string]bool
	off       time.Duration // how long the machine that restarts is off
}

// leaseEnd is the end of a task's lease, and the time of its late result.
type leaseEnd struct{ lease, result time.Time }

func newMember(c Config, conf agent.Config, misbehavior Misbehavior, t *tally) *member {
	return &member{conf: conf, machine: newMachine(c.Faults, conf.StateDir), fleet: c, misbehavior: misbehavior, tally: t, load: load{size: c.Workloads, since: time.Now().UTC()}}
}

// run runs agents, one after the other, until ctx ends or the node is removed.
func (m *member) run(ctx context.Context) {
	for ctx.Err() == nil {
		removed, cause := m.process(ctx)
		if removed {
			m.tally.removed.Add(1)
			return
		}
		_ = sleep(ctx, m.downtime(cause)) // the loop checks ctx
	}
}

// downtime returns how long the node has no agent.
func (m *member) downtime(cause error) time.Duration {
	switch {
	case errors.Is(cause, errRebooted):
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.off
	case errors.Is(cause, errDied):
		return around(m.fleet.RestartAfter).draw()
	case errors.Is(cause, errFlapped), errors.Is(cause, errSilenced):
		return around(restartPause).draw()
	}
	return around(brokenPause).draw()
}

// process runs one agent until it ends and returns the reason.
func (m *member) process(ctx context.Context) (removed bool, cause error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	a, err := agent.New(m.conf, agent.Deps{
		Log: m.fleet.Log, FS: disk{}, Transport: m.newWire, Wrap: m.wrapExecutor, Workloads: &m.load,
		Health: m.machine, BootID: m.machine.BootID, Reboot: m.reboot,
		Artifacts: func(context.Context) map[string]string {
			return map[string]string{inventory.ArtifactKernel: "simulated"}
		},
	})
	if err != nil {
		m.fleet.Log.Error("the agent does not start", "node_id", m.conf.NodeID, "err", err.Error())
		return false, err
	}
	defer a.Close()
	defer m.connections.closeAll()
	m.mu.Lock()
	m.runs, m.end = m.runs+1, end
	m.mu.Unlock()
	m.muted.Store(false)
	if m.misbehavior == Flapping {
		defer m.endAfter(around(m.fleet.FlapEvery).draw(), errFlapped)()
	}
	m.tally.running.Add(1)
	defer m.tally.running.Add(-1)
	if err := a.Run(ctx); err != nil {
		m.fleet.Log.Error("the agent ended", "node_id", m.conf.NodeID, "err", err.Error())
		return false, err
	}
	return ctx.Err() == nil, context.Cause(ctx)
}

// endAfter kills the current process after d: its connections break, and it sends
// nothing afterwards. The returned function cancels it.
func (m *member) endAfter(d time.Duration, cause error) (stop func()) {
	m.mu.Lock()
	number, end := m.runs, m.end
	m.mu.Unlock()
	timer := time.AfterFunc(d, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.runs != number {
			return
		}
		m.muted.Store(true)
		m.connections.closeAll()
		end(cause)
	})
	return func() { timer.Stop() }
}

// admitted records that the server accepted a request with the node's identity.
func (m *member) admitted() {
	if m.seen.CompareAndSwap(false, true) {
		m.tally.enrolled.Add(1)
	}
}

// first reports whether the node has not yet misbehaved for the task.
func (m *member) first(taskID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[taskID] {
		return false
	}
	if m.known == nil {
		m.known = map[string]bool{}
	}
	m.known[taskID] = true
	return true
}

// firstIn reports whether the node starts a destructive task of this type in the operation for
// the first time.
func (m *member) firstIn(operationID string, kind task.Type) bool {
	operationID += " " + string(kind)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.destroyed[operationID] {
		return false
	}
	if m.destroyed == nil {
		m.destroyed = map[string]bool{}
	}
	m.destroyed[operationID] = true
	return true
}

// leased records the end of a lease.
func (m *member) leased(taskID string, l task.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leases == nil {
		m.leases = map[string]leaseEnd{}
	}
	e := m.leases[taskID]
	e.lease = l.ExpiresAt
	m.leases[taskID] = e
}

// hold waits until the task's lease has expired. Some results are sent before the
// reclaimer processes the task, some after it. A task is late once.
func (m *member) hold(ctx context.Context, taskID string) error {
	m.mu.Lock()
	e := m.leases[taskID]
	if e.result.IsZero() && !e.lease.IsZero() {
		e.result = e.lease.Add(Span{time.Second, task.StaleGrace + lifecycle.RoundInterval}.draw())
		m.leases[taskID] = e
	}
	m.mu.Unlock()
	if wait := time.Until(e.result); wait > 0 {
		return sleep(ctx, wait)
	}
	return nil
}
