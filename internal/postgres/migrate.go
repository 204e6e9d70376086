package postgres

import (
	"context"
	"io/fs"

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
