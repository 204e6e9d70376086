package postgres

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/gpuaas/gpuaas/schema"
)

// ReasonReadOnly is the reason of an error about a server that accepts no writes.
const ReasonReadOnly = "database_read_only"

// nextReadOnly is the next step after ReasonReadOnly.
const nextReadOnly = "use a database URL with all servers and target_session_attrs=read-write, and promote a standby if none is the primary"

// Failover is the newest timeline that a process has seen of its database. No connection of a pool
// or a listener uses a server that is older than one that another of them used. Its zero value
// has seen none. It is safe for concurrent use.
type Failover struct {
	// timeline is the highest timeline of a server that accepted writes. Each promotion begins
	// a new one.
	timeline atomic.Int64
}

// errOldPrimary rejects a server before whose time another one was promoted.
var errOldPrimary = errors.New("the server is an old primary: a standby was promoted since")

// prepare changes the configuration of one connection. It is for pgxpool.Config.BeforeConnect.
func (f *Failover) prepare(_ context.Context, c *pgx.ConnConfig) error {
	withoutCancelRequests(c)
	validate := c.ValidateConnect // of target_session_attrs
	c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if validate != nil {
			if err := validate(ctx, conn); err != nil {
				return err
			}
		}
		return f.check(ctx, conn)
	}
	return nil
}

// withoutCancelRequests makes pgx close a connection whose call ran out of time without asking
// the server to cancel the statement. A commit may wait for a standby, and Postgres answers a
// cancel request by committing on the primary alone: others would see what a failover then loses.
// The server's own limits, lock_timeout and statement_timeout, do not end that wait.
func withoutCancelRequests(c *pgx.ConnConfig) {
	var connected atomic.Bool
	dial, after := c.DialFunc, c.AfterConnect
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if connected.Load() {
			return nil, errors.New("statements are not canceled")
		}
		return dial(ctx, network, address)
	}
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		connected.Store(true)
		if after == nil {
			return nil
		}
		return after(ctx, conn)
	}
}

// check rejects a server that is behind one that was used: the primary from before a failover,
// which still runs or which its machine started again. As part of a connection attempt, it makes
// pgx try the URL's next server.
func (f *Failover) check(ctx context.Context, conn *pgconn.PgConn) error {
	const timeline = `SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint`
	result := conn.ExecParams(ctx, timeline, nil, nil, nil, []int16{pgx.BinaryFormatCode}).Read()
	if _, refused := errors.AsType[*pgconn.PgError](result.Err); refused {
		return nil // a standby, or a service without timelines
	}
	if result.Err != nil || len(result.Rows) != 1 || len(result.Rows[0][0]) != 8 {
		return result.Err
	}
	var now int64
	for _, b := range result.Rows[0][0] {
		now = now<<8 | int64(b)
	}
	for {
		last := f.timeline.Load()
		if now < last {
			return errOldPrimary
		}
		if f.timeline.CompareAndSwap(last, now) {
			return nil
		}
	}
}

// readOnly returns an error if the server accepts no writes.
func (db *DB) readOnly(ctx context.Context) error {
	var refuses bool
	err := db.pool.QueryRow(ctx, "SELECT current_setting('transaction_read_only')::boolean").Scan(&refuses)
	if err != nil || !refuses {
		return err
	}
	return schema.NewError(schema.KindServiceUnavailable, "the database at %s accepts no writes: it is a standby", db.address).
		WithReason(ReasonReadOnly).WithNext(nextReadOnly)
}
