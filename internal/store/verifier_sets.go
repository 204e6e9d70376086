package store

import (
	"context"
	"strconv"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// PutSet stores the verifier set whose version and previous hash follow the newest
// one, with an audit row, and wakes the followers after the commit. Storing the same
// set again is a no-op. KindInvalidRequest, reason set_outdated, if another set was
// stored first.
func (s *Identities) PutSet(ctx context.Context, set trust.StoredSet, by audit.Subject) error {
	return s.db.write(ctx, "storing a verifier set", func(ctx context.Context, tx *tx) error { return putSet(ctx, tx, set, by) })
}

func putSet(ctx context.Context, tx *tx, set trust.StoredSet, by audit.Subject) error {
	rows, err := tx.InsertVerifierSet(ctx, sqlc.InsertVerifierSetParams{Version: set.Version, Epoch: set.Epoch,
		Hash: set.Hash, PrevHash: set.PrevHash, Document: set.Document})
	if err != nil {
		return err
	}
	if rows == 1 {
		tx.note(subjectEvent(by, audit.SystemStream, audit.SetPublished, set.Hash,
			map[string]string{"version": strconv.FormatInt(set.Version, 10), "epoch": strconv.FormatInt(set.Epoch, 10)}))
		tx.notify(channelSets, "")
		return nil
	}
	stored, err := tx.GetVerifierSet(ctx, set.Version)
	if err != nil && !postgres.NotFound(err) {
		return err
	}
	if err == nil && stored.Hash == set.Hash {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "verifier set %d does not follow the newest one", set.Version).
		WithReason("set_outdated")
}

// NewestSet returns the newest verifier set. KindNotFound when there is none.
func (s *Identities) NewestSet(ctx context.Context) (trust.StoredSet, error) {
	row, err := query(ctx, s.db, "reading the newest verifier set", func(ctx context.Context) (sqlc.NewestVerifierSetRow, error) {
		row, err := s.db.q.NewestVerifierSet(ctx)
		return row, orMissing(err, schema.NewError(schema.KindNotFound, "there is no verifier set").WithNext("gpuaas admin setup"))
	})
	set := storedSet(sqlc.VerifierSetsAfterRow{Version: row.Version, Epoch: row.Epoch, Hash: row.Hash, PrevHash: row.PrevHash, Document: row.Document})
	set.Restored, set.Restoring = row.Restored, row.Restoring
	return set, err
}

// SetsAfter returns up to limit verifier sets above a version, in order.
func (s *Identities) SetsAfter(ctx context.Context, version int64, limit int) ([]trust.StoredSet, error) {
	rows, err := query(ctx, s.db, "reading verifier sets", func(ctx context.Context) ([]sqlc.VerifierSetsAfterRow, error) {
		return s.db.q.VerifierSetsAfter(ctx, version, int32(limit))
	})
	return convert(rows, storedSet), err
}

func storedSet(r sqlc.VerifierSetsAfterRow) trust.StoredSet {
	return trust.StoredSet{Version: r.Version, Epoch: r.Epoch, Hash: r.Hash, PrevHash: r.PrevHash, Document: r.Document}
}
