package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

const (
	// wakeRate is the number of tasks per second while wakes are measured.
	wakeRate = 50
	// few is the size for the comparison of latencies.
	few = 100
	// waitingGauge is the API's gauge of waiting polls; the minimal server has it too.
	waitingGauge = "gpuaas_waiting_agents"
	// rampBudget bounds the time until all agents are connected.
	rampBudget = 5 * time.Minute
	// gcEvery is the longest interval between two collections of Go's runtime.
	gcEvery = 2*time.Minute + 10*time.Second
)

// side is one of the two servers.
type side struct {
	name    string
	agents  *child
	metrics string
	memory  string // URL of the runtime's memory metrics
	// wake enqueues a task for the i-th node and returns its id and start time.
	wake func(ctx context.Context, i int) (id string, at time.Time, err error)
}

// parkedBench is the benchmark of waiting polls.
type parkedBench struct{ *env }

// benchParked connects minimal agents to the API and to the minimal server, with the
// same certificates and database, and alternates the measurements.
func benchParked(ctx context.Context, shared *env) error {
	e := parkedBench{shared}
	s, err := e.openStore(ctx, parallel)
	if err != nil {
		return err
	}
	defer s.Close()
	sides, pool, err := e.sides(ctx, s)
	if err != nil {
		return err
	}
	defer pool.Close()
	defer func() {
		for _, side := range sides {
			side.agents.stop()
		}
	}()
	ours, bare := sides[0], sides[1]
	api, err := e.pids(ctx, "api")
	if err != nil {
		return err
	}
	before, err := held(ctx, ours.metrics)
	if err != nil {
		return err
	}
	bareBefore, err := held(ctx, bare.memory)
	if err != nil {
		return err
	}
	resident, err := memoryOf(api["api"])
	if err != nil {
		return err
	}
	small, err := e.wakes(ctx, sides, min(few, e.size))
	if err != nil {
		return err
	}
	if err := e.storm(ctx, ours, bare); err != nil {
		return err
	}
	large, err := e.wakes(ctx, sides, e.size)
	if err != nil {
		return err
	}
	e.most("wake p50", "ms", large["ours"].p50, large["bare"].p50, 1.5)
	e.most("wake p99", "ms", large["ours"].p99, large["bare"].p99, 2)
	e.most(fmt.Sprintf("wake p50 at %d against %d", e.size, min(few, e.size)), "ms", large["ours"].p50, small["ours"].p50, 1.5)
	e.add(figure{Name: "wake p99 at the same two sizes", Unit: "ms", Ours: large["ours"].p99, Other: small["ours"].p99})
	if err := e.parkedMemory(ctx, ours, before, api["api"], resident.Resident); err != nil {
		return err
	}
	bareAfter, err := held(ctx, bare.memory)
	if err != nil {
		return err
	}
	e.add(figure{Name: "the same of the bare server", Unit: "KiB", Ours: (bareAfter.bytes - bareBefore.bytes) / float64(e.size) / 1024})
	e.detail("bare server: heap KiB per agent", (bareAfter.heap-bareBefore.heap)/float64(e.size)/1024)
	e.detail("bare server: stack KiB per agent", (bareAfter.stack-bareBefore.stack)/float64(e.size)/1024)
	return e.failures(ctx, sides)
}

// parkedMemory measures the API's memory per waiting agent, before and after the
// runtime's next collection.
func (e parkedBench) parkedMemory(ctx context.Context, ours side, before runtimeMemory, api int, resident float64) error {
	now, err := memoryOf(api)
	if err != nil {
		return err
	}
	n, first := float64(e.size), runtimeMemory{}
	e.add(figure{Name: "resident memory of the API per agent, after the ramp", Unit: "KiB", Ours: (now.Resident - resident) / n / 1024})
	e.logf("waiting for the API's next garbage collection")
	for end := time.Now().Add(e.span(gcEvery)); ; {
		after, err := held(ctx, ours.metrics)
		if err != nil {
			return err
		}
		if first.collections == 0 {
			first = after
		}
		if after.collections > first.collections+1 || time.Now().After(end) {
			e.number("memory of the API per agent, after GC", "KiB", (after.bytes-before.bytes)/n/1024, 55)
			e.detail("heap KiB per agent", (after.heap-before.heap)/n/1024)
			e.detail("stack KiB per agent", (after.stack-before.stack)/n/1024)
			e.detail("collections while waiting", after.collections-first.collections)
			return nil
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (e parkedBench) failures(ctx context.Context, sides []side) error {
	for _, s := range sides {
		var failed float64
		if err := s.agents.send("failed"); err != nil {
			return err
		}
		if err := s.agents.expect(ctx, time.Minute, "failed", &failed); err != nil {
			return err
		}
		if s.name == "ours" {
			e.add(figure{Name: "failed polls", Ours: failed, Goal: 0.5})
		} else {
			e.detail("failed polls of the bare server", failed)
		}
	}
	return nil
}

// storm reconnects all agents of one side at once, alternating sides.
func (e parkedBench) storm(ctx context.Context, ours, bare side) error {
	shaken, parked := map[string][]float64{}, map[string][]float64{}
	for range e.rounds() {
		for _, s := range []side{bare, ours} {
			handshakes, all, err := e.connect(ctx, s, e.size)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			shaken[s.name] = append(shaken[s.name], float64(e.size)/handshakes)
			parked[s.name] = append(parked[s.name], float64(e.size)/all)
			e.logf("%s: %d agents shook hands in %.1f s and were parked in %.1f s", s.name, e.size, handshakes, all)
		}
	}
	e.least("handshakes a second, all at once", "1/s", median(shaken["ours"]), median(shaken["bare"]), 0.8)
	e.add(figure{Name: "agents parked a second, all at once", Unit: "1/s", Ours: median(parked["ours"]), Other: median(parked["bare"])})
	return nil
}

// connect connects n agents at once and waits until all polls are waiting.
func (e parkedBench) connect(ctx context.Context, s side, n int) (handshakes, parked float64, err error) {
	if err := s.agents.send("connect 0"); err != nil {
		return 0, 0, err
	}
	if err := s.agents.expect(ctx, rampBudget, "connected", &handshakes); err != nil {
		return 0, 0, err
	}
	if err := s.waits(ctx, 0); err != nil {
		return 0, 0, err
	}
	started := time.Now()
	if err := s.agents.send("connect %d", n); err != nil {
		return 0, 0, err
	}
	if err := s.agents.expect(ctx, rampBudget, "connected", &handshakes); err != nil {
		return 0, 0, err
	}
	s.agents.connected = n
	err = s.waits(ctx, n)
	return handshakes, time.Since(started).Seconds(), err
}

// waits waits until n polls are waiting.
func (s side) waits(ctx context.Context, n int) error {
	for end := time.Now().Add(rampBudget); ; {
		m, err := scrape(ctx, s.metrics)
		if err != nil {
			return err
		}
		if int(m[waitingGauge]) == n {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%.0f polls are parked and %d were expected", m[waitingGauge], n)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// latency is the latency of wakes in milliseconds.
type latency struct{ p50, p99 float64 }

// wakes measures wakes of n agents of each side, alternating. It waits for agents that
// are reconnecting.
func (e parkedBench) wakes(ctx context.Context, sides []side, n int) (map[string]latency, error) {
	for _, s := range sides {
		var err error
		if s.agents.connected == n {
			err = s.waits(ctx, n)
		} else {
			_, _, err = e.connect(ctx, s, n)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	p50, p99 := map[string][]float64{}, map[string][]float64{}
	for range e.rounds() {
		for _, s := range sides {
			took, err := e.clock(ctx, s, n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			a, b := quantile(took, 0.5), quantile(took, 0.99)
			p50[s.name], p99[s.name] = append(p50[s.name], a), append(p99[s.name], b)
			e.logf("%s, %d parked: %d wakes, p50 %.2f ms, p99 %.2f ms", s.name, n, len(took), a, b)
		}
	}
	out := map[string]latency{}
	for _, s := range sides {
		out[s.name] = latency{median(p50[s.name]), median(p99[s.name])}
		e.detail(fmt.Sprintf("%s wake p50 ms at %d", s.name, n), out[s.name].p50)
		e.detail(fmt.Sprintf("%s wake p99 ms at %d", s.name, n), out[s.name].p99)
	}
	return out, nil
}

// clock enqueues tasks for random nodes and measures the time from before the INSERT
// until the agent has read the body.
func (e parkedBench) clock(ctx context.Context, s side, n int) ([]time.Duration, error) {
	began := map[string]time.Time{}
	tick := time.NewTicker(time.Second / wakeRate)
	defer tick.Stop()
	for end := time.Now().Add(e.span(8 * time.Second)); time.Now().Before(end); {
		<-tick.C
		id, at, err := s.wake(ctx, rand.N(n)) //nolint:gosec // a load, no secret
		if err != nil {
			return nil, err
		}
		began[id] = at
	}
	took := make([]time.Duration, 0, len(began))
	for len(took) < len(began) {
		var id string
		var at int64
		if err := s.agents.expect(ctx, 30*time.Second, "offer", &id, &at); err != nil {
			return nil, fmt.Errorf("%d of %d wakes arrived: %w", len(took), len(began), err)
		}
		if start, ok := began[id]; ok {
			took = append(took, time.Unix(0, at).Sub(start))
		}
	}
	return took, nil
}

// sides creates the nodes and starts both servers and their agents.
func (e parkedBench) sides(ctx context.Context, s *store.Store) ([]side, *pgxpool.Pool, error) {
	ca, err := e.vaultAs(ctx, "api")
	if err != nil {
		return nil, nil, err
	}
	defer ca.Close()
	nodes, err := e.make(ctx, e.size, ca)
	if err != nil {
		return nil, nil, err
	}
	roots, err := ca.NodeCA(ctx)
	if err != nil {
		return nil, nil, err
	}
	serverCA, err := ca.ServerCA(ctx)
	if err != nil {
		return nil, nil, err
	}
	bareNodes := make([]node, len(nodes))
	for i, n := range nodes {
		bareNodes[i] = node{ID: fmt.Sprint(i), Cert: n.Cert, Key: n.Key}
	}
	files := map[string]any{"nodes.json": nodes, "bare-nodes.json": bareNodes, "node-ca.pem": roots, "server-ca.pem": serverCA}
	if err := e.save(files); err != nil {
		return nil, nil, err
	}
	bare, pool, err := e.bareSide(ctx)
	if err != nil {
		return nil, nil, err
	}
	oursAgents, err := e.spawn(ctx, "role-agents", e.file("nodes.json"), e.Getenv("GPUAAS_NODE_API_URL"), e.file("server-ca.pem"))
	if err != nil {
		return nil, nil, err
	}
	page := e.Getenv("GPUAAS_API_METRICS_URL")
	ours := side{"ours", oursAgents, page, page, oursWake(s, nodes)}
	return []side{ours, bare}, pool, nil
}

func (e parkedBench) file(name string) string { return filepath.Join(e.folder, name) }

func (e parkedBench) save(files map[string]any) error {
	for name, content := range files {
		text, isText := content.(string)
		raw := []byte(text)
		if !isText {
			var err error
			if raw, err = json.Marshal(content); err != nil {
				return err
			}
		}
		if err := os.WriteFile(e.file(name), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (e parkedBench) bareSide(ctx context.Context) (side, *pgxpool.Pool, error) {
	dsn, err := e.database()
	if err != nil {
		return side{}, nil, err
	}
	pool, err := openBare(ctx, dsn)
	if err != nil {
		return side{}, nil, err
	}
	e.roleEnv = []string{varFloorDB + "=" + dsn}
	server, err := e.spawn(ctx, "role-floor", e.file("node-ca.pem"), e.file("floor.pem"))
	if err != nil {
		return side{}, pool, err
	}
	var polls, metrics string
	if err := server.expect(ctx, time.Minute, "listening", &polls, &metrics); err != nil {
		return side{}, pool, err
	}
	_, port, _ := strings.Cut(polls, ":")
	agents, err := e.spawn(ctx, "role-agents", e.file("bare-nodes.json"), "https://localhost:"+port, e.file("floor.pem"))
	if err != nil {
		return side{}, pool, err
	}
	both := agents.stop
	agents.stop = func() { both(); server.stop() }
	return side{"bare", agents, "http://" + metrics + "/metrics", "http://" + metrics + gcPath, bareWake(pool)}, pool, nil
}

func bareWake(pool *pgxpool.Pool) func(context.Context, int) (string, time.Time, error) {
	body := strings.Repeat("task", bodyBytes/4)
	const insert = `WITH t AS (` + bareEnqueue + ` RETURNING id, node) SELECT id::text, pg_notify('bare_node', node::text) FROM t`
	return func(ctx context.Context, i int) (id string, at time.Time, err error) {
		at = time.Now()
		var void any
		err = pool.QueryRow(ctx, insert, i, body).Scan(&id, &void)
		return id, at, err
	}
}

// oursWake enqueues a task that was signed before the measurement.
func oursWake(s *store.Store, nodes []node) func(context.Context, int) (string, time.Time, error) {
	envelope := fakeEnvelope()
	return func(ctx context.Context, i int) (string, time.Time, error) {
		t := nodes[i].spec(schema.NewID())
		owner := task.Owner{WorkflowID: "bench", RunID: "bench", ActivityID: t.Step}
		row, err := s.Tasks.Prepare(ctx, t, owner)
		if err != nil {
			return "", time.Time{}, err
		}
		at := time.Now()
		return row.TaskID, at, s.Tasks.Enqueue(ctx, t, owner, row, envelope)
	}
}

// runtimeMemory is the memory in use by a Go process, without free pages.
type runtimeMemory struct{ bytes, heap, stack, collections float64 }

func held(ctx context.Context, url string) (runtimeMemory, error) {
	m, err := scrape(ctx, url)
	sum := 0.0
	for _, name := range []string{"heap_inuse", "stack_inuse", "mspan_inuse", "mcache_inuse", "buck_hash_sys", "gc_sys", "other_sys"} {
		sum += m["go_memstats_"+name+"_bytes"]
	}
	return runtimeMemory{sum, m["go_memstats_heap_inuse_bytes"], m["go_memstats_stack_inuse_bytes"], m["go_gc_duration_seconds_count"]}, err
}

// scrape reads the unlabeled values of a Prometheus page.
func scrape(ctx context.Context, url string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	out := map[string]float64{}
	for lines := bufio.NewScanner(io.LimitReader(res.Body, 16<<20)); lines.Scan(); {
		var name string
		var v float64
		if _, err := fmt.Sscan(lines.Text(), &name, &v); err == nil {
			out[name] = v
		}
	}
	return out, nil
}
