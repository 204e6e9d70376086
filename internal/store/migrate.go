package store

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/gpuaas/gpuaas/schema/migrations"
)

// How long a second setup waits for the first: tries, one second apart.
const (
	migrateRetrySeconds = 1
	migrateRetries      = 300
)

// Migrate brings the database's schema up to date. It is idempotent, and two
// calls at once are safe: a Postgres advisory lock lets one of them work.
func Migrate(ctx context.Context, url string) error {
	const doing = "migrating the database"
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return errMalformedURL()
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	db := stdlib.OpenDB(*c)
	defer db.Close() //nolint:errcheck // nothing is pending on these connections
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(migrateRetrySeconds, migrateRetries))
	if err != nil {
		return interpretError(err, address(c), doing)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files, goose.WithSessionLocker(locker))
	if err != nil {
		return interpretError(err, address(c), doing)
	}
	_, err = p.Up(ctx)
	return interpretError(err, address(c), doing)
}
