package store

import (
	"context"
	"crypto/sha256"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// Console stores the sessions of the operator console. It implements console.Sessions and console.Trail. The
// database's clock decides when a session expires.
type Console struct{ db *db }

// CreateSession implements console.Sessions.
func (s *Console) CreateSession(ctx context.Context, n console.Session) error {
	return s.db.Call(ctx, "storing a session of the console", func(ctx context.Context) error {
		return s.db.q.CreateConsoleSession(ctx, sqlc.CreateConsoleSessionParams{ID: n.ID[:], TokenHash: n.Token[:], Subject: n.Subject,
			Keep: console.MaxSessions, AgeSeconds: console.SessionAge.Seconds()})
	})
}

// FindSession implements console.Sessions.
func (s *Console) FindSession(ctx context.Context, id [sha256.Size]byte, used bool) (console.Session, error) {
	return query(ctx, s.db, "reading a session of the console", func(ctx context.Context) (console.Session, error) {
		row, err := s.db.q.FindConsoleSession(ctx, console.SeenEvery.Seconds(), id[:], console.SessionIdle.Seconds())
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

// BulkStopped implements console.Trail. The audit row is in the system stream.
func (s *Console) BulkStopped(ctx context.Context, stop console.BulkStop, by audit.Subject) error {
	_, err := write(ctx, s.db, "recording the stop of a bulk run", func(ctx context.Context, tx *tx) (struct{}, error) {
		if err := tx.LockBulkStop(ctx, stop.ID); err != nil {
			return struct{}{}, err
		}
		noted, err := tx.BulkStopNoted(ctx, audit.SystemStream, audit.BulkStopped, stop.ID)
		if err != nil || noted {
			return struct{}{}, err
		}
		e := subjectEvent(by, audit.SystemStream, audit.BulkStopped, stop.ID, map[string]string{"run": stop.Run, "started_by": stop.StartedBy,
			"requests": strconv.Itoa(stop.Requests), "sent": strconv.Itoa(stop.Sent)})
		e.Reason = stop.Reason
		tx.note(e)
		return struct{}{}, nil
	})
	return err
}

// DeleteSessions implements activities.OldRecords.
func (s *Retention) DeleteSessions(ctx context.Context, keep time.Duration, limit int) (int64, error) {
	return query(ctx, s.db, "deleting old sessions of the console", func(ctx context.Context) (int64, error) {
		return s.db.q.DeleteOldConsoleSessions(ctx, console.SessionIdle.Seconds(), keep.Seconds(), int64(limit))
	})
}
