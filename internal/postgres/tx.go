package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tx is a transaction that saves round trips. BEGIN and the statements of Deferred
// wait until the next query or COMMIT and are sent with it in one pipeline. The
// server runs all statements in order; the error of a deferred one surfaces in the
// statement it was sent with. Without this, `test/bench store` runs 25 % slower.
type Tx struct {
	conn    *pgx.Conn
	pending *pgx.Batch
	begun   bool // BEGIN was sent
}

// Tx runs fn in a transaction, which commits when fn returns nil and rolls back
// otherwise. The error is the driver's: the caller interprets it.
func (db *DB) Tx(ctx context.Context, fn func(context.Context, *Tx) error) error {
	return db.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		tx := &Tx{conn: c.Conn(), pending: &pgx.Batch{}}
		tx.pending.Queue("begin")
		if err := fn(ctx, tx); err != nil {
			tx.rollback(ctx)
			return err
		}
		return tx.commit(ctx)
	})
}

// commit sends what is pending and COMMIT.
func (tx *Tx) commit(ctx context.Context) error {
	tag, err := tx.Exec(ctx, "commit")
	if err != nil {
		tx.rollback(ctx)
		return err
	}
	if tag.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// rollback rolls back. If that fails, the pool closes the connection because of
// its open transaction.
func (tx *Tx) rollback(ctx context.Context) {
	if tx.begun {
		_, _ = tx.conn.Exec(ctx, "rollback")
	}
}

// send sends the pending statements with one more, and reads the results up to the
// last one's.
func (tx *Tx) send(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	before, batch := tx.pending.Len(), tx.pending
	batch.Queue(sql, args...)
	tx.pending, tx.begun = &pgx.Batch{}, true
	results := tx.conn.SendBatch(ctx, batch)
	for range before {
		if _, err := results.Exec(); err != nil {
			_ = results.Close() // returns the same error
			return nil, err
		}
	}
	return results, nil
}

// Exec implements sqlc.DBTX.
func (tx *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	results, err := tx.send(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := results.Exec()
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return tag, err
}

// Query implements sqlc.DBTX.
func (tx *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	results, err := tx.send(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close() // returns the same error
		return nil, err
	}
	return &lastRows{rows, results}, nil
}

// QueryRow implements sqlc.DBTX.
func (tx *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	results, err := tx.send(ctx, sql, args)
	return lastRow{results, err}
}

// lastRow is the result of the last statement of a batch.
type lastRow struct {
	results pgx.BatchResults
	err     error
}

// Scan implements pgx.Row.
func (r lastRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	err := r.results.QueryRow().Scan(dest...)
	if closeErr := r.results.Close(); err == nil {
		err = closeErr
	}
	return err
}

// lastRows is the rows of the last statement of a batch.
type lastRows struct {
	pgx.Rows
	results pgx.BatchResults
}

// Close implements pgx.Rows.
func (r *lastRows) Close() {
	r.Rows.Close()
	_ = r.results.Close() // Err returns its error
}

// Deferred queues statements that return nothing. A queued statement's error
// surfaces in the transaction's next query or its COMMIT.
type Deferred struct{ tx *Tx }

// Deferred returns the queue of tx.
func (tx *Tx) Deferred() Deferred { return Deferred{tx} }

// Exec implements sqlc.DBTX.
func (d Deferred) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	d.tx.pending.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

// Query implements sqlc.DBTX for statements that return nothing; it runs at once.
func (d Deferred) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return d.tx.Query(ctx, sql, args...)
}

// QueryRow implements sqlc.DBTX; it runs at once.
func (d Deferred) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return d.tx.QueryRow(ctx, sql, args...)
}
