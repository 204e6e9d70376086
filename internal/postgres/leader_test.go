package postgres

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

func newListener(t *testing.T, url string, connected chan struct{}) *Listener {
	t.Helper()
	l, err := NewListener(ListenConfig{URL: url, Log: slog.New(slog.DiscardHandler), CheckEvery: 10 * time.Millisecond,
		OnConnect: func() { connected <- struct{}{} }, OnNotify: func(Notification) {}})
	require.NoError(t, err)
	return l
}

// One listener leads. When it ends or loses its connection, another one leads.
func TestOneLeaderAtATime(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t, func(context.Context, string) error { return nil })
	candidate := func(connected chan struct{}) (l *Listener, stop func()) {
		l = newListener(t, url, connected)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		return l, func() {
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
		}
	}
	leads := func(l *Listener) {
		t.Helper()
		harness.Eventually(t, "it leads", l.Leading)
	}
	first, stopFirst := candidate(make(chan struct{}, 1))
	leads(first)
	connected := make(chan struct{}, 2)
	second, stopSecond := candidate(connected)
	require.Never(t, second.Leading, 200*time.Millisecond, 5*time.Millisecond)
	stopFirst()
	require.False(t, first.Leading())
	leads(second)
	third, stopThird := candidate(make(chan struct{}, 1))
	harness.Receive(t, "the second listener connects", connected)
	conn, err := pgx.ConnectConfig(t.Context(), second.conn)
	require.NoError(t, err)
	defer closeConn(t.Context(), conn)
	_, err = conn.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
	require.NoError(t, err)
	harness.Receive(t, "the second listener connects again", connected)
	harness.Eventually(t, "one of them leads", func() bool { return second.Leading() != third.Leading() })
	stopSecond()
	leads(third)
	stopThird()
}

func TestListenerHidesMalformedURL(t *testing.T) {
	t.Parallel()
	_, err := NewListener(ListenConfig{URL: "postgres://u:hunter2@h:port/db"})
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
	require.NotContains(t, err.Error(), "hunter2")
}
