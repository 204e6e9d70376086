package store_test

import (
	"crypto/sha256"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// A session ends at its age, and when nobody used it for long. Automatic requests do not count as use.
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
	require.NoError(t, sessions.CreateSession(ctx, other))
	exec(`DO $$ BEGIN IF (SELECT count(*) FROM console_sessions) <> 1 THEN RAISE 'the expired session is left'; END IF; END $$`)
	require.NoError(t, sessions.DeleteSession(ctx, other.ID))
	require.NoError(t, sessions.DeleteSession(ctx, other.ID))
	_, err = sessions.FindSession(ctx, other.ID, false)
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
}
