package store

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

func TestListenerKeepsSilentConnection(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t, Migrate)
	l, err := NewListener(url, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	l.CheckEvery = 10 * time.Millisecond
	node, cancelNode := l.Subscribe("a node", 1)
	defer cancelNode()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	<-node // connected
	other, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	defer other.Close(context.WithoutCancel(ctx))
	var last time.Time
	for range 5 {
		require.Eventually(t, func() bool {
			before := last
			err := other.QueryRow(ctx, `SELECT state_change FROM pg_stat_activity
				WHERE application_name = 'gpuaas-listener' AND datname = current_database()`).Scan(&last)
			return err == nil && last.After(before)
		}, time.Minute, time.Millisecond, "no ping")
	}
	select {
	case <-node:
		require.FailNow(t, "the listener reconnected")
	default:
	}
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
}
