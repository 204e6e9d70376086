package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// loadQueue is the task queue of the benchmark's worker.
const loadQueue = "gpuaas-bench"

// stepBudget bounds one activity of a load.
const stepBudget = 2 * time.Minute

// kind is the kind of a step.
type kind string

// The kinds of steps.
const (
	// empty workflows have no steps.
	empty kind = "empty"
	// bareAsync is completed by id immediately after its start.
	bareAsync kind = "bare async"
	// onNode is ours: EnqueueNodeTask, RunNodeTask, NOTIFY, long poll, agent, result, relay.
	onNode kind = "on node"
	// onPeer is an activity on the node's own task queue.
	onPeer kind = "on peer"
)

// job is the input of one workflow.
type job struct {
	Kind  kind
	Steps int
	// Task is the task of each step without its name, for onNode. Queue is the
	// node's task queue, for onPeer.
	Task  activities.TaskSpec
	Queue string
}

// load is a worker that runs jobs and measures their steps.
type load struct {
	client    client.Client
	namespace string
	worker    worker.Worker
	close     func()

	mu    sync.Mutex
	began map[string]time.Time
	took  []time.Duration
	done  sync.WaitGroup // completions in progress
}

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

// newLoad starts a worker on the stack with the product's activity, store and signer.
func (e *env) newLoad(ctx context.Context) (*load, error) {
	s, err := e.openStore(ctx, 0)
	if err != nil {
		return nil, err
	}
	signer, err := e.signer(ctx, s)
	if err != nil {
		s.Close()
		return nil, err
	}
	c, err := temporal.Dial(temporal.Config{Address: e.Getenv("TEMPORAL_ADDRESS"), Namespace: e.Getenv("TEMPORAL_NAMESPACE")})
	if err != nil {
		signer.Close()
		s.Close()
		return nil, err
	}
	l := &load{client: c.SDK(), namespace: c.Namespace(), began: map[string]time.Time{}}
	l.worker = worker.New(c.SDK(), loadQueue, worker.Options{})
	l.worker.RegisterWorkflowWithOptions(l.run, workflow.RegisterOptions{Name: "BenchJob"})
	l.worker.RegisterActivityWithOptions(l.pending, activity.RegisterOptions{Name: "BenchPending"})
	l.worker.RegisterActivity(&activities.Task{Tasks: s.Tasks, NewTasks: activities.TaskSigner{Signer: signer, Env: devEnv}})
	l.close = func() {
		l.worker.Stop()
		l.done.Wait()
		c.Close()
		signer.Close()
		s.Close()
	}
	return l, l.worker.Start()
}

// signer logs in with the worker's role and signs for the newest verifier set.
func (e *env) signer(ctx context.Context, s *store.Store) (*vault.Client, error) {
	v, err := e.vaultAs(ctx, "worker")
	if err != nil {
		return nil, err
	}
	if err := vault.NewSetFollower(s.Identities, v.Follow, silent(), func(bool) {}).Refresh(ctx); err != nil {
		v.Close()
		return nil, err
	}
	return v, nil
}

// run is the workflow. It reads the real clock, because its history is never replayed
// after the run, and a repeated first mark is ignored.
func (l *load) run(ctx workflow.Context, in job) error {
	id := workflow.GetInfo(ctx).WorkflowExecution.ID
	for i := range in.Steps {
		step := fmt.Sprintf("%s-%d", id, i)
		l.begin(step)
		if err := l.step(ctx, in, step); err != nil {
			return err
		}
		l.end(step)
	}
	return nil
}

// step runs one step. Local activities enqueue a node task and read its result, as the
// product's workflows do.
func (l *load) step(ctx workflow.Context, in job, step string) error {
	o := workflow.ActivityOptions{ActivityID: step, StartToCloseTimeout: stepBudget, ScheduleToCloseTimeout: stepBudget}
	name, args := "BenchPending", []any(nil)
	local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: stepBudget})
	switch in.Kind {
	case onNode:
		o.HeartbeatTimeout = task.HeartbeatTimeout
		in.Task.Step = step
		name, args = "RunNodeTask", []any{in.Task}
		if err := workflow.ExecuteLocalActivity(local, "EnqueueNodeTask", activities.EnqueueInput{Task: in.Task}).Get(ctx, nil); err != nil {
			return err
		}
	case onPeer:
		o.TaskQueue = in.Queue
		name = peerActivity
	}
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), name, args...).Get(ctx, nil)
	if err == nil && in.Kind == onNode {
		err = workflow.ExecuteLocalActivity(local, "ReadTaskResult", in.Task).Get(ctx, nil)
	}
	return err
}

// pending is the plain asynchronous activity: left open and completed immediately.
func (l *load) pending(ctx context.Context) error {
	info := activity.GetInfo(ctx)
	l.done.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepBudget)
		defer cancel()
		w := info.WorkflowExecution
		_ = l.client.CompleteActivityByID(ctx, l.namespace, w.ID, w.RunID, info.ActivityID, nil, nil) // a lost completion appears as a workflow timeout
	})
	return activity.ErrResultPending
}

func (l *load) begin(step string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, again := l.began[step]; !again {
		l.began[step] = time.Now()
	}
}

func (l *load) end(step string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.began[step]; ok {
		l.took = append(l.took, time.Since(at))
		delete(l.began, step)
	}
}

// taken returns the durations of the steps since the last call. Unfinished steps are not
// counted.
func (l *load) taken() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := l.took
	l.took, l.began = nil, map[string]time.Time{}
	return took
}

// do runs one job and waits for it.
func (l *load) do(ctx context.Context, in job) error {
	run, err := l.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "bench-" + schema.NewID(), TaskQueue: loadQueue,
		WorkflowExecutionTimeout: 2 * stepBudget}, "BenchJob", in)
	if err != nil {
		return err
	}
	return run.Get(ctx, nil)
}

// closed runs n clients, each of which starts its next job when the last one has ended,
// and returns the number of finished jobs.
func (l *load) closed(ctx context.Context, n int, d time.Duration, next func(client int) job) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var ended float64
	var failed error
	end := time.Now().Add(d)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				err := l.do(ctx, next(i))
				mu.Lock()
				switch {
				case err != nil && failed == nil:
					failed = err
					cancel()
				case err == nil && time.Now().Before(end):
					ended++
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return ended, failed
}

// lateFor is how long an open load waits for its last jobs.
const lateFor = 30 * time.Second

// open starts rate jobs per second for d, independent of earlier ones, waits lateFor for
// the last ones, and returns the number of failed and unfinished jobs. An overloaded
// server loses activities; that is a result and no error, unless all are lost.
func (l *load) open(ctx context.Context, rate int, d time.Duration, next func() job) (lost int, err error) {
	ctx, cancel := context.WithTimeout(ctx, d+lateFor)
	defer cancel()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var group sync.WaitGroup
	var mu sync.Mutex
	started, last := 0, error(nil)
	for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; started++ {
		<-tick.C
		group.Go(func() {
			if err := l.do(ctx, next()); err != nil {
				mu.Lock()
				lost, last = lost+1, err
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if lost < started {
		last = nil
	}
	return lost, last
}
