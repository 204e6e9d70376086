package store_test

import (
	"context"
	"fmt"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

const (
	lockingMigration = `-- +goose Up
ALTER TABLE nodes ADD COLUMN next text NOT NULL DEFAULT 'added';
-- +goose Down
ALTER TABLE nodes DROP COLUMN next;
`
	// concurrentMigration has the form that schema/migrations requires.
	concurrentMigration = `-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '15min';
DROP INDEX CONCURRENTLY IF EXISTS nodes_next_idx;
CREATE INDEX CONCURRENTLY nodes_next_idx ON nodes (region_code);
RESET lock_timeout;
-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS nodes_next_idx;
`
)

// reader is another session with an open transaction.
type reader struct {
	pid uint32
	end func()
}

// reads opens a transaction that has read the nodes.
func (e *env) reads() reader {
	e.t.Helper()
	c, err := pgx.ParseConfig(e.url)
	require.NoError(e.t, err)
	c.RuntimeParams["application_name"] = "nightly report"
	conn, err := pgx.ConnectConfig(e.t.Context(), c)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(e.t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM nodes")
	require.NoError(e.t, err)
	return reader{conn.PgConn().PID(), func() {
		e.t.Helper()
		_, err := conn.Exec(e.t.Context(), "COMMIT")
		require.NoError(e.t, err)
	}}
}

// waitsForLock waits until the migration is in the queue of a lock.
func (e *env) waitsForLock() {
	e.t.Helper()
	harness.Eventually(e.t, "the migration waits for a lock", func() bool {
		return e.number(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'gpuaas-migrate' AND wait_event_type = 'Lock'`) > 0
	})
}

// A migration that waits for a long transaction holds up no other traffic, says for whom
// it waits, and is applied when that transaction ends.
func TestMigrationBehindAReader(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	r := e.reads()
	blocked, done := make(chan postgres.Blockers, 10), make(chan error, 1)
	m := postgres.Migration{URL: e.url, Files: released(t, lockingMigration), Blocked: func(b postgres.Blockers) { blocked <- b }}
	go func() { done <- postgres.Migrate(context.WithoutCancel(t.Context()), m) }()
	by := harness.Receive(t, "the sessions that block", blocked)
	require.Contains(t, by.String(), fmt.Sprintf("pid %d (application \"nightly report\"", r.pid))
	for range 2 { // attempts
		e.waitsForLock()
		_, err := e.Node(t.Context(), n.ID)
		require.NoError(t, err)
	}
	require.Empty(t, done)
	r.end()
	require.NoError(t, harness.Receive(t, "the end of the migration", done))
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM nodes WHERE next = 'added'"))
}

// A migration that does not get its lock names the session that holds it, and changes
// nothing.
func TestMigrationNamesItsBlocker(t *testing.T) {
	e := setup(t)
	r := e.reads()
	err := postgres.Migrate(t.Context(), postgres.Migration{URL: e.url, Files: released(t, lockingMigration), Timeout: time.Millisecond})
	requireKind(t, err, schema.KindServiceUnavailable, "migration_blocked")
	require.ErrorContains(t, err, "9999_next.sql")
	require.ErrorContains(t, err, fmt.Sprintf(`pid %d (application "nightly report", user "gpuaas", idle in transaction, transaction since 20`, r.pid))
	require.Contains(t, schema.AsError(err).Next, fmt.Sprintf("SELECT pg_terminate_backend(%d); then: gpuaas admin setup", r.pid))
	require.Zero(t, e.number("SELECT count(*) FROM goose_db_version WHERE version_id = 9999"))
}

// An index that a stopped migration left invalid is made again.
func TestIndexAfterAStoppedMigration(t *testing.T) {
	e := setup(t)
	r := e.reads()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	m := postgres.Migration{URL: e.url, Files: released(t, concurrentMigration)}
	go func() { done <- postgres.Migrate(ctx, m) }()
	e.waitsForLock()
	stop()
	require.Error(t, harness.Receive(t, "the end of the migration", done))
	const valid = "SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('nodes_next_idx') AND indisvalid"
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM pg_class WHERE relname = 'nodes_next_idx'"))
	require.Zero(t, e.number(valid))
	r.end()
	require.NoError(t, postgres.Migrate(t.Context(), m))
	require.Equal(t, int64(1), e.number(valid))
}

// A host that an earlier release accepted is renamed, with an audit event, unless the node
// has an open operation, whose workflow ID contains the host.
func TestInvalidHostIsRenamed(t *testing.T) {
	t.Parallel()
	url, before := pgtest.Empty(t), fstest.MapFS{}
	for name, file := range released(t, "") {
		if name < "0008" {
			before[name] = file
		}
	}
	require.NoError(t, postgres.Migrate(t.Context(), postgres.Migration{URL: url, Files: before}))
	raw, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(raw.Close)
	id := schema.NewID()
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := raw.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	exec(`INSERT INTO nodes (node_id, host, state, sku, gpus_total, region_code, onboarding_mode, lifecycle_class, port)
		VALUES ($1, 'gpu_1 x', 'active', 'h100', 0, 'r', 'byo', 'persistent', 22)`, id)
	exec(`INSERT INTO operations (operation_id, node_id, op_seq, action, status, actor, workflow_id, run_id, claim)
		VALUES ($1, $2, 1, 'drain', 'running', 'a', 'w', 'r', '{}')`, schema.NewID(), id)
	host := func() (host string) {
		t.Helper()
		require.NoError(t, raw.QueryRow(t.Context(), "SELECT host FROM nodes WHERE node_id = $1", id).Scan(&host))
		return host
	}

	err = store.Migrate(t.Context(), url)
	require.ErrorContains(t, err, id)
	require.ErrorContains(t, err, "then run gpuaas admin setup again")
	require.Equal(t, "gpu_1 x", host())

	exec("UPDATE operations SET status = 'completed', ended_at = now()")
	raw.Reset()
	require.NoError(t, store.Migrate(t.Context(), url))
	raw.Reset()
	require.Equal(t, "renamed-"+id, host())
	var renamed int
	require.NoError(t, raw.QueryRow(t.Context(), `SELECT count(*) FROM audit_events
		WHERE stream = $1 AND action = 'nodes.set' AND detail ->> 'previous_host' = 'gpu_1 x'`, id).Scan(&renamed))
	require.Equal(t, 1, renamed)
}
