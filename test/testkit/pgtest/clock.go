package pgtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ShiftClock makes the clock of the database at url differ from this machine's for the
// connections that are made from now on, and ends all others. It shifts clock_timestamp, by which
// the programs compare clocks, and not the times in rows.
func ShiftClock(tb testing.TB, url string, ahead time.Duration) {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(tb.Context())) }()
	for _, sql := range []string{
		fmt.Sprintf(`CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
			AS $$ SELECT pg_catalog.clock_timestamp() + interval '%d milliseconds' $$`, ahead.Milliseconds()),
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$`,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`,
	} {
		if _, err := conn.Exec(tb.Context(), sql); err != nil {
			tb.Fatal(err)
		}
	}
}
