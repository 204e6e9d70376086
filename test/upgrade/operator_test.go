package upgrade

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

const (
	// atOnce is the number of requests that the operators send at a time.
	atOnce = 8
	// repeatAfter is the pause before a request without an answer is repeated.
	repeatAfter = time.Second
)

// expected is how an operation must end.
type expected struct {
	host   string
	action lifecycle.Action
	status lifecycle.OperationState
}

// operators start operations through the admin API, and decide about those that park. Each request
// has an Idempotency-Key, and is repeated with it until it has an answer.
type operators struct {
	t    *testing.T
	c    *control
	http *http.Client
	db   *pgxpool.Pool
	// most is the number of open operations at which no more are started.
	most int

	mu sync.Mutex
	// started are the operations that the API accepted, by ID.
	started map[string]*expected
	// turns counts the operations of each node, which selects the next action.
	turns map[string]int
	// refused counts the rejected requests, by reason.
	refused map[string]int
	// repeated counts the requests that were sent again, retries the decisions of that name.
	repeated, retries int
}

func newOperators(t *testing.T, c *control, most int) *operators {
	t.Helper()
	url, err := os.ReadFile(filepath.Join(c.stack.Dir, "secrets", "database-url"))
	require.NoError(t, err)
	db, err := pgxpool.New(t.Context(), strings.TrimSpace(string(url)))
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return &operators{t: t, c: c, db: db, most: most, http: &http.Client{Timeout: budget}, started: map[string]*expected{}, turns: map[string]int{}, refused: map[string]int{}}
}

// post sends a request until it has an answer that is not 503, and decodes an answer of success into v.
func (o *operators) post(ctx context.Context, path string, body, v any) (ok bool) {
	key := schema.NewID()
	for {
		answer, err := harness.Do(ctx, o.http, http.MethodPost, "http://"+o.c.admin.address()+"/api/v1/admin/"+path, body,
			"Authorization", "Bearer "+o.c.stack.Getenv("GPUAAS_API_TOKEN"), "Content-Type", "application/json", "Idempotency-Key", key)
		switch {
		case err == nil && answer.Status/100 == 2:
			return v == nil || json.Unmarshal(answer.Body, v) == nil
		case err == nil && answer.Status/100 == 4:
			o.mu.Lock()
			o.refused[fmt.Sprintf("%d %s %s", answer.Status, path[strings.LastIndex(path, "/")+1:], answer.Body)]++
			o.mu.Unlock()
			return false
		}
		o.mu.Lock()
		o.repeated++
		o.mu.Unlock()
		select {
		case <-ctx.Done():
			return false
		case <-time.After(repeatAfter):
		}
	}
}

// start starts an operation.
func (o *operators) start(ctx context.Context, host string, action lifecycle.Action, options lifecycle.Options) {
	var r wire.LifecycleResponse
	if !o.post(ctx, "nodes/"+host+"/"+string(action), wire.LifecycleRequest{Reason: "upgrade test", Options: options}, &r) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.started[r.Operation.OperationID] = &expected{host, action, lifecycle.OperationCompleted}
}

// decide sends a decision about a parked operation.
func (o *operators) decide(ctx context.Context, operation string, d lifecycle.Decision) {
	if !o.post(ctx, "operations/"+operation+"/"+string(d), wire.ResolveOperation{Reason: "upgrade test"}, nil) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if d == lifecycle.DecisionCancel {
		o.started[operation].status = lifecycle.OperationCanceled
		return
	}
	o.retries++
}

// next is the action that follows in the state of a node: each node goes through all actions.
func next(state lifecycle.NodeState, turn int) (lifecycle.Action, lifecycle.Options) {
	switch state {
	case lifecycle.NodeActive:
		switch turn % 4 {
		case 0:
			return lifecycle.ActionDrain, lifecycle.Options{}
		case 1:
			return lifecycle.ActionProvision, lifecycle.Options{}
		case 2:
			return lifecycle.ActionRetire, lifecycle.Options{Drain: true}
		}
		return lifecycle.ActionQuarantine, lifecycle.Options{}
	case lifecycle.NodeDrained, lifecycle.NodeRetired:
		return lifecycle.ActionReactivate, lifecycle.Options{}
	case lifecycle.NodeQuarantined:
		return lifecycle.ActionRelease, lifecycle.Options{}
	}
	return "", lifecycle.Options{}
}

// idleNode is a node of the fleet without an open operation.
type idleNode struct {
	Host  string
	State lifecycle.NodeState
}

// idle are random idle nodes: as many as operations may be started.
func (o *operators) idle(ctx context.Context) ([]idleNode, error) {
	rows, err := o.db.Query(ctx, `SELECT host, state FROM nodes n WHERE host LIKE $1 || '-%'
		AND NOT EXISTS (SELECT FROM operations o WHERE o.node_id = n.node_id AND o.ended_at IS NULL)
		ORDER BY random() LIMIT (SELECT greatest($2 - count(*), 0) FROM operations WHERE ended_at IS NULL)`, prefix, o.most)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[idleNode])
}

// round starts operations on idle nodes of the fleet.
func (o *operators) round(ctx context.Context) error {
	nodes, err := o.idle(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, n := range nodes {
		action, options := next(n.State, o.turns[n.Host]+int(n.Host[len(n.Host)-1]))
		if action == "" {
			continue
		}
		o.turns[n.Host]++
		group.Go(func() error {
			o.start(ctx, n.Host, action, options)
			return nil
		})
	}
	return group.Wait()
}

// number reads one number from the database.
func (o *operators) number(sql string, args ...any) (n int) {
	o.t.Helper()
	require.NoError(o.t, o.db.QueryRow(o.t.Context(), sql, args...).Scan(&n))
	return n
}

// open is the number of operations that have not ended.
func (o *operators) open() int {
	o.t.Helper()
	return o.number("SELECT count(*) FROM operations WHERE ended_at IS NULL")
}

// openOperation is an operation that has not ended.
type openOperation struct {
	ID     string
	Action lifecycle.Action
	Status lifecycle.OperationState
}

// opened are the operations that have not ended.
func (o *operators) opened() []openOperation {
	o.t.Helper()
	rows, err := o.db.Query(o.t.Context(), "SELECT operation_id::text, action, status FROM operations WHERE ended_at IS NULL")
	require.NoError(o.t, err)
	open, err := pgx.CollectRows(rows, pgx.RowToStructByPos[openOperation])
	require.NoError(o.t, err)
	return open
}

// stillOpen is the number of those operations that have not ended.
func (o *operators) stillOpen(of []openOperation) int {
	o.t.Helper()
	ids := make([]string, 0, len(of))
	for _, operation := range of {
		ids = append(ids, operation.ID)
	}
	return o.number("SELECT count(*) FROM operations WHERE ended_at IS NULL AND operation_id::text = ANY ($1)", ids)
}

// runningTask is a task that a node executes.
type runningTask struct{ ID, Operation string }

// running are the tasks of a type that nodes execute, at most n.
func (o *operators) running(kind string, n int) []runningTask {
	o.t.Helper()
	rows, err := o.db.Query(o.t.Context(), `SELECT task_id::text, operation_id::text FROM node_tasks
		WHERE type = $1 AND status = 'running' AND cancel_requested_at IS NULL ORDER BY created_at LIMIT $2`, kind, n)
	require.NoError(o.t, err)
	tasks, err := pgx.CollectRows(rows, pgx.RowToStructByPos[runningTask])
	require.NoError(o.t, err)
	return tasks
}

// park cancels the tasks of n operations, which then wait for a decision, and returns these. An operation
// whose task ends before its node has the cancellation does not park, and is replaced by another one.
func (o *operators) park(ctx context.Context, n int) (parked []string) {
	o.t.Helper()
	harness.Poll(o.t, func() bool {
		var canceled []string
		for _, task := range o.running("workload.drain", n-len(parked)) {
			if o.post(ctx, "tasks/"+task.ID+"/cancel", map[string]string{"reason": "upgrade test"}, nil) {
				canceled = append(canceled, task.Operation)
			}
		}
		harness.Poll(o.t, func() bool {
			return o.number("SELECT count(*) FROM operations WHERE ended_at IS NULL AND status <> 'parked' AND operation_id::text = ANY ($1)", canceled) == 0
		}, budget, every, "the operations park or end")
		parked = append(parked, o.parked(canceled)...)
		return len(parked) >= n
	}, budget, every, "tasks that run")
	return parked
}

// parked returns those of the operations that are parked.
func (o *operators) parked(operations []string) []string {
	o.t.Helper()
	rows, err := o.db.Query(o.t.Context(), "SELECT operation_id::text FROM operations WHERE status = 'parked' AND operation_id::text = ANY ($1)", operations)
	require.NoError(o.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(o.t, err)
	return ids
}

// work starts operations on idle nodes until the context ends.
func (o *operators) work(ctx context.Context) error {
	tick := time.NewTicker(repeatAfter)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := o.round(context.WithoutCancel(ctx)); err != nil { // a request continues
			return err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}
