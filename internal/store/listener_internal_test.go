package store

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/testkit/pgtest"
)

func TestASilentConnectionIsCheckedAndKept(t *testing.T) {
	t.Parallel()
	l, err := NewListener(pgtest.New(t, Migrate), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	l.check = 10 * time.Millisecond
	outbox, cancel := l.subscribe(channelOutbox, 0)
	defer cancel()
	node, cancelNode := l.Subscribe("a node", 1)
	defer cancelNode()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	<-node // the connection stands
	for range 5 {
		<-outbox // now and then anyway
	}
	select {
	case <-node:
		require.FailNow(t, "the connection was made anew")
	default:
	}
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
}
