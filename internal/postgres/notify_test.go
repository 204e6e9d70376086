package postgres

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

func open(t *testing.T) (*DB, string) {
	t.Helper()
	url := pgtest.Empty(t)
	db, err := Open(t.Context(), Config{URL: url})
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

	n := NewNotifier(db, time.Hour, slog.New(slog.DiscardHandler))
	n.flushed = time.Now()
	for range 100 {
		n.Notify(Notification{Channel: "a", Payload: "1"}, Notification{Channel: "a", Payload: "2"})
	}
	n.run() // the pause is over
	n.Close()
	n.Notify(Notification{Channel: "a", Payload: "dropped"})
	n.Close()
	n = NewNotifier(db, time.Millisecond, slog.New(slog.DiscardHandler))
	n.Notify()
	n.Notify(Notification{Channel: "b"})
	n.Close()
	_, err = conn.Exec(t.Context(), "NOTIFY b, 'last'")
	require.NoError(t, err)
	got := map[Notification]int{}
	for got[Notification{Channel: "b", Payload: "last"}] == 0 {
		r, err := conn.WaitForNotification(t.Context())
		require.NoError(t, err)
		got[Notification{Channel: r.Channel, Payload: r.Payload}]++
	}
	require.Equal(t, map[Notification]int{{Channel: "a", Payload: "1"}: 1, {Channel: "a", Payload: "2"}: 1,
		{Channel: "b"}: 1, {Channel: "b", Payload: "last"}: 1}, got)
}

func TestNotifierDropsWhatItCannotSend(t *testing.T) {
	t.Parallel()
	db, err := Open(t.Context(), Config{URL: pgtest.Empty(t)})
	require.NoError(t, err)
	db.Close()
	n := NewNotifier(db, 0, slog.New(slog.DiscardHandler))
	n.Notify(Notification{Channel: "a"})
	n.Close() // returns although the pool is closed
}
