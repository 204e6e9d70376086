package postgres_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

func open(t *testing.T) (*postgres.DB, string) {
	t.Helper()
	url := pgtest.Empty(t)
	db, err := postgres.Open(t.Context(), postgres.Config{URL: url})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db, url
}

func TestNotifierSendsEachOnce(t *testing.T) {
	t.Parallel()
	db, url := open(t)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), "LISTEN a; LISTEN b")
	require.NoError(t, err)

	n := postgres.NewNotifier(db, time.Millisecond, slog.New(slog.DiscardHandler))
	for range 100 {
		n.Notify(postgres.Notification{Channel: "a", Payload: "1"}, postgres.Notification{Channel: "a", Payload: "2"})
	}
	n.Notify()
	n.Notify(postgres.Notification{Channel: "b"})
	n.Close()
	n.Notify(postgres.Notification{Channel: "a", Payload: "dropped"})
	n.Close()
	got := map[postgres.Notification]int{}
	for range 2 + 1 {
		r, err := conn.WaitForNotification(t.Context())
		require.NoError(t, err)
		got[postgres.Notification{Channel: r.Channel, Payload: r.Payload}]++
	}
	require.Equal(t, map[postgres.Notification]int{{Channel: "a", Payload: "1"}: 1, {Channel: "a", Payload: "2"}: 1, {Channel: "b"}: 1}, got)
}

func TestNotifierDropsWhatItCannotSend(t *testing.T) {
	t.Parallel()
	db, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Empty(t), CallTimeout: time.Second})
	require.NoError(t, err)
	db.Close()
	n := postgres.NewNotifier(db, 0, slog.New(slog.DiscardHandler))
	n.Notify(postgres.Notification{Channel: "a"})
	n.Close() // returns although the pool is closed
}
