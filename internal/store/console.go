package store

import (
	"context"
	"crypto/sha256"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
)

// Console stores the sessions of the operator console. It implements console.Sessions.
type Console struct{ db *db }

// CreateSession implements console.Sessions.
func (s *Console) CreateSession(ctx context.Context, n console.Session) error {
	return s.db.Call(ctx, "storing a session of the console", func(ctx context.Context) error {
		if err := s.db.q.DeleteOldConsoleSessions(ctx, console.SessionIdle.Seconds()); err != nil {
			return err
		}
		return s.db.q.CreateConsoleSession(ctx, sqlc.CreateConsoleSessionParams{ID: n.ID[:], TokenHash: n.Token[:], Subject: n.Subject,
			AgeSeconds: console.SessionAge.Seconds()})
	})
}

// FindSession implements console.Sessions.
func (s *Console) FindSession(ctx context.Context, id [sha256.Size]byte, used bool) (console.Session, error) {
	return query(ctx, s.db, "reading a session of the console", func(ctx context.Context) (console.Session, error) {
		row, err := s.db.q.GetConsoleSession(ctx, sqlc.GetConsoleSessionParams{ID: id[:], SeenSeconds: console.SeenEvery.Seconds(),
			IdleSeconds: console.SessionIdle.Seconds()})
		if err != nil {
			return console.Session{}, orMissing(err, schema.NewError(schema.KindNotFound, "no such session"))
		}
		if used && row.Unseen {
			err = s.db.q.SeeConsoleSession(ctx, id[:])
		}
		return console.Session{ID: id, Token: [sha256.Size]byte(row.TokenHash), Subject: row.Subject}, err
	})
}

// DeleteSession implements console.Sessions.
func (s *Console) DeleteSession(ctx context.Context, id [sha256.Size]byte) error {
	return s.db.Call(ctx, "deleting a session of the console", func(ctx context.Context) error {
		return s.db.q.DeleteConsoleSession(ctx, id[:])
	})
}
