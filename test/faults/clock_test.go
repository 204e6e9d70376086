package faults_test

import (
	"context"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// epoch is the start time of every run. It is far from the real time, so that code
// that reads the wrong clock fails immediately.
var epoch = time.Date(2041, 3, 1, 0, 0, 0, 0, time.UTC)

// clock is a clock that is set explicitly. Between calls it is stopped, or advances
// with the machine's clock if it is running.
type clock struct {
	running bool

	mu    sync.Mutex
	at    time.Time
	since time.Time // the machine's time of at
}

// Now returns the time.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return c.at.Add(time.Since(c.since))
	}
	return c.at
}

func (c *clock) set(at time.Time) (since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.since = at, time.Now()
	return c.since
}

// database is a real database whose now() returns a clock's time: functions of that
// name are in a schema that precedes Postgres's own on the search path.
type database struct {
	url   string
	raw   *pgxpool.Pool
	clock *clock
}

const ownClock = `
CREATE SCHEMA clock;
CREATE TABLE clock.hand (at timestamptz NOT NULL, since timestamptz NOT NULL, speed int NOT NULL);
INSERT INTO clock.hand VALUES ('2041-03-01T00:00:00Z', pg_catalog.now(), 0);
CREATE FUNCTION clock.now() RETURNS timestamptz LANGUAGE sql STABLE AS
    'SELECT at + speed * (pg_catalog.clock_timestamp() - since) FROM clock.hand';
CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT clock.now()';
DO $$
DECLARE c record;
BEGIN
    FOR c IN SELECT table_name, column_name FROM information_schema.columns
             WHERE table_schema = 'public' AND column_default = 'now()' LOOP
        EXECUTE format('ALTER TABLE public.%I ALTER COLUMN %I SET DEFAULT clock.now()', c.table_name, c.column_name);
    END LOOP;
END $$;
ALTER FUNCTION public.audit_append SET search_path = clock, public, pg_catalog;
`

func newDatabase(tb testing.TB, running bool) *database {
	tb.Helper()
	dsn := pgtest.New(tb, store.Migrate)
	u, err := url.Parse(dsn)
	require.NoError(tb, err)
	q := u.Query()
	q.Set("search_path", "clock,public,pg_catalog")
	u.RawQuery = q.Encode()
	d := &database{url: u.String(), clock: &clock{running: running}}
	d.raw, err = pgxpool.New(tb.Context(), dsn)
	require.NoError(tb, err)
	tb.Cleanup(d.raw.Close)
	_, err = d.raw.Exec(tb.Context(), ownClock)
	require.NoError(tb, err)
	require.NoError(tb, d.set(tb.Context(), epoch))
	return d
}

// set moves the database's clock and, with it, that of the API's processes.
func (d *database) set(ctx context.Context, at time.Time) error {
	speed := 0
	if d.clock.running {
		speed = 1
	}
	_, err := d.raw.Exec(ctx, "UPDATE clock.hand SET at = $1, since = $2, speed = $3", at, d.clock.set(at), speed)
	return err
}

func (d *database) advance(ctx context.Context, by time.Duration) error {
	return d.set(ctx, d.clock.Now().Add(by))
}
