package store_test

import (
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

func awaken(t *testing.T, wake <-chan struct{}) {
	t.Helper()
	harness.Receive(t, "a wake", wake)
}

func asleep(t *testing.T, wake <-chan struct{}) {
	t.Helper()
	select {
	case <-wake:
		require.FailNow(t, "a wake came that was not meant for this one")
	default:
	}
}

func TestWakes(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	l, err := store.NewListener(e.url, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	caller, id, _ := e.enroll()
	wake, cancel := l.Subscribe(caller.NodeID, caller.Incarnation)
	twin, cancelTwin := l.Subscribe(caller.NodeID, caller.Incarnation)
	defer cancelTwin()
	foreign, cancelForeign := l.Subscribe(schema.NewID(), 1)
	defer cancelForeign()
	outbox := e.Outbox(l).Wake()
	defer listen(ctx, l)()
	for _, ch := range []<-chan struct{}{wake, twin, foreign, outbox} {
		awaken(t, ch) // every subscriber is woken by a new connection
	}

	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	row, err := e.Prepare(ctx, spec(f, "facts", task.FactsCollect), taskOwner("facts"))
	require.NoError(t, err)
	asleep(t, wake)
	require.NoError(t, e.Enqueue(ctx, spec(f, "facts", task.FactsCollect), taskOwner("facts"), row, []byte("{}")))
	awaken(t, wake)
	awaken(t, twin)
	asleep(t, foreign)
	require.NoError(t, e.Void(ctx, f))
	awaken(t, wake)

	e.dispatch(f, "probe", task.NodeProbe)
	awaken(t, wake)
	offer := e.take(caller, time.Minute)
	require.NoError(t, e.heartbeat(caller, wire.Heartbeat{}))
	_, err = e.Progress(ctx, caller, offer.TaskID, task.Progress{LeaseEpoch: 1}, time.Minute)
	require.NoError(t, err)
	_, err = e.Result(ctx, caller, offer.TaskID, succeeded(1, inventory.ProbeReport{}))
	require.NoError(t, err)
	awaken(t, outbox)
	asleep(t, wake)

	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted}))
	e.exec("UPDATE nodes SET state = 'retired' WHERE node_id = $1", id.NodeID)
	f = e.claim(caller.NodeID, lifecycle.ActionRemove).Fence
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRemoved, DenyIdentity: true}))
	awaken(t, wake)

	cancel()
	e.exec("SELECT pg_notify('gpuaas_node', $1)", caller.NodeID)
	awaken(t, twin) // it may be an older wake
	asleep(t, wake)
	asleep(t, foreign)
}

// The replicas of the API read the node CAs again when a rotation of them changes.
func TestNodeCARotationWakesReplicas(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	l, err := store.NewListener(e.url, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	wake := l.Sets()
	defer listen(ctx, l)()
	awaken(t, wake) // the connection is new
	begun := rotation.Begin(rotation.NodeCA, "", 0)
	begun.Reason = "quarterly"
	r, err := e.Rotations.BeginRotation(ctx, begun, operator)
	require.NoError(t, err)
	r.OldKey, r.NewKey = "g1", "g2"
	require.NoError(t, e.Rotations.SaveRotation(ctx, r, nil))
	awaken(t, wake)
}

// The process that stores a result wakes its own relay without a notification, and
// leaves the relays of others asleep.
func TestResultWakesOwnRelay(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	own, err := store.NewListener(e.url, slog.New(slog.DiscardHandler)) // does not run
	require.NoError(t, err)
	api, err := store.Open(ctx, store.Config{URL: e.url, Relaying: own})
	require.NoError(t, err)
	wake := api.Tasks.Outbox(own).Wake()
	others, err := store.NewListener(e.url, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	elsewhere := e.Outbox(others).Wake()
	caller, f := e.drain()
	row := e.held(caller, f, "probe", task.NodeProbe)
	e.DropNotifications() // has sent those of the node's enrollment
	defer listen(ctx, others)()
	awaken(t, elsewhere) // the connection is new
	_, err = api.Tasks.Result(ctx, caller, row.TaskID, nodeapi.ReceivedResult{Result: succeeded(1, inventory.ProbeReport{})})
	require.NoError(t, err)
	awaken(t, wake)
	api.Close() // has sent its notifications
	node, cancel := others.Subscribe(caller.NodeID, caller.Incarnation)
	defer cancel()
	e.exec("SELECT pg_notify('gpuaas_node', $1)", caller.NodeID)
	awaken(t, node)
	asleep(t, elsewhere)
}

func TestReconnectedListenerWakesAll(t *testing.T) {
	e := setup(t)
	l, err := store.NewListener(e.url, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	node := schema.NewID()
	wake, cancel := l.Subscribe(node, 1)
	defer cancel()
	defer listen(t.Context(), l)()
	awaken(t, wake)
	for range 3 {
		require.Positive(t, e.number(`SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = 'gpuaas-listener' AND datname = current_database()) AS killed`))
		awaken(t, wake)
	}
	e.exec("SELECT pg_notify('gpuaas_node', $1)", node)
	awaken(t, wake)
}

func TestListenerWithoutDatabase(t *testing.T) {
	_, err := store.NewListener("postgres://u:hunter2@[::1/db", slog.New(slog.DiscardHandler))
	requireKind(t, err, schema.KindInvalidRequest, "database_url")
	require.NotContains(t, err.Error(), "hunter2")

	u := url.URL{Scheme: "postgres", Host: "127.0.0.1:1", Path: "/db", User: url.UserPassword("u", "hunter2")}
	l, err := store.NewListener(u.String(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	listen(t.Context(), l)() // ends although it never connected
}
