package store_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// stuckBudget is the time in which the oldest of 5,000 parked operations must be listed. It takes
// a fraction of a second on a machine that is not busy.
const stuckBudget = 20 * time.Second

// TestOldestOfManyStuck lists 5,000 parked operations among 50,000 that ended and 5,000
// waiting enrollments. The oldest park is of the operation that started last.
func TestOldestOfManyStuck(t *testing.T) {
	e := setup(t)
	e.register()
	e.exec(`INSERT INTO nodes SELECT (jsonb_populate_record(n, jsonb_build_object('node_id', gen_random_uuid(), 'host', 'many-' || i, 'state', 'active'))).*
		FROM nodes n, generate_series(1, 10000) i`)
	e.exec(`INSERT INTO operations (operation_id, node_id, op_seq, action, status, stuck, document, actor, workflow_id, run_id, claim, started_at)
		SELECT gen_random_uuid(), node_id, 100, CASE WHEN i <= 5000 THEN 'drain' ELSE 'enroll' END, CASE WHEN i <= 5000 THEN 'parked' ELSE 'running' END,
			CASE WHEN i <= 5000 THEN jsonb_build_object('phase', 'cordon', 'reason', 'agent_silent', 'waiting_on', 'agent', 'message', repeat('x', 1000), 'since', now() - make_interval(secs => i)) END,
			jsonb_build_object('operation', jsonb_build_object('deadline_at', now() + interval '1 hour')), 'ops', 'w', 'r', '{}', now() - make_interval(secs => 10000 - i)
		FROM (SELECT node_id, split_part(host, '-', 2)::int AS i FROM nodes WHERE host LIKE 'many-%') n`)
	e.exec(`INSERT INTO operations (operation_id, node_id, op_seq, action, status, actor, workflow_id, run_id, claim, ended_at)
		SELECT gen_random_uuid(), node_id, k, 'drain', 'completed', 'ops', 'w', 'r', '{}', now() FROM nodes, generate_series(1, 5) k WHERE host LIKE 'many-%'`)
	ctx, cancel := context.WithTimeout(t.Context(), stuckBudget)
	defer cancel()
	q := adminapi.OperationQuery{Page: adminapi.Page{Limit: 100}}
	stuck, next, err := e.ListStuck(ctx, q)
	require.NoError(t, err)
	all, err := e.CountStuck(ctx, q)
	require.NoError(t, err)
	require.Equal(t, 5000, all)
	require.Equal(t, "many-5000", stuck[0].Host)
	requireOldestFirst(t, stuck)

	q.After = next
	rest, err := e.CountStuck(ctx, q)
	require.NoError(t, err)
	require.Equal(t, 4900, rest)
	second, _, err := e.ListStuck(ctx, q)
	require.NoError(t, err)
	require.Equal(t, "many-4900", second[0].Host, "the page continues after the one before")
}

func requireOldestFirst(t *testing.T, stuck []wire.StuckOperation) {
	t.Helper()
	for i := range len(stuck) - 1 {
		require.False(t, stuck[i+1].Stuck.Since.Before(stuck[i].Stuck.Since), "row %d", i)
	}
}

// TestStuckReadsNoEndedOperation: the plan reads the open operations by their index.
func TestStuckReadsNoEndedOperation(t *testing.T) {
	e := setup(t)
	conn, err := pgx.Connect(t.Context(), e.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "SET enable_seqscan = off")
	require.NoError(t, err)
	for name, sql := range store.StuckSQL() {
		rows, err := conn.Query(t.Context(), "EXPLAIN "+sql, 100)
		require.NoError(t, err, name)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err, name)
		require.Contains(t, strings.Join(plan, "\n"), "operations_node_unended_idx", name)
	}
}

// A message that is minutes old is a fault. One that was just written, or whose workflow
// is gone, is not.
func TestFaultOfOutbox(t *testing.T) {
	e := setup(t)
	insert := `INSERT INTO outbox (workflow_id, event, created_at, last_error, orphaned_at) VALUES ('node:x', '{}', now() - make_interval(secs => $1), $2, $3)`
	e.exec(insert, 5, "", nil)
	e.exec(insert, 3600, "gone", time.Now())
	faults, err := e.Admin.Faults(t.Context())
	require.NoError(t, err)
	require.Empty(t, faults)
	e.exec(insert, 120, "a later failure", nil)
	e.exec(insert, 600, "Temporal at t:7233 does not respond", nil)
	faults, err = e.Admin.Faults(t.Context())
	require.NoError(t, err)
	require.Len(t, faults, 1)
	require.Equal(t, []string{"outbox", "undelivered"}, []string{faults[0].Component, faults[0].Reason})
	require.Equal(t, "2 results and events of nodes do not reach Temporal, the oldest for 10m: Temporal at t:7233 does not respond", faults[0].Message)
}
