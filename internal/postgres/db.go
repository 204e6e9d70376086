package postgres

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gpuaas/gpuaas/schema"
)

// Config names a database and limits its use.
type Config struct {
	// URL is a Postgres connection URL. It may hold a password and never appears
	// in an error.
	URL string
	// MaxConns bounds the pool. Defaults to the URL's pool_max_conns, and to 10 without
	// it.
	MaxConns int32
	// CallTimeout bounds every call in addition to the caller's context.
	// Defaults to 15 s.
	CallTimeout time.Duration
	// StatementTimeout bounds a statement in the server. Defaults to 15 s, unless the URL sets it.
	StatementTimeout time.Duration
	// Name is the pool's application name. Defaults to gpuaas, unless the URL has one.
	Name string
	// Failover is shared with the other pools and the listener of the process. Defaults to
	// one of its own.
	Failover *Failover
	// Refusals maps the name of a constraint to the error that its violation
	// returns.
	Refusals map[string]Refusal
}

// Refusal is the reason and the message of a violated constraint.
type Refusal struct{ Reason, Message string }

const (
	defaultMaxConns    = 10
	defaultCallTimeout = 15 * time.Second
	connectTimeout     = 5 * time.Second
	// finishTime is how long a statement may continue after the caller's context was
	// canceled. pgx closes a connection whose statement is aborted, and a new one costs the
	// server a process and a login, so a client that disconnects must not abort it.
	finishTime = 2 * time.Second
)

// DB is a pool of connections to one database. It is safe for concurrent use.
type DB struct {
	pool     *pgxpool.Pool
	timeout  time.Duration
	address  string
	refusals map[string]Refusal
}

// Open connects to the database and returns once a connection was made. The
// caller closes the DB. A malformed URL is KindInvalidRequest, an unreachable
// database KindServiceUnavailable.
func Open(ctx context.Context, c Config) (*DB, error) {
	pc, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, errMalformedURL()
	}
	if c.StatementTimeout > 0 {
		pc.ConnConfig.RuntimeParams["statement_timeout"] = strconv.FormatInt(c.StatementTimeout.Milliseconds(), 10)
	}
	setDefaults(pc.ConnConfig, c.Name)
	if c.MaxConns > 0 || !setsPool(c.URL) {
		pc.MaxConns = cmp.Or(c.MaxConns, defaultMaxConns)
	}
	pc.AfterConnect = useUTC
	pc.BeforeConnect = cmp.Or(c.Failover, new(Failover)).prepare
	db := &DB{timeout: cmp.Or(c.CallTimeout, defaultCallTimeout), address: address(pc.ConnConfig), refusals: c.Refusals}
	if db.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, db.Interpret(err, "opening the database")
	}
	if err := db.Ping(ctx); err != nil {
		db.pool.Close()
		return nil, err
	}
	return db, nil
}

// setsPool reports whether the URL bounds the pool.
func setsPool(url string) bool {
	c, err := pgx.ParseConfig(url)
	return err == nil && c.RuntimeParams["pool_max_conns"] != ""
}

// Size returns the largest number of connections.
func (db *DB) Size() int { return int(db.pool.Config().MaxConns) }

// Close waits for open calls and closes every connection.
func (db *DB) Close() { db.pool.Close() }

// Ping returns nil if the database can be reached and accepts writes.
func (db *DB) Ping(ctx context.Context) error {
	return db.Call(ctx, "reaching the database", db.readOnly)
}

// Pool runs single statements, each in a transaction of its own.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// Call runs fn, which uses Pool, under the call timeout and interprets its error.
// doing names the call in the error's message: "reading node 7". When ctx is canceled, fn's
// context ends 2 s later; when its deadline passes, at once and with the deadline's error.
func (db *DB) Call(ctx context.Context, doing string, fn func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return db.Interpret(err, doing)
	}
	end := time.Now().Add(db.timeout)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	detached, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(finishTime, cancel)
		context.AfterFunc(detached, func() { timer.Stop() })
	})()
	return db.Interpret(fn(detached), doing)
}

// Tx runs fn in a transaction, which commits when fn returns nil and rolls back
// otherwise. The error is the driver's: the caller interprets it.
func (db *DB) Tx(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, beginner{db}, func(tx pgx.Tx) error { return fn(ctx, tx) })
}

// beginner begins transactions. fn has not run yet, so a connection that had ended is replaced.
type beginner struct{ db *DB }

// Begin begins a transaction.
func (b beginner) Begin(ctx context.Context) (tx pgx.Tx, err error) {
	err = b.db.Retry(func() error {
		tx, err = b.db.pool.Begin(ctx)
		return err
	})
	return tx, err
}

// Retry runs a statement once more if the server ended its connection, which rolls the statement
// back. A restart ends all connections, and the pool finds out only when it uses one.
func (db *DB) Retry(statement func() error) error {
	err := statement()
	if e, _ := errors.AsType[*pgconn.PgError](err); e == nil || e.Code != adminShutdown {
		return err
	}
	db.pool.Reset() // the other ones have ended too
	return statement()
}

// setDefaults sets what every connection needs unless the URL sets it: a process
// that is stopped in the middle of a transaction must release its row locks
// before others time out.
func setDefaults(c *pgx.ConnConfig, name string) {
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, connectTimeout)
	for name, value := range map[string]string{
		"application_name":  cmp.Or(name, "gpuaas"),
		"lock_timeout":      "5s",
		"statement_timeout": "15s",
		// Compiling a large statement takes seconds, and running it for 10,000 nodes milliseconds.
		"jit":                                 "off",
		"idle_in_transaction_session_timeout": "10s",
	} {
		if _, set := c.RuntimeParams[name]; !set {
			c.RuntimeParams[name] = value
		}
	}
}

// useUTC decodes timestamps in UTC instead of the machine's zone.
func useUTC(_ context.Context, conn *pgx.Conn) error {
	conn.TypeMap().RegisterType(&pgtype.Type{
		Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	})
	return nil
}

// address names the database in errors, with all servers of the URL and without a credential.
func address(c *pgx.ConnConfig) string {
	servers := []string{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	for _, f := range c.Fallbacks { // one for each way of connecting to a server
		if server := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(servers, server) {
			servers = append(servers, server)
		}
	}
	return strings.Join(servers, ",") + "/" + c.Database
}

func errMalformedURL() error {
	return schema.NewError(schema.KindInvalidRequest,
		"the database URL is malformed; use postgres://user@host:port/database").WithReason("database_url")
}
