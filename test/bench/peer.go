package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const warmup = 10 * time.Second

// idleCost is the cost of idle nodes for the servers.
type idleCost struct {
	// memory of the server process per node, and of Postgres, bytes.
	server, postgres float64
	// cores of the server process and of all servers, minus their use without
	// nodes.
	serverCores, allCores float64
}

// peerBench is the comparison with a Temporal worker per node.
type peerBench struct{ *env }

// benchPeer compares N nodes, idle and under jobs, with N workers of Temporal's SDK
// with a queue and a connection each. Each side has a new stack.
func benchPeer(ctx context.Context, shared *env) error {
	e := peerBench{shared}
	theirs, theirTimes, err := e.peerSide(ctx)
	if err != nil {
		return fmt.Errorf("the peer: %w", err)
	}
	if err := e.down(); err != nil {
		e.note("the peer's stack may still have been running: %v", err)
	}
	if err := e.up(ctx, "ours", []string{"--temporal-on-postgres"}); err != nil {
		return err
	}
	ours, times, err := e.ourSide(ctx)
	if err != nil {
		return fmt.Errorf("ours: %w", err)
	}
	const kib = 1024
	e.most("memory per idle node: API and Postgres against Temporal alone", "KiB", (ours.server+ours.postgres)/kib, theirs.server/kib, 1.0/8)
	e.most("the same, server process against server process", "KiB", ours.server/kib, theirs.server/kib, 0)
	e.most("idle cores, server process against server process", "cores", ours.serverCores, theirs.serverCores, 0.1)
	e.most("idle cores, all servers", "cores", ours.allCores, theirs.allCores, 0.1)
	e.most("end to end p50", "ms", median(times.p50), median(theirTimes.p50), 1)
	e.most("end to end p99", "ms", median(times.p99), median(theirTimes.p99), 1)
	return nil
}

// times are the quantiles of each repetition in milliseconds.
type times struct{ p50, p99 []float64 }

func (e peerBench) peerSide(ctx context.Context) (idleCost, times, error) {
	var nodes *child
	return e.measureSide(ctx, "temporal", nil,
		func() (int, error) {
			var err error
			nodes, err = e.spawn(ctx, "role-peer", e.Getenv("TEMPORAL_ADDRESS"), e.Getenv("TEMPORAL_NAMESPACE"), fmt.Sprint(e.size))
			if err != nil {
				return 0, err
			}
			return nodes.cmd.Process.Pid, nodes.expect(ctx, fleetBudget, "ready")
		},
		func() (func() job, error) {
			return func() job { return job{Kind: onPeer, Steps: 1, Queue: peerQueue(rand.N(e.size))} }, nil //nolint:gosec // a load
		},
		func() {
			if nodes != nil {
				nodes.stop()
			}
		})
}

func (e peerBench) ourSide(ctx context.Context) (idleCost, times, error) {
	var f *fleet
	return e.measureSide(ctx, "api", []string{"api", "vault", "worker"},
		func() (int, error) {
			var err error
			if f, err = e.startFleet(ctx, e.size); err != nil {
				return 0, err
			}
			return f.pid(), nil
		},
		func() (func() job, error) {
			nodes, err := e.fleetNodes(ctx)
			return func() job {
				return job{Kind: onNode, Steps: 1, Task: nodes[rand.N(len(nodes))].spec("")} //nolint:gosec // a load
			}, err
		},
		func() {
			if f != nil {
				f.stop()
			}
		})
}

// measureSide measures the servers without nodes, with idle nodes, and under jobs.
// server is the process whose memory is compared.
func (e peerBench) measureSide(ctx context.Context, server string, more []string, start func() (int, error),
	load func() (func() job, error), stop func(),
) (c idleCost, t times, err error) {
	defer stop()
	pids, err := e.pids(ctx, append([]string{"postgres", "temporal"}, more...)...)
	if err != nil {
		return c, t, err
	}
	e.logf("%s: reading it without nodes", server)
	before, err := e.idle(ctx, pids, server, e.span(30*time.Second))
	if err != nil {
		return c, t, err
	}
	e.logf("starting %d nodes at %s", e.size, server)
	nodes, err := start()
	if err != nil {
		return c, t, err
	}
	e.logf("%s: reading it with %d idle nodes", server, e.size)
	with, err := e.idle(ctx, pids, server, e.span(time.Minute))
	if err != nil {
		return c, t, err
	}
	n := float64(e.size)
	c = idleCost{(with.server - before.server) / n, (with.postgres - before.postgres) / n,
		with.serverCores - before.serverCores, with.allCores - before.allCores}
	for name, v := range map[string]float64{"server KiB": c.server / 1024, "Postgres KiB": c.postgres / 1024, "server cores with nodes": with.serverCores,
		"server cores without": before.serverCores, "all cores with nodes": with.allCores, "all cores without": before.allCores} {
		e.detail(server+": "+name, v)
	}
	if m, err := memoryOf(nodes); err == nil {
		e.detail(server+": KiB per node of the nodes' own process", m.Resident/n/1024)
	}
	e.logf("%s: %.0f KiB + Postgres %.0f KiB a node, %.3f cores, all servers %.3f", server, c.server/1024, c.postgres/1024, c.serverCores, c.allCores)
	next, err := load()
	if err != nil {
		return c, t, err
	}
	t, err = e.jobs(ctx, pids, server, next)
	return c, t, err
}

// idle measures memory and cores of idle servers after a pause.
func (e *env) idle(ctx context.Context, pids map[string]int, server string, d time.Duration) (c idleCost, err error) {
	if err := pause(ctx, e.span(warmup)); err != nil {
		return c, err
	}
	m := startMeter(pids)
	if err := pause(ctx, d); err != nil {
		return c, err
	}
	used := m.used()
	own, err := memoryOf(pids[server])
	postgres, pgErr := memoryOf(pids["postgres"])
	return idleCost{own.Resident, postgres.Proportional, used[server] / d.Seconds(), total(used) / d.Seconds()}, errors.Join(err, pgErr)
}

// jobs measures jobs under an open load.
func (e *env) jobs(ctx context.Context, pids map[string]int, server string, next func() job) (t times, err error) {
	l, err := e.newLoad(ctx)
	if err != nil {
		return t, err
	}
	defer l.close()
	for i := range e.rounds() + 1 {
		m, started := startMeter(pids), time.Now()
		lost, err := l.open(ctx, e.rate, e.span(15*time.Second), next)
		if err != nil {
			return t, err
		}
		took := l.taken()
		e.detail(fmt.Sprintf("%s: jobs lost, %d", server, i), float64(lost))
		if i == 0 { // the first round is a warm-up
			continue
		}
		t.p50, t.p99 = append(t.p50, quantile(took, 0.5)), append(t.p99, quantile(took, 0.99))
		e.detail(fmt.Sprintf("%s: cores of all servers under load, %d", server, i), total(m.used())/time.Since(started).Seconds())
		e.logf("%s: %d steps, %d lost, p50 %.1f ms, p99 %.1f ms", server, len(took), lost, t.p50[i-1], t.p99[i-1])
	}
	return t, nil
}
