package store

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

func TestListenerKeepsSilentConnection(t *testing.T) {
	t.Parallel()
	l, err := NewListener(pgtest.New(t, Migrate), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	l.CheckEvery = 10 * time.Millisecond
	outbox, cancel := l.Subscribe(channelOutbox, 0)
	defer cancel()
	node, cancelNode := l.Subscribe("a node", 1)
	defer cancelNode()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	<-node // connected
	for range 5 {
		<-outbox // at intervals
	}
	select {
	case <-node:
		require.FailNow(t, "the listener reconnected")
	default:
	}
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
}
