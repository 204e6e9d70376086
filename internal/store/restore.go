package store

import (
	"context"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/restore"
)

// Restore starts, ends and reads the restore mode; see restore.Mode.
type Restore struct {
	db         *db
	operations *Operations
}

// Start starts a restore mode that ends automatically after d, voids the open enrollment tokens,
// ends the reissues that wait for one of them and all sessions of the console, and records the
// operations that are abandoned already as failed. KindOperationInProgress if one is on.
func (s *Restore) Start(ctx context.Context, reason string, d time.Duration, by audit.Subject) (restore.Mode, error) {
	if d < time.Minute || d > restore.MaxLength {
		return restore.Mode{}, schema.NewError(schema.KindInvalidRequest, "a restore mode lasts from %s to %s", lifecycle.Span(time.Minute), lifecycle.Span(restore.MaxLength))
	}
	err := s.db.write(ctx, "starting the restore mode", func(ctx context.Context, tx *tx) error {
		if err := tx.CloseRestoreMode(ctx); err != nil {
			return err
		}
		if epoch, err := tx.RestoreEpoch(ctx); err != nil {
			return err
		} else if epoch > 0 {
			return schema.NewError(schema.KindOperationInProgress, "the restore mode is on").WithNext("gpuaas admin restore-mode status")
		}
		epoch, err := tx.StartRestoreMode(ctx, cleanText(by.Actor), cleanText(reason), d.Seconds())
		if err != nil {
			return err
		}
		if err := endConsoleSessions(ctx, tx); err != nil {
			return err
		}
		voided, err := voidOpenTokens(ctx, tx)
		if err != nil {
			return err
		}
		e := subjectEvent(by, audit.SystemStream, audit.RestoreStarted, "database", map[string]string{
			"epoch": strconv.FormatInt(epoch, 10), "tokens_voided": strconv.FormatInt(voided, 10), "for": d.String()})
		e.Reason = cleanText(reason)
		tx.note(e)
		return tx.SetTokensVoided(ctx, voided, epoch)
	})
	if err != nil {
		return restore.Mode{}, err
	}
	if err := s.endAbandoned(ctx, reason, by); err != nil {
		return restore.Mode{}, err
	}
	return s.Status(ctx)
}

// endConsoleSessions ends all sessions of the console: those that were logged out in the lost time
// are in the database again.
func endConsoleSessions(ctx context.Context, tx *tx) error {
	has, err := tx.HasConsoleSessions(ctx)
	if err != nil || !has {
		return err
	}
	return tx.EndConsoleSessions(ctx)
}

// voidOpenTokens voids the open enrollment tokens and returns how many there were. It ends the
// reissues that wait for one of them.
func voidOpenTokens(ctx context.Context, tx *tx) (int64, error) {
	nodes := map[string]sqlc.LockNodeRow{}
	ids, err := tx.ReissuedNodes(ctx)
	for _, id := range ids {
		if nodes[id], err = tx.lockNode(ctx, id); err != nil {
			return 0, err
		}
	}
	if err != nil {
		return 0, err
	}
	voided, err := tx.VoidOpenTokens(ctx)
	for _, t := range voided {
		if n, open := nodes[t.NodeID]; open && t.Reissue {
			if err := endReissue(ctx, tx, n, "the restore mode voided its token; unless the node returns automatically, run: "); err != nil {
				return 0, err
			}
		}
	}
	return int64(len(voided)), err
}

// endAbandoned records the operations as failed that were abandoned before the start. Later
// ones end when they are marked (see Operations.Abandon).
func (s *Restore) endAbandoned(ctx context.Context, reason string, by audit.Subject) error {
	nodes, err := query(ctx, s.db, "listing the nodes of abandoned operations", s.db.q.AbandonedNodes)
	for _, id := range nodes {
		if _, err := s.operations.AcceptAbandoned(ctx, id, reason, by); err != nil && schema.AsError(err).Reason != lifecycle.ReasonNotAbandoned {
			return err
		}
	}
	return err
}

// Stop ends the restore mode. It changes nothing if none is on.
func (s *Restore) Stop(ctx context.Context, by audit.Subject) (restore.Mode, error) {
	err := s.db.write(ctx, "ending the restore mode", func(ctx context.Context, tx *tx) error {
		if err := tx.CloseRestoreMode(ctx); err != nil {
			return err
		}
		rows, err := tx.EndRestoreMode(ctx)
		if err != nil || rows == 0 {
			return err
		}
		tx.note(subjectEvent(by, audit.SystemStream, audit.RestoreEnded, "database", map[string]string{}))
		return nil
	})
	if err != nil {
		return restore.Mode{}, err
	}
	return s.Status(ctx)
}

// Status returns the newest restore mode, a zero one before the first start, and the database
// with the sessions of others in it.
func (s *Restore) Status(ctx context.Context) (restore.Mode, error) {
	m, err := restoreStatus(ctx, s.db)
	if err != nil {
		return restore.Mode{}, err
	}
	in, err := s.db.Sessions(ctx)
	m.Database, m.OtherSessions = in.Database, in.Others
	return m, err
}

// restoreStatus reads the newest restore mode, without Database and OtherSessions.
func restoreStatus(ctx context.Context, db *db) (restore.Mode, error) {
	r, err := query(ctx, db, "reading the restore mode", db.q.RestoreStatus)
	if postgres.NotFound(err) || schema.KindOf(err) == schema.KindNotFound {
		return restore.Mode{Absent: []string{}}, nil
	}
	if err != nil {
		return restore.Mode{}, err
	}
	m := restore.Mode{
		On: r.OnNow, Epoch: r.Epoch, StartedAt: r.StartedAt.UTC(), EndsAt: r.EndsAt.UTC(), Actor: r.Actor, Reason: r.Reason,
		NodesAhead: r.NodesAhead, TasksMissing: r.TasksMissing, IdentitiesAdopted: r.IdentitiesAdopted, OperationsEnded: r.OperationsEnded,
		TokensVoided: r.TokensVoided, UnknownNodes: r.UnknownNodes, LostSets: r.LostSets, Absent: append([]string{}, r.Absent...),
	}
	if at := r.LastAuditAt; at != nil {
		m.LastAuditAt = at.UTC()
		m.AuditGapSeconds = int64(r.StartedAt.Sub(*at).Seconds())
	}
	return m, nil
}

// restoring reports whether the restore mode is on.
func (tx *tx) restoring(ctx context.Context) (bool, error) {
	epoch, err := tx.RestoreEpoch(ctx)
	return epoch > 0, err
}

// stateAfter returns the state of a node whose operation ended in a restore mode: active if
// the node was enrolled in the time that the database does not have.
func stateAfter(ctx context.Context, tx *tx, nodeID string, to lifecycle.NodeState) (lifecycle.NodeState, error) {
	if to.Enrolled() {
		return to, nil
	}
	on, err := tx.restoring(ctx)
	if err != nil || !on {
		return to, err
	}
	_, err = tx.CurrentCertificate(ctx, nodeID)
	if postgres.NotFound(err) {
		return to, nil
	}
	return lifecycle.NodeActive, err
}
