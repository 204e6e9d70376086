package store_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestSweepWakesFencedPolls runs without notifications: of a thousand open polls the
// sweep wakes those of fenced nodes only.
func TestSweepWakesFencedPolls(t *testing.T) {
	e := setup(t)
	l, err := store.NewListener(e.url, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Sweep(ctx, l) }()

	var unknown []<-chan struct{}
	for range 1000 {
		wake, cancel := l.Subscribe(schema.NewID(), 1)
		t.Cleanup(cancel)
		unknown = append(unknown, wake)
	}
	polls := map[string]<-chan struct{}{}
	poll := func(nodeID string, incarnation int64) {
		wake, cancel := l.Subscribe(nodeID, incarnation)
		t.Cleanup(cancel)
		polls[nodeID] = wake
	}
	faulty, _, _ := e.enroll() // has a task that is not dispatched
	e.dispatch(e.claim(faulty.NodeID, lifecycle.ActionProvision).Fence, "facts", task.FactsCollect)
	require.NoError(t, e.heartbeat(faulty, wire.Heartbeat{Fault: "disk full"}))
	poll(faulty.NodeID, faulty.Incarnation)
	overtaken, _, _ := e.enroll() // its task was dispatched to an earlier poll, whose response may be lost
	e.held(overtaken, e.claim(overtaken.NodeID, lifecycle.ActionProvision).Fence, "facts", task.FactsCollect)
	e.exec("UPDATE node_tasks SET status = 'dispatched', poll_number = 1, lease_until = now() + interval '1 minute' WHERE node_id = $1", overtaken.NodeID)
	poll(overtaken.NodeID, overtaken.Incarnation)
	healthy, removed, locked, reissued := e.register().ID, e.register().ID, e.register().ID, e.register().ID
	for _, id := range []string{healthy, removed, locked, reissued} {
		poll(id, 1)
	}
	e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", removed)
	e.exec("UPDATE nodes SET identity_locked_at = now(), identity_lock_reason = 'test' WHERE node_id = $1", locked)
	e.exec("UPDATE nodes SET incarnation = 2 WHERE node_id = $1", reissued)
	for _, id := range []string{removed, locked, reissued, overtaken.NodeID} {
		awaken(t, polls[id])
	}
	asleep(t, polls[healthy])
	asleep(t, polls[faulty.NodeID])
	for _, wake := range unknown {
		asleep(t, wake)
	}
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
}
