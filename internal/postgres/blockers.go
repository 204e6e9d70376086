package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// lockWatchEvery is the interval between two reads of the sessions that block.
const lockWatchEvery = 500 * time.Millisecond

// Blocker is a session that holds a lock, or waits before the migration for one.
type Blocker struct {
	// PID is the session's process in Postgres; 0 stands for a prepared transaction.
	PID int32
	// Application and State are empty if the role may not read them.
	Application, User, State string
	// Since is when its transaction started; nil if the role may not read it.
	Since *time.Time
}

func (b Blocker) String() string {
	if b.PID == 0 {
		return "a prepared transaction (see pg_prepared_xacts)"
	}
	s := fmt.Sprintf("pid %d (application %q, user %q", b.PID, b.Application, b.User)
	if b.State != "" {
		s += ", " + b.State
	}
	if b.Since != nil {
		s += ", transaction since " + b.Since.UTC().Format(time.RFC3339)
	}
	return s + ")"
}

// Blockers are the sessions that block a migration, the oldest transaction first.
type Blockers []Blocker

func (b Blockers) String() string {
	if len(b) == 0 {
		return "an unknown session"
	}
	var all []string
	for _, one := range b {
		all = append(all, one.String())
	}
	return strings.Join(all, "; ")
}

// next says how to release the locks.
func (b Blockers) next() string {
	var end []string
	for _, one := range b {
		if one.PID != 0 {
			end = append(end, fmt.Sprintf("SELECT pg_terminate_backend(%d);", one.PID))
		}
	}
	if end == nil {
		return "end the transaction that holds the lock (see pg_locks); then: " + setup
	}
	return "wait until the transactions end, or end them: " + strings.Join(end, " ") + " then: " + setup
}

// lockWatch reads which sessions block a migration.
type lockWatch struct {
	conn    *pgx.ConnConfig
	changed func(Blockers)

	mu   sync.Mutex
	seen Blockers
}

// watch reads until the function that it returns is called. Without a connection it
// reads nothing: the migration does not depend on it.
func (w *lockWatch) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		conn, err := pgx.ConnectConfig(ctx, w.conn)
		if err != nil {
			return
		}
		defer closeConn(ctx, conn)
		tick := time.NewTicker(lockWatchEvery)
		defer tick.Stop()
		for err == nil {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				err = w.read(ctx, conn)
			}
		}
	})
	return func() {
		cancel()
		reading.Wait()
	}
}

// last returns the sessions that blocked last.
func (w *lockWatch) last() Blockers {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

func (w *lockWatch) read(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `SELECT DISTINCT b.pid, coalesce(a.application_name, ''), coalesce(a.usename::text, ''), coalesce(a.state, ''), a.xact_start
		FROM pg_stat_activity m CROSS JOIN unnest(pg_blocking_pids(m.pid)) b (pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid
		WHERE m.datname = current_database() AND m.application_name = $1 AND m.wait_event_type = 'Lock'
		ORDER BY a.xact_start, b.pid`, migrateName)
	if err != nil {
		return err
	}
	now, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Blocker])
	if err != nil || len(now) == 0 {
		return err
	}
	w.mu.Lock()
	same := slices.EqualFunc(w.seen, now, func(a, b Blocker) bool { return a.PID == b.PID })
	w.seen = now
	w.mu.Unlock()
	if !same && w.changed != nil {
		w.changed(now)
	}
	return nil
}
