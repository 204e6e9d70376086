package postgres

import (
	"context"
	"errors"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// How long a second migration waits for the first: retries, one second apart.
const (
	migrateRetrySeconds = 1
	migrateRetries      = 300
)

// Migrate applies the migrations in files, in goose's format, that the database
// lacks. It is idempotent and safe to run concurrently: an advisory lock admits
// one caller at a time.
func Migrate(ctx context.Context, url string, files fs.FS) error {
	const doing = "migrating the database"
	c, err := ownConn(url, "gpuaas-migrate")
	if err != nil {
		return err
	}
	db := &DB{address: address(c)}
	conn := stdlib.OpenDB(*c)
	defer conn.Close() //nolint:errcheck // nothing is pending on these connections
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(migrateRetrySeconds, migrateRetries))
	if err != nil {
		return db.Interpret(err, doing)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, conn, files, goose.WithSessionLocker(locker))
	if err != nil {
		return db.Interpret(err, doing)
	}
	_, err = p.Up(ctx)
	return db.Interpret(err, doing)
}

// Run runs the statements in one transaction. Concurrent callers run one after the other.
func Run(ctx context.Context, url, statements string) error {
	c, err := ownConn(url, "gpuaas-migrate")
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
