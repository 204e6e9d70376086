package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// leaderRetry is how often a process that does not lead tries to.
	leaderRetry = 10 * time.Second
	// leaderCheck is how often the leader checks its connection.
	leaderCheck = 5 * time.Second
)

// Leader elects one of the processes that run with the same name on a database.
// The leader holds a session-level advisory lock on a connection of its own, so
// when it dies another process leads within 10 s.
type Leader struct {
	config       *pgx.ConnConfig
	name         string
	log          *slog.Logger
	retry, check time.Duration
	leading      atomic.Bool
}

// NewLeader returns a candidate. Nothing happens before Run. The error is of
// KindInvalidRequest and does not repeat the URL.
func NewLeader(url, name string, log *slog.Logger) (*Leader, error) {
	c, err := ownConn(url, "gpuaas-leader")
	if err != nil {
		return nil, err
	}
	return &Leader{config: c, name: name, log: log, retry: leaderRetry, check: leaderCheck}, nil
}

// Leading reports whether this process leads now.
func (l *Leader) Leading() bool { return l.leading.Load() }

// Run stands for election until ctx ends, and returns nil then.
func (l *Leader) Run(ctx context.Context) error {
	for {
		if err := l.lead(ctx); err != nil && ctx.Err() == nil {
			l.log.Warn("leader election failed", slog.String("name", l.name), slog.Duration("retry_in", l.retry), slog.Any("err", err))
		}
		if !pause(ctx, l.retry) {
			return nil
		}
	}
}

// lead tries to get the lock and holds it as long as the connection works.
func (l *Leader) lead(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, l.config)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer closeConn(ctx, conn)
	got := false
	err = within(ctx, conn, func(ctx context.Context) error {
		return conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", l.name).Scan(&got)
	})
	if err != nil || !got {
		return err
	}
	l.leading.Store(true)
	defer l.leading.Store(false)
	for pause(ctx, l.check) {
		if err := within(ctx, conn, conn.Ping); err != nil {
			return fmt.Errorf("lost the lead: %w", err)
		}
	}
	return nil
}

// pause reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
