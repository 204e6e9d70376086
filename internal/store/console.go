package store

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/schema"
)

// Console stores the sessions of the operator console. It implements console.Sessions. The
// database's clock decides when a session expires.
type Console struct{ db *db }

// CreateSession implements console.Sessions.
func (s *Console) CreateSession(ctx context.Context, n console.Session) error {
	const expired = `DELETE FROM console_sessions WHERE id IN (SELECT id FROM console_sessions
		WHERE expires_at < now() OR last_seen_at < now() - make_interval(secs => $1::float8) LIMIT 1000)`
	const create = `INSERT INTO console_sessions (id, token_hash, subject, expires_at) VALUES ($1, $2, $3, now() + make_interval(secs => $4::float8))`
	return s.db.Call(ctx, "storing a session of the console", func(ctx context.Context) error {
		_, err := s.db.Pool().Exec(ctx, expired, console.SessionIdle.Seconds())
		if err == nil {
			_, err = s.db.Pool().Exec(ctx, create, n.ID[:], n.Token[:], n.Subject, console.SessionAge.Seconds())
		}
		return err
	})
}

// FindSession implements console.Sessions.
func (s *Console) FindSession(ctx context.Context, id [sha256.Size]byte, used bool) (console.Session, error) {
	const find = `SELECT token_hash, subject, last_seen_at, now() FROM console_sessions
		WHERE id = $1 AND expires_at > now() AND last_seen_at > now() - make_interval(secs => $2::float8)`
	found := console.Session{ID: id}
	return query(ctx, s.db, "reading a session of the console", func(ctx context.Context) (console.Session, error) {
		var token []byte
		var seen, now time.Time
		err := s.db.Pool().QueryRow(ctx, find, id[:], console.SessionIdle.Seconds()).Scan(&token, &found.Subject, &seen, &now)
		if err != nil {
			return found, orMissing(err, schema.NewError(schema.KindNotFound, "no such session"))
		}
		copy(found.Token[:], token)
		if used && now.Sub(seen) > console.SeenEvery {
			_, err = s.db.Pool().Exec(ctx, `UPDATE console_sessions SET last_seen_at = now() WHERE id = $1`, id[:])
		}
		return found, err
	})
}

// DeleteSession implements console.Sessions.
func (s *Console) DeleteSession(ctx context.Context, id [sha256.Size]byte) error {
	return s.db.Call(ctx, "deleting a session of the console", func(ctx context.Context) error {
		_, err := s.db.Pool().Exec(ctx, `DELETE FROM console_sessions WHERE id = $1`, id[:])
		return err
	})
}
