package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// clients is the number of concurrent jobs; more would only wait.
	clients = 32
	// stepsPerJob is the number of steps per job.
	stepsPerJob = 3
	fleetBudget = 15 * time.Minute
	// sayEvery is the interval of progress messages.
	sayEvery = 10 * time.Second
)

// benchStep compares a step on a node with a plain asynchronous activity: CPU of all
// processes of the stack, and jobs per second.
func benchStep(ctx context.Context, e *env) error {
	f, err := e.startFleet(ctx, e.size)
	if err != nil {
		return err
	}
	defer f.stop()
	l, err := e.newLoad(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	nodes, err := e.fleetNodes(ctx)
	if err != nil {
		return err
	}
	parts, err := e.pids(ctx, "postgres", "temporal", "vault", "worker", "api")
	if err != nil {
		return err
	}
	parts["load"], parts["fleet"] = os.Getpid(), f.pid()
	n := min(clients, len(nodes))
	job := map[kind]func(int) job{
		empty:     func(int) job { return job{Kind: empty} },
		bareAsync: func(int) job { return job{Kind: bareAsync, Steps: stepsPerJob} },
		onNode:    func(i int) job { return job{Kind: onNode, Steps: stepsPerJob, Task: nodes[i].spec("")} },
	}
	rates, costs := map[kind][]float64{}, map[kind][]float64{}
	for i := range e.rounds() + 1 {
		for _, k := range []kind{empty, bareAsync, onNode} {
			meter := startMeter(parts)
			started := time.Now()
			jobs, err := l.closed(ctx, n, e.span(8*time.Second), job[k])
			if err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
			used, took := meter.used(), time.Since(started).Seconds()
			if i == 0 || jobs == 0 { // the first round is a warm-up
				continue
			}
			rates[k] = append(rates[k], jobs/e.span(8*time.Second).Seconds())
			// Jobs that ended after the deadline used CPU too.
			all := float64(len(l.taken()))/stepsPerJob + jobs*boolNumber(k == empty)
			costs[k] = append(costs[k], total(used)/max(all, 1))
			e.split(k, used, took)
			e.logf("%s: %.1f jobs/s, %.1f ms CPU a job, %v", k, jobs/took, 1000*total(used)/max(all, 1), used)
		}
		l.taken()
	}
	ms := func(k kind) float64 { return 1000 * median(costs[k]) }
	e.most("CPU of a step, workflow's share included", "ms", ms(onNode)/stepsPerJob, ms(bareAsync)/stepsPerJob, 1.5)
	e.add(figure{Name: "CPU of a step alone", Unit: "ms", Ours: (ms(onNode) - ms(empty)) / stepsPerJob, Other: (ms(bareAsync) - ms(empty)) / stepsPerJob})
	e.least(fmt.Sprintf("jobs a second, %d clients", n), "1/s", median(rates[onNode]), median(rates[bareAsync]), 0.7)
	return nil
}

func boolNumber(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// split records the cores of each part.
func (e *env) split(k kind, used map[string]float64, took float64) {
	for part, seconds := range used {
		e.detail(fmt.Sprintf("cores of %s, %s", part, k), seconds/took)
	}
}

// fleet is a running gpuaas dev fleet.
type fleet struct {
	stop func()
	pid  func() int
}

// startFleet starts n real agents with simulated executors and waits until all of them
// poll.
func (e *env) startFleet(ctx context.Context, n int) (*fleet, error) {
	e.logf("enrolling a fleet of %d", n)
	cmd := e.Command(context.WithoutCancel(ctx), "dev", "fleet", fmt.Sprint(n), "--dir", e.Dir, "--task-time", "0s", "--report-every", "1s")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	up := make(chan bool, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.follow(out, n, up)
		_ = cmd.Wait() // it exits by a signal
	}()
	f := &fleet{pid: func() int { return cmd.Process.Pid }, stop: sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have exited
		<-ended
	})}
	late := time.NewTimer(fleetBudget)
	defer late.Stop()
	select {
	case <-up:
		return f, e.active(ctx, n)
	case <-ended:
		return nil, fmt.Errorf("the fleet exited: %s", stderr.String())
	case <-ctx.Done():
	case <-late.C:
	}
	f.stop()
	return nil, fmt.Errorf("the fleet of %d was not up: %s", n, stderr.String())
}

// follow reads the fleet's output to its end. It logs the number of polling agents, and
// sends to up once all n poll.
func (e *env) follow(lines io.Reader, n int, up chan<- bool) {
	said, all := time.Now(), false
	for s := bufio.NewScanner(lines); s.Scan(); {
		_, rest, _ := strings.Cut(s.Text(), " polling=")
		polling, _, _ := strings.Cut(rest, " ")
		switch {
		case all || polling == "":
		case polling == fmt.Sprint(n):
			all = true
			up <- true
		case time.Since(said) > sayEvery:
			said = time.Now()
			e.logf("%s of %d agents poll", polling, n)
		}
	}
}

// active waits until n nodes are enrolled.
func (e *env) active(ctx context.Context, n int) error {
	s, err := e.openStore(ctx, 1)
	if err != nil {
		return err
	}
	defer s.Close()
	for end := time.Now().Add(fleetBudget); ; {
		nodes, err := activeNodes(ctx, s)
		if err != nil {
			return err
		}
		if len(nodes) >= n {
			e.logf("%d nodes are active", len(nodes))
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d nodes are active after %s", len(nodes), n, fleetBudget)
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// fleetNodes claims every active node for an operation that remains open.
func (e *env) fleetNodes(ctx context.Context) ([]node, error) {
	s, err := e.openStore(ctx, 4)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	nodes, err := claimAll(ctx, s)
	e.logf("%d nodes are claimed for tasks", len(nodes))
	return nodes, err
}

// activeNodes lists the names of the active nodes.
func activeNodes(ctx context.Context, s *store.Store) ([]wire.NodeView, error) {
	q := adminapi.NodeQuery{Page: adminapi.Page{Limit: wire.MaxPage}, View: adminapi.ViewName,
		States: []lifecycle.NodeState{lifecycle.NodeActive}}
	for all := []wire.NodeView{}; ; {
		nodes, next, err := s.Admin.ListNodes(ctx, q)
		if all = append(all, nodes...); err != nil || next == nil {
			return all, err
		}
		q.After = next
	}
}

func claimAll(ctx context.Context, s *store.Store) ([]node, error) {
	views, err := activeNodes(ctx, s)
	if err != nil {
		return nil, err
	}
	var nodes []node
	for _, v := range views {
		c, err := claim(ctx, s, v, lifecycle.ActionDrain)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node{ID: v.ID, Fence: c.Fence})
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("no node of the fleet is active")
	}
	return nodes, nil
}
