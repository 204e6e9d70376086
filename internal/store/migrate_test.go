package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
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
