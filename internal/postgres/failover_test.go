package postgres

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// noted is the number of rows of the test's table, as another client sees it.
func noted(t *testing.T, url string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM noted").Scan(&n))
	return n
}

// A call that waits for the standby and runs out of time must not end the wait: Postgres would
// then commit on the primary alone, other calls would read the row and report it, and a failover
// would lose it.
func TestTimeoutLeavesTheWaitForAStandby(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPair(t, createNoted)
	db, err := Open(t.Context(), Config{URL: p.URL()})
	require.NoError(t, err)
	defer db.Close()
	insert := func(budget time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), budget)
		defer cancel()
		return db.Call(ctx, "noting", func(ctx context.Context) error {
			_, err := db.Pool().Exec(ctx, "INSERT INTO noted DEFAULT VALUES")
			return err
		})
	}
	require.NoError(t, insert(harness.Timeout))
	require.Equal(t, 1, noted(t, p.Standby.URL()))

	p.Standby.Kill()
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(insert(time.Second)))
	harness.Eventually(t, "the end of the connection", func() bool { return db.Pool().Stat().TotalConns() == 0 })
	require.Equal(t, 1, noted(t, p.Primary.URL()), "not visible before the standby has it")
	p.Standby.Start()
	harness.Eventually(t, "the commit, which the standby has now", func() bool { return noted(t, p.Primary.URL()) == 2 })
	require.NoError(t, insert(harness.Timeout))
}

func createNoted(ctx context.Context, url string) error {
	return Run(ctx, url, "CREATE TABLE noted (id bigint GENERATED ALWAYS AS IDENTITY)")
}

// After a failover the pool uses the promoted server, which has every row whose insert was
// reported as done. The old primary is not used again, although the URL names it first and it
// accepts writes.
func TestFailover(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPair(t, createNoted)
	db, err := Open(t.Context(), Config{URL: p.URL(), CallTimeout: 2 * time.Second})
	require.NoError(t, err)
	defer db.Close()
	insert := func(ctx context.Context) (id int64, err error) {
		err = db.Call(ctx, "noting", func(ctx context.Context) error {
			return db.Pool().QueryRow(ctx, "INSERT INTO noted DEFAULT VALUES RETURNING id").Scan(&id)
		})
		return id, err
	}
	var mu sync.Mutex
	reported := map[int64]bool{}
	writing, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for writing.Err() == nil {
				if id, err := insert(t.Context()); err == nil {
					mu.Lock()
					reported[id] = true
					mu.Unlock()
				}
			}
		})
	}
	atLeast := func(n int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(reported) >= n
		}
	}
	harness.Eventually(t, "rows before the failover", atLeast(100))
	p.Primary.Kill()
	require.Error(t, db.Ping(t.Context()), "before the promotion there is no primary")
	p.Standby.Promote()
	more := func(what string) {
		t.Helper()
		mu.Lock()
		before := len(reported)
		mu.Unlock()
		harness.Eventually(t, what, atLeast(before+100))
	}
	more("rows after the failover")

	p.Primary.Start() // as a machine does that starts its services again
	db.Pool().Reset()
	more("rows after the return of the old primary")
	stop()
	writers.Wait()
	conn, err := pgx.Connect(t.Context(), p.Standby.URL())
	require.NoError(t, err)
	rows, err := conn.Query(t.Context(), "SELECT id FROM noted")
	require.NoError(t, err)
	stored, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(t, err)
	require.NoError(t, conn.Close(context.WithoutCancel(t.Context())))
	require.Subset(t, stored, slices.Collect(maps.Keys(reported)))
}

// A listener leaves an old primary that still runs once a pool of its process has used the
// promoted server, and then listens there, although the URL names the old one first.
func TestListenerLeavesAnOldPrimary(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPair(t, createNoted)
	connected, notified := make(chan struct{}, 100), make(chan Notification, 1)
	shared := new(Failover)
	l, err := NewListener(ListenConfig{URL: p.URL(), Channels: []string{"c"}, CheckEvery: 10 * time.Millisecond, Failover: shared,
		Log:       slog.New(slog.DiscardHandler),
		OnConnect: func() { connected <- struct{}{} }, OnNotify: func(n Notification) { notified <- n }})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	harness.Receive(t, "a connection to the primary", connected)

	p.Standby.Promote()
	db, err := Open(t.Context(), Config{URL: p.Standby.URL(), Failover: shared})
	require.NoError(t, err)
	defer db.Close()
	harness.Eventually(t, "the use of the promoted server", func() bool { return db.Ping(t.Context()) == nil && shared.timeline.Load() > 1 })
	harness.Receive(t, "a connection to the promoted server", connected)
	_, err = db.Pool().Exec(t.Context(), "NOTIFY c, 'p'")
	require.NoError(t, err)
	require.Equal(t, Notification{"c", "p"}, harness.Receive(t, "the notification", notified))
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// A server that accepts no writes is not healthy, and the error says why and what to do.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPair(t, createNoted)
	refuses := func(err error) {
		t.Helper()
		require.ErrorContains(t, err, "accepts no writes: it is a standby")
		require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
		require.Equal(t, ReasonReadOnly, schema.AsError(err).Reason)
		require.Contains(t, schema.AsError(err).Next, "target_session_attrs=read-write")
	}
	_, err := Open(t.Context(), Config{URL: p.Standby.URL()})
	refuses(err)

	db, err := Open(t.Context(), Config{URL: p.Primary.URL()})
	require.NoError(t, err)
	defer db.Close()
	p.Primary.Kill()
	p.Standby.Promote()
	p.Primary.Follow(p.Standby)
	harness.Eventually(t, "a connection to the new standby", func() bool { return schema.AsError(db.Ping(t.Context())).Reason == ReasonReadOnly })
	refuses(db.Ping(t.Context()))
	err = db.Call(t.Context(), "noting", func(ctx context.Context) error {
		_, err := db.Pool().Exec(ctx, "INSERT INTO noted DEFAULT VALUES")
		return err
	})
	require.ErrorContains(t, err, "accepts no writes: it is a standby")
}
