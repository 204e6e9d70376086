package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// conns is the number of concurrent connections.
	conns = 16
	// bodyBytes is the size of a task's signed body, resultBytes that of a result.
	bodyBytes, resultBytes = 2 << 10, 512
	// repetitions alternate between the two sides, so that a change in load affects
	// both.
	repetitions = 3
)

// The minimal implementations: three plain transactions, with a NOTIFY in the first, and
// with an outbox row and a NOTIFY in the last too.
const plain, woken, full = "bare", "bare with NOTIFY", "bare with NOTIFY, outbox and NOTIFY"

// benchStore compares the three transactions of a step in our repository with three
// plain ones of the same shape.
func benchStore(ctx context.Context, e *env) error {
	// Without the other servers: the API's relay would deliver the results.
	if err := e.stopParts(ctx, "api", "worker", "temporal", "vault"); err != nil {
		return err
	}
	dsn, err := e.database()
	if err != nil {
		return err
	}
	l, err := store.NewListener(dsn, silent()) // as in the API: a result wakes the relay of its process
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, store.Config{URL: dsn, MaxConns: conns, Relaying: l})
	if err != nil {
		return err
	}
	defer s.Close()
	nodes, err := e.make(ctx, e.size, nil)
	if err != nil {
		return err
	}
	bare, err := openBare(ctx, dsn)
	if err != nil {
		return err
	}
	defer bare.Close()
	written := func() (n int64) {
		_ = bare.QueryRow(ctx, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&n) // a failed read counts as 0 commits
		return n
	}
	sides := []struct {
		name  string
		cycle cycle
	}{
		{"ours", oursCycle(s, nodes)},
		{plain, bareCycle(bare, bareEnqueue, bareComplete)},
		{woken, bareCycle(bare, bareEnqueueWake, bareComplete)},
		{full, bareCycle(bare, bareEnqueueWake, bareCompleteOut)},
	}
	parts, err := e.pids(ctx, "postgres")
	if err != nil {
		return err
	}
	parts["client"] = os.Getpid()
	rates, commits := map[string][]float64{}, 0.0
	for range e.rounds() {
		for _, side := range sides {
			before, meter := written(), startMeter(parts)
			n, err := e.cycles(ctx, side.cycle)
			if err != nil {
				return fmt.Errorf("%s: %w", side.name, err)
			}
			rates[side.name] = append(rates[side.name], n/e.span(5*time.Second).Seconds())
			if side.name == "ours" {
				commits = float64(written()-before) / n
			}
			for part, seconds := range meter.used() {
				e.detail(fmt.Sprintf("%s: CPU ms of %s a cycle", side.name, part), 1000*seconds/n)
			}
			e.logf("%s: %.0f cycles/s, CPU s %v", side.name, n/e.span(5*time.Second).Seconds(), meter.used())
		}
	}
	ours := median(rates["ours"])
	e.least("cycles a second, 16 connections, against three plain transactions", "1/s", ours, median(rates[plain]), 0.7)
	e.least("the same against ones with NOTIFY in the enqueue", "1/s", ours, median(rates[woken]), 0.7)
	e.least("the same against ones with outbox row and NOTIFY in the completion too", "1/s", ours, median(rates[full]), 0.7)
	e.number("writing transactions of a step", "", commits, 3.1)
	e.note("a step's transactions are counted by the server for all of its databases, its own few included")
	return nil
}

// cycle is one enqueue, claim and complete for the i-th node on the w-th connection.
type cycle func(ctx context.Context, w, i int) error

// cycles runs cycles on every connection for a while and counts them. Each connection
// has its own nodes.
func (e *env) cycles(ctx context.Context, do cycle) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := time.Now().Add(e.span(5 * time.Second))
	var done atomic.Int64
	var group sync.WaitGroup
	for w := range conns {
		group.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				i := rand.N(e.size/conns)*conns + w //nolint:gosec // a load, no secret
				if err := do(ctx, w, i); err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	group.Wait()
	return float64(done.Load()), context.Cause(ctx)
}

func oursCycle(s *store.Store, nodes []node) cycle {
	envelope, body := fakeEnvelope(), fakeResult()
	return func(ctx context.Context, _, i int) error {
		n := nodes[i]
		t := n.spec(schema.NewID())
		owner := task.Owner{WorkflowID: n.Fence.OperationID, RunID: n.Fence.OperationID, ActivityID: t.Step}
		row, err := s.Tasks.Prepare(ctx, t, owner)
		if err != nil {
			return err
		}
		if err := s.Tasks.Enqueue(ctx, t, owner, row, envelope); err != nil {
			return err
		}
		offer, err := s.Tasks.NextTask(ctx, n.caller(), wire.PollRequest{AgentSession: "bench"}, task.LeaseDuration, nil)
		if err != nil {
			return err
		}
		if offer == nil {
			return fmt.Errorf("no task was dispatched to node %s", n.ID)
		}
		now := time.Now().UTC()
		_, err = s.Tasks.Result(ctx, n.caller(), offer.TaskID, nodeapi.ReceivedResult{Result: task.Result{LeaseEpoch: offer.Lease.Epoch,
			Status: task.Succeeded, Output: body, StartedAt: now, FinishedAt: now}})
		return err
	}
}

// fakeEnvelope has the form of a signed task. Only agents verify it.
func fakeEnvelope() []byte {
	text, _ := json.Marshal(map[string]any{"payloadType": task.PayloadType, //nolint:errchkjson // strings always encode
		"payload": base64.StdEncoding.EncodeToString(make([]byte, bodyBytes*3/4)), "signatures": []string{}})
	return text
}

func fakeResult() json.RawMessage {
	text, _ := json.Marshal(base64.StdEncoding.EncodeToString(make([]byte, resultBytes*3/4))) //nolint:errchkjson // as above
	return text
}

const bareSchema = `
CREATE TABLE bare_tasks (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, node int NOT NULL, body text NOT NULL,
    status text NOT NULL DEFAULT 'pending', epoch bigint NOT NULL DEFAULT 0, lease_until timestamptz, result text);
CREATE INDEX bare_open ON bare_tasks (node, id) WHERE status IN ('pending', 'leased');
CREATE TABLE bare_outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, task bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now())`

const (
	bareEnqueue = `INSERT INTO bare_tasks (node, body) VALUES ($1, $2)`
	bareClaim   = `UPDATE bare_tasks SET status = 'leased', epoch = epoch + 1, lease_until = now() + interval '1 minute'
WHERE id = (SELECT id FROM bare_tasks WHERE node = $1 AND status = 'pending' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, epoch, body`
	bareComplete = `UPDATE bare_tasks SET status = 'done', result = $3 WHERE id = $1 AND epoch = $2 AND status = 'leased'`
	// The same with the needs of a real queue: a wake, and delivery of the result.
	bareEnqueueWake = `WITH t AS (` + bareEnqueue + ` RETURNING node) SELECT pg_notify('bare_node', node::text) FROM t`
	bareCompleteOut = `WITH t AS (` + bareComplete + ` RETURNING id), o AS (INSERT INTO bare_outbox (task) SELECT id FROM t RETURNING id)
SELECT pg_notify('bare_outbox', '') FROM o`
)

// openBare opens the same database and creates the tables of the minimal queue.
func openBare(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	c.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, bareSchema); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

func bareCycle(pool *pgxpool.Pool, enqueue, complete string) cycle {
	body, result := strings.Repeat("task", bodyBytes/4), string(fakeResult())
	return func(ctx context.Context, _, i int) error {
		if _, err := pool.Exec(ctx, enqueue, i, body); err != nil {
			return err
		}
		var id, epoch int64
		var text string
		if err := pool.QueryRow(ctx, bareClaim, i).Scan(&id, &epoch, &text); err != nil {
			return err
		}
		_, err := pool.Exec(ctx, complete, id, epoch, result)
		return err
	}
}
