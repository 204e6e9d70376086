package store

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// pipeline is a transaction on one connection that saves round trips: what needs
// no answer, beginning with the BEGIN, waits and goes out together with the next
// question or with the COMMIT. The server runs all of it in the order in which
// it was asked, and a failure of what waited is the failure of what it went out
// with.
type pipeline struct {
	conn    *pgx.Conn
	waiting *pgx.Batch
	open    bool // the server may have begun
}

func newPipeline(conn *pgx.Conn) *pipeline {
	p := &pipeline{conn: conn, waiting: &pgx.Batch{}}
	p.waiting.Queue("begin")
	return p
}

// send sends what waits with one statement more and reads the answers up to the
// last one's.
func (p *pipeline) send(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	before, all := p.waiting.Len(), p.waiting
	all.Queue(sql, args...)
	p.waiting, p.open = &pgx.Batch{}, true
	answers := p.conn.SendBatch(ctx, all)
	for range before {
		if _, err := answers.Exec(); err != nil {
			_ = answers.Close() // the same failure once more
			return nil, err
		}
	}
	return answers, nil
}

// Exec implements sqlc.DBTX.
func (p *pipeline) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	answers, err := p.send(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := answers.Exec()
	if closing := answers.Close(); err == nil {
		err = closing
	}
	return tag, err
}

// Query implements sqlc.DBTX.
func (p *pipeline) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if p.waiting.Len() == 0 {
		return p.conn.Query(ctx, sql, args...)
	}
	answers, err := p.send(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	rows, err := answers.Query()
	if err != nil {
		_ = answers.Close() // the same failure once more
		return nil, err
	}
	return &lastRows{rows, answers}, nil
}

// QueryRow implements sqlc.DBTX.
func (p *pipeline) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if p.waiting.Len() == 0 {
		return p.conn.QueryRow(ctx, sql, args...)
	}
	answers, err := p.send(ctx, sql, args)
	return lastRow{answers, err}
}

// commit ends the transaction for good.
func (p *pipeline) commit(ctx context.Context) error {
	tag, err := p.Exec(ctx, "commit")
	if err == nil && tag.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return err
}

// rollback ends the transaction as if it had never been. A connection on which
// that fails is closed by the pool, which sees the open transaction.
func (p *pipeline) rollback(ctx context.Context) {
	if p.open {
		_, _ = p.conn.Exec(ctx, "rollback")
	}
}

// queue is a pipeline whose statements wait. Their answer is not known: nil says
// nothing yet.
type queue struct{ *pipeline }

// Exec implements sqlc.DBTX.
func (q queue) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	q.waiting.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

// lastRow is the answer to the last statement of those that were sent together.
type lastRow struct {
	answers pgx.BatchResults
	err     error
}

// Scan implements pgx.Row.
func (r lastRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	err := r.answers.QueryRow().Scan(dest...)
	if closing := r.answers.Close(); err == nil {
		err = closing
	}
	return err
}

// lastRows is lastRow for many.
type lastRows struct {
	pgx.Rows
	answers pgx.BatchResults
}

// Close implements pgx.Rows.
func (r *lastRows) Close() {
	r.Rows.Close()
	_ = r.answers.Close() // Err has told it
}
