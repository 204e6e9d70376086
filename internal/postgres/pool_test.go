package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

func TestPoolSize(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t, func(context.Context, string) error { return nil })
	bounded := url + "&pool_max_conns=3"
	for name, tc := range map[string]struct {
		url  string
		max  int32
		want int
	}{
		"default":     {url, 0, defaultMaxConns},
		"of the URL":  {bounded, 0, 3},
		"of a config": {url, 7, 7},
		"of both":     {bounded, 7, 7},
	} {
		db, err := Open(t.Context(), Config{URL: tc.url, MaxConns: tc.max})
		require.NoError(t, err, name)
		require.Equal(t, tc.want, db.Size(), name)
		db.Close()
	}

	// A listener has a connection of its own, to which the parameter means nothing.
	connected := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	l := newListener(t, bounded, connected)
	go func() { ended <- l.Run(ctx) }()
	harness.Receive(t, "the listener connects", connected)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// A caller that cancels its call in the middle of a statement does not cost the database a
// connection: the next call uses the same one.
func TestCanceledCallKeepsItsConnection(t *testing.T) {
	t.Parallel()
	db, err := Open(t.Context(), Config{URL: pgtest.New(t, func(context.Context, string) error { return nil }), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	backend := func(ctx context.Context) (pid int, err error) {
		err = db.Call(ctx, "reading", func(ctx context.Context) error {
			return db.Pool().QueryRow(ctx, "SELECT pg_backend_pid() FROM pg_sleep(0.2)").Scan(&pid)
		})
		return pid, err
	}
	before, err := backend(t.Context())
	require.NoError(t, err)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(50*time.Millisecond, cancel)
		_, _ = backend(ctx)
		timer.Stop()
		cancel()
	}
	after, err := backend(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = backend(ctx)
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err), "a call that was canceled before it began")
}

// A call whose deadline passes in the middle of a statement does not continue: a replica
// that is cut off from its database must answer by then. The error is not that of a cancel,
// which an activity reports as its own and does not repeat.
func TestDeadlineEndsStatement(t *testing.T) {
	t.Parallel()
	db, err := Open(t.Context(), Config{URL: pgtest.New(t, func(context.Context, string) error { return nil }), MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = db.Call(ctx, "reading", func(ctx context.Context) error {
		_, err := db.Pool().Exec(ctx, "SELECT pg_sleep(60)")
		return err
	})
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	require.NotErrorIs(t, err, context.Canceled)
}

// The first statement after a restart of the server succeeds, although its connection had ended.
func TestStatementAfterRestart(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t, func(context.Context, string) error { return nil })
	db, err := Open(t.Context(), Config{URL: url})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	admin, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = admin.Close(context.WithoutCancel(t.Context())) })
	read := func(ctx context.Context, q interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}) (pid int, err error) {
		err = q.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid)
		return pid, err
	}
	for name, statement := range map[string]func() error{
		"a statement": func() error {
			return db.Retry(func() error {
				_, err := read(t.Context(), db.Pool())
				return err
			})
		},
		"a transaction": func() error {
			return db.Tx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				_, err := read(ctx, tx)
				return err
			})
		},
	} {
		fill(t, db, 2)
		var ended int
		require.NoError(t, admin.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&ended))
		require.Greater(t, ended, 1, "the one that follows a failed one has ended too")
		require.NoError(t, statement(), name)
	}
}

// fill makes the pool have n idle connections.
func fill(t *testing.T, db *DB, n int) {
	t.Helper()
	conns := make([]*pgxpool.Conn, n)
	for i := range conns {
		var err error
		conns[i], err = db.Pool().Acquire(t.Context())
		require.NoError(t, err)
	}
	for _, conn := range conns {
		conn.Release()
	}
}
