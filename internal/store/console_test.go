package store_test

import (
	"crypto/sha256"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// A session ends at its age, and when it was not used for long. Automatic requests do not count as use.
func TestConsoleSessions(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t, store.Migrate)
	owner, err := store.Open(t.Context(), store.Config{URL: url})
	require.NoError(t, err)
	defer owner.Close()
	admin, err := store.Open(t.Context(), store.Config{URL: pgtest.As(url, store.RoleAPIAdmin)})
	require.NoError(t, err)
	defer admin.Close()
	sessions, ctx := admin.Console, t.Context()
	exec := func(sql string) {
		t.Helper()
		conn, err := pgx.Connect(ctx, url)
		require.NoError(t, err)
		_, err = conn.Exec(ctx, sql)
		require.NoError(t, err)
		require.NoError(t, conn.Close(ctx))
	}
	session := console.Session{ID: sha256.Sum256([]byte("cookie")), Token: sha256.Sum256([]byte("token")), Subject: "ops"}

	_, err = sessions.FindSession(ctx, session.ID, true)
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
	require.NoError(t, sessions.CreateSession(ctx, session))
	found, err := sessions.FindSession(ctx, session.ID, true)
	require.NoError(t, err)
	require.Equal(t, session, found)

	exec(`UPDATE console_sessions SET last_seen_at = now() - interval '59 minutes'`)
	_, err = sessions.FindSession(ctx, session.ID, false)
	require.NoError(t, err)
	exec(`UPDATE console_sessions SET last_seen_at = last_seen_at - interval '2 minutes'`)
	_, err = sessions.FindSession(ctx, session.ID, true)
	require.Equal(t, schema.KindNotFound, schema.KindOf(err), "the automatic request was no use")

	exec(`UPDATE console_sessions SET last_seen_at = now() - interval '59 minutes'`)
	_, err = sessions.FindSession(ctx, session.ID, true)
	require.NoError(t, err)
	exec(`UPDATE console_sessions SET last_seen_at = last_seen_at - interval '2 minutes'`)
	_, err = sessions.FindSession(ctx, session.ID, true)
	require.NoError(t, err, "it was used")

	exec(`UPDATE console_sessions SET expires_at = now()`)
	_, err = sessions.FindSession(ctx, session.ID, true)
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
	other := console.Session{ID: sha256.Sum256([]byte("other")), Subject: "ops"}
	worker, err := store.Open(ctx, store.Config{URL: pgtest.As(url, store.RoleWorker)})
	require.NoError(t, err)
	defer worker.Close()
	deleted, err := worker.Retention.DeleteSessions(ctx, time.Hour, 10)
	require.NoError(t, err)
	require.Zero(t, deleted, "it ended now")
	exec(`UPDATE console_sessions SET last_seen_at = now() - interval '121 minutes' WHERE subject = 'ops'`)
	require.NoError(t, sessions.CreateSession(ctx, other))
	deleted, err = worker.Retention.DeleteSessions(ctx, time.Hour, 10)
	require.NoError(t, err)
	require.EqualValues(t, 1, deleted)
	require.NoError(t, sessions.DeleteSession(ctx, other.ID))
	require.NoError(t, sessions.DeleteSession(ctx, other.ID))
	_, err = sessions.FindSession(ctx, other.ID, false)
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
}

// A login beyond the number of sessions of a token ends the one that was not used for the longest time,
// and none of another token.
func TestConsoleSessionsOfOneToken(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t, store.Migrate)
	s, err := store.Open(t.Context(), store.Config{URL: pgtest.As(url, store.RoleAPIAdmin)})
	require.NoError(t, err)
	defer s.Close()
	session := func(token, cookie string) console.Session {
		return console.Session{ID: sha256.Sum256([]byte(cookie)), Token: sha256.Sum256([]byte(token)), Subject: "ops"}
	}
	open := func(of console.Session) bool {
		_, err := s.Console.FindSession(t.Context(), of.ID, false)
		return err == nil
	}
	other := session("other", "other")
	require.NoError(t, s.Console.CreateSession(t.Context(), other))
	for i := range console.MaxSessions + 2 {
		require.NoError(t, s.Console.CreateSession(t.Context(), session("token", strconv.Itoa(i))))
	}
	require.True(t, open(other))
	for i := range console.MaxSessions + 2 {
		require.Equal(t, i >= 2, open(session("token", strconv.Itoa(i))), i)
	}
}

// The audit trail names who stopped a bulk run, and who started it. A second record of the run does nothing:
// the response to the commit of the first may be lost, and the first may still be in progress.
func TestConsoleBulkStopped(t *testing.T) {
	t.Parallel()
	s, err := store.Open(t.Context(), store.Config{URL: pgtest.As(pgtest.New(t, store.Migrate), store.RoleAPIAdmin)})
	require.NoError(t, err)
	defer s.Close()
	stop := console.BulkStop{ID: "0190b6c2-1111-7aaa-8bbb-000000000001", Run: "drain", StartedBy: "alice", Reason: "rack r7", Requests: 20, Sent: 3}
	for _, err := range race(10, func(int) error {
		return s.Console.BulkStopped(t.Context(), stop, audit.Subject{Actor: "bob", Via: console.Via, CorrelationID: "c-1"})
	}) {
		require.NoError(t, err)
	}
	events, err := s.Admin.AuditStream(t.Context(), audit.SystemStream, 0, 10)
	require.NoError(t, err)
	require.Len(t, events, 1)
	e := events[0]
	require.Equal(t, []string{"bob", "console", audit.BulkStopped, stop.ID, audit.Succeeded, "rack r7", "c-1"},
		[]string{e.Actor, e.Via, e.Action, e.Target, e.Result, e.Reason, e.CorrelationID})
	require.Equal(t, map[string]string{"run": "drain", "started_by": "alice", "requests": "20", "sent": "3"}, e.Detail)
}
