package postgres

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// One process leads. When it ends or loses its connection, another one leads.
func TestOneLeaderAtATime(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t, func(context.Context, string) error { return nil })
	candidate := func(name string) (l *Leader, stop func()) {
		l, err := NewLeader(url, name, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		l.retry, l.check = 10*time.Millisecond, 10*time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		return l, func() {
			cancel()
			require.NoError(t, <-ended)
		}
	}
	first, stopFirst := candidate("metrics")
	harness.Eventually(t, "the first leads", first.Leading)
	other, stopOther := candidate("another name")
	harness.Eventually(t, "the other leads", other.Leading)
	second, stopSecond := candidate("metrics")
	require.Never(t, second.Leading, 200*time.Millisecond, 5*time.Millisecond)
	stopFirst()
	require.False(t, first.Leading())
	harness.Eventually(t, "the second leads", second.Leading)
	stopSecond()
	stopOther()
}

func TestLeaderHidesMalformedURL(t *testing.T) {
	t.Parallel()
	_, err := NewLeader("postgres://u:hunter2@h:port/db", "metrics", slog.New(slog.DiscardHandler))
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err))
	require.NotContains(t, err.Error(), "hunter2")
}
