package runner

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxReads bounds the concurrent tasks that only read. One other task runs at the same
// time, in the order of arrival.
const maxReads = 4

// Causes that end a running task.
var (
	errCanceled  = execution.ErrCanceled
	errLeaseLost = errors.New("the lease was lost")
	errTimeLimit = errors.New("the time limit was reached")
)

// API is the node API as far as tasks need it.
type API interface {
	Progress(ctx context.Context, taskID string, p task.Progress, correlationID string) (wire.ProgressResponse, error)
	Result(ctx context.Context, taskID string, r task.Result, correlationID string) error
}

// Timing is every interval of running tasks.
type Timing struct {
	// Report is the backoff of results and of resumed tasks.
	Report wait.Range
	// Progress is the interval of progress calls.
	Progress time.Duration
	// Quick is how long an offered task may take to be quick.
	Quick time.Duration
}

// Config is what a runner depends on.
type Config struct {
	Journal   *Journal
	Executors map[task.Type]Executor
	Timing    Timing
	State     disk.StateDir
	API       func() API
	// Removed is called when an answer reports that the node is removed. Tasks continue.
	Removed func()
	// Local is the clock of the node, Server the server's time as far as it is
	// known, Trusted the time by which tasks are accepted.
	Local, Server, Trusted func() time.Time
	Log                    *slog.Logger
}

// Runner accepts, runs and reports tasks. Every task it holds has one goroutine,
// which Wait waits for.
type Runner struct {
	conf Config

	changes chan struct{} // capacity 1: one task at a time changes the node
	reads   chan struct{}
	wg      sync.WaitGroup

	mu   sync.Mutex
	held map[string]*heldTask // tasks with a goroutine
}

// heldTask is a task of this process.
type heldTask struct {
	task.Payload
	log     *slog.Logger
	resumed bool
	wake    chan struct{} // asks for a progress call at once
	lease   atomic.Pointer[task.Lease]
	note    atomic.Pointer[string]
	paused  atomic.Bool
	// confirmed is when the latest progress call began that confirmed the task, by the
	// wall clock.
	confirmed atomic.Pointer[time.Time]
	turned    chan struct{} // receives a value when paused changed
	// listed is true once a poll listed the task as canceled; guarded by Runner.mu.
	listed bool
	ended  chan struct{} // closed when the goroutine ends
}

// signal puts a value into a channel of capacity one, unless there is one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// New makes a runner and removes the working folders of a previous process.
func New(c Config) *Runner {
	t := &Runner{
		conf: c, changes: make(chan struct{}, 1), reads: make(chan struct{}, maxReads), held: map[string]*heldTask{},
	}
	if err := os.RemoveAll(c.State.File(workFolder)); err != nil {
		c.Log.Warn("cannot remove the working folders of a previous agent", "err", err.Error())
	}
	return t
}

// wakeAll makes every running task report its progress at once: a new task often
// follows the cancellation of a running one.
func (t *Runner) wakeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.held {
		signal(h.wake)
	}
}

// ReportProgressOf makes the named tasks report their progress at once. fresh is
// true when one of them is named for the first time: a server that repeats names
// must not make the polls a loop.
func (t *Runner) ReportProgressOf(ids []string) (fresh bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if h, ok := t.held[id]; ok {
			signal(h.wake)
			fresh, h.listed = fresh || !h.listed, true
		}
	}
	return fresh
}

// Resume continues with the tasks of a previous process: it reports finished tasks and
// runs accepted ones again if that is safe.
func (t *Runner) Resume(ctx context.Context) {
	for _, e := range t.conf.Journal.unreported() {
		t.hold(ctx, e, task.Lease{Epoch: e.LeaseEpoch}, true)
	}
}

// finalizeInterrupted decides about an interrupted task. A task that must not run twice
// gets a failed result, because its progress is unknown.
func (t *Runner) finalizeInterrupted(h *heldTask, e *Entry) {
	x, known := t.conf.Executors[h.Type]
	if known && (h.Effect != task.EffectDestructive || x.Resumable) {
		h.log.Info("task resumed after a restart", "type", string(h.Type))
		return
	}
	h.log.Error("task interrupted by a restart, outcome unknown", "type", string(h.Type))
	t.finish(e, task.Result{
		Status: task.Failed, Code: schema.KindTaskFailed, StartedAt: e.AcceptedAt, FinishedAt: t.conf.Local().UTC(),
		Message: "outcome unknown: the agent restarted while this task ran, and it must not run twice",
	})
}

// hold starts the task's goroutine: run when unfinished, then report. resumed is
// true for a task that a previous process accepted.
func (t *Runner) hold(ctx context.Context, e Entry, lease task.Lease, resumed bool) {
	p, err := e.Task()
	if err != nil {
		t.conf.Log.Error("cannot parse journal entry", "task_id", e.TaskID, "err", err.Error())
		return
	}
	h := &heldTask{
		Payload: p, log: t.conf.Log.With("task_id", p.TaskID, "correlation_id", p.CorrelationID),
		resumed: resumed, wake: make(chan struct{}, 1), turned: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	h.lease.Store(&lease)
	t.mu.Lock()
	_, held := t.held[e.TaskID]
	if !held {
		t.held[e.TaskID] = h
	}
	t.mu.Unlock()
	if held {
		return
	}
	if resumed && e.Step == stepAccepted {
		t.finalizeInterrupted(h, &e)
	}
	t.wg.Go(func() {
		defer close(h.ended)
		if e.Step == stepFinished || t.run(ctx, h, &e) {
			if last := t.report(ctx, h, *e.Result); last {
				return
			}
		}
		t.release(ctx, e.TaskID)
	})
}

// release ends the task's goroutine, unless the server offered the task again meanwhile:
// then its result is reported again, or it begins now if it had not.
func (t *Runner) release(ctx context.Context, taskID string) {
	t.mu.Lock()
	delete(t.held, taskID)
	t.mu.Unlock()
	if e, ok := t.conf.Journal.get(taskID); ok && !e.Reported && ctx.Err() == nil {
		t.hold(ctx, e, task.Lease{Epoch: e.LeaseEpoch}, false)
	}
}

// Wait returns when every task's goroutine ended.
func (t *Runner) Wait() { t.wg.Wait() }

// resultCall posts a task's result.
func (t *Runner) resultCall(ctx context.Context, taskID string, r task.Result, correlationID string) error {
	err := t.conf.API().Result(ctx, taskID, r, correlationID)
	if apierror.IsRemoved(err) {
		t.conf.Removed()
	}
	return err
}
