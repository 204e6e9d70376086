package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gpuaas/gpuaas/schema"
)

// scratchPrefix begins the name of each scratch database. No other database may have such a name.
const scratchPrefix = "gpuaas_drill_"

// dropTime bounds the drop of a scratch database, also after the caller's context ended.
const dropTime = time.Minute

// Scratch makes a temporary database on a server, one process at a time for each database of a URL. It
// holds a lock, so that the scratch databases that exist when it begins are those of killed processes.
type Scratch struct {
	url  string
	conn *pgx.Conn
	db   *DB
	// prefix begins the names of the scratch databases for the URL's database, name is that of this one.
	prefix, name string
}

// NewScratch connects to the server of the URL. The role needs CREATEDB. The caller closes it.
// KindOperationInProgress if another process has the lock.
func NewScratch(ctx context.Context, url string) (*Scratch, error) {
	c, err := ownConn(url, "gpuaas-drill")
	if err != nil {
		return nil, err
	}
	s := &Scratch{url: url, db: &DB{address: address(c)}}
	if s.conn, err = pgx.ConnectConfig(ctx, c); err != nil {
		return nil, s.db.Interpret(err, "connecting to the server of the scratch database")
	}
	var locked bool
	var oid uint32
	err = s.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtextextended('gpuaas-drill', 0)), oid
		FROM pg_database WHERE datname = current_database()`).Scan(&locked, &oid)
	s.prefix = fmt.Sprintf("%s%d_", scratchPrefix, oid)
	if err == nil && !locked {
		err = schema.NewError(schema.KindOperationInProgress, "another drill runs on the server %s", s.db.address).WithNext("wait until it ends")
	}
	if err != nil {
		closeConn(ctx, s.conn)
		return nil, s.db.Interpret(err, "locking the server for a drill")
	}
	return s, nil
}

// Clean drops the scratch databases that killed processes left, and returns their names.
func (s *Scratch) Clean(ctx context.Context) ([]string, error) {
	rows, err := s.conn.Query(ctx, "SELECT datname FROM pg_database WHERE starts_with(datname, $1) AND datname <> current_database()", s.prefix)
	if err != nil {
		return nil, s.db.Interpret(err, "listing scratch databases")
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range names {
		if err == nil {
			err = s.drop(ctx, name)
		}
	}
	return names, s.db.Interpret(err, "listing scratch databases")
}

// Create creates an empty database with a new name, and returns its URL.
func (s *Scratch) Create(ctx context.Context) (name, url string, err error) {
	s.name = s.prefix + strings.ToLower(strings.ReplaceAll(schema.NewID(), "-", ""))
	if url, err = WithDatabase(s.url, s.name); err != nil {
		return "", "", err
	}
	_, err = s.conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{s.name}.Sanitize()+" TEMPLATE template0")
	if Denied(err) {
		return "", "", schema.Wrap(schema.KindForbidden, err, "the role %s may not create a scratch database", s.conn.Config().User).
			WithReason("createdb").WithNext("ALTER ROLE … CREATEDB, or set GPUAAS_DRILL_DATABASE_URL to another server")
	}
	return s.name, url, s.db.Interpret(err, "creating a scratch database")
}

// Close drops the scratch database, also after ctx ended, and releases the lock.
func (s *Scratch) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTime)
	defer cancel()
	defer closeConn(ctx, s.conn)
	if s.name == "" {
		return nil
	}
	return s.drop(ctx, s.name)
}

func (s *Scratch) drop(ctx context.Context, name string) error {
	_, err := s.conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	if err == nil {
		return nil
	}
	return schema.AsError(s.db.Interpret(err, "dropping the scratch database "+name)).
		WithNext("check that the server runs and has free disk space; the next drill drops the database")
}

// loginRejected reports whether the server rejected the role or its password.
func loginRejected(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && strings.HasPrefix(e.Code, "28")
}
