package store_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// The process dies between the commit of an enqueue and its notification: the
// sweep wakes the node's poll.
func TestSweepWakesPollAfterLostNotification(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	f := e.claim(c.NodeID, lifecycle.ActionProvision).Fence

	polling, err := store.Open(ctx, store.Config{URL: e.url})
	require.NoError(t, err)
	defer polling.Close()
	l, err := store.NewListener(e.url, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer listen(ctx, l)()
	wake, cancel := l.Subscribe(c.NodeID, c.Incarnation)
	defer cancel()
	awaken(t, wake) // the connection is new
	sweeping, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = polling.Inventory.Sweep(sweeping, l) }() // ends with the context

	e.DropNotifications()
	row := e.dispatch(f, "facts", task.FactsCollect)
	awaken(t, wake)
	require.Equal(t, row.TaskID, e.take(c, time.Minute).TaskID)
	select {
	case <-wake: // a sweep that ran before the dispatch
	default:
	}
}
