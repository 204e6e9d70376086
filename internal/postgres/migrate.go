package postgres

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/gpuaas/gpuaas/schema"
)

// How long a second migration waits for the first: retries, one second apart.
const (
	migrateRetrySeconds = 1
	migrateRetries      = 300
)

const (
	// migrateLockTimeout is how long a statement of a migration waits for a lock. Statements
	// that need a weaker lock queue behind it, so it is shorter than the lock timeout of
	// the processes.
	migrateLockTimeout = "3s"
	// migratePauseMin and migratePauseMax bound the pause between two attempts. The
	// statements that queued run in it.
	migratePauseMin = 2 * time.Second
	migratePauseMax = 10 * time.Second
	migrateTimeout  = 5 * time.Minute
)

// migrateName is the application name of the connection that migrates.
const migrateName = "gpuaas-migrate"

// Migration is an update of a database's schema.
type Migration struct {
	// URL is that of the owner of the tables.
	URL string
	// Files are the migrations, in goose's format.
	Files fs.FS
	// Timeout is how long locks that other sessions hold are waited for. Defaults to 5 min.
	Timeout time.Duration
	// Blocked is called from another goroutine with the sessions that hold up the
	// migration, each time that they are others than before. Defaults to none.
	Blocked func(Blockers)
}

// Migrate applies the migrations that the database lacks. It is idempotent and safe to
// run concurrently: an advisory lock admits one caller at a time. A migration that does
// not get a lock within 3 s is rolled back and repeated, so that other statements wait
// for it only as long. After the timeout the error is KindServiceUnavailable, reason
// migration_blocked, and names the sessions that hold the locks.
func Migrate(ctx context.Context, m Migration) error {
	const doing = "migrating the database"
	c, err := ownConn(m.URL, migrateName)
	if err != nil {
		return err
	}
	c.RuntimeParams["lock_timeout"] = migrateLockTimeout
	db := &DB{address: address(c)}
	w := &lockWatch{conn: c.Copy(), changed: m.Blocked}
	w.conn.RuntimeParams["application_name"] = migrateName + "-watch"
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		defer w.watch(ctx)()
		err := apply(ctx, c, m.Files)
		if err != nil && !lockTimedOut(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(&backoff.ExponentialBackOff{InitialInterval: migratePauseMin, MaxInterval: migratePauseMax, Multiplier: 2}),
		backoff.WithMaxElapsedTime(cmp.Or(m.Timeout, migrateTimeout)))
	if lockTimedOut(err) {
		return errBlocked(err, w.last())
	}
	return db.Interpret(err, doing)
}

// apply makes one attempt, on connections of its own: a migration that fails may leave
// settings behind.
func apply(ctx context.Context, c *pgx.ConnConfig, files fs.FS) error {
	conn := stdlib.OpenDB(*c)
	defer conn.Close() //nolint:errcheck // nothing is pending on these connections
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(migrateRetrySeconds, migrateRetries))
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, conn, files, goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

// lockTimedOut reports whether a statement did not get a lock in time.
func lockTimedOut(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == lockNotAvailable
}

func errBlocked(err error, by Blockers) error {
	name := "a migration"
	if p, ok := errors.AsType[*goose.PartialError](err); ok {
		name = p.Failed.Source.Path
	}
	return schema.Wrap(schema.KindServiceUnavailable, err, "migrating the database: %s did not get a lock that it needs; blocked by %s", name, by).
		WithReason("migration_blocked").WithNext(by.next())
}

// Run runs the statements in one transaction. Concurrent callers run one after the other.
func Run(ctx context.Context, url, statements string) error {
	c, err := ownConn(url, migrateName)
	if err != nil {
		return err
	}
	db := &DB{address: address(c)}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err == nil {
		defer closeConn(ctx, conn)
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('gpuaas-migrate', 0)); "+statements)
			return err
		})
	}
	return db.Interpret(err, "preparing the database")
}

// Denied reports whether a database rejected a statement for lack of a privilege.
func Denied(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == insufficientPrivilege
}

// NoTable reports whether a table that a statement names does not exist.
func NoTable(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == undefinedTable
}

// Lacks returns what a statement names that does not exist in the database, such as `relation "nodes" does not
// exist`; "" for other errors.
func Lacks(err error) string {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if ok && (e.Code == undefinedTable || e.Code == undefinedColumn) {
		return e.Message
	}
	return ""
}
