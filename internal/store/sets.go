package store

import (
	"context"
	"strconv"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// maxSets bounds what SetsAfter returns.
const maxSets = 64

// PutSet stores the next verifier set, with an audit row by the actor, and wakes
// whoever follows the sets: the one
// whose version and previous hash follow the newest. The same set again is nil.
// KindInvalidRequest, reason set_outdated, when another set was faster.
func (s *Store) PutSet(ctx context.Context, set trust.StoredSet, by audit.Subject) error {
	return s.write(ctx, "storing a verifier set", func(ctx context.Context, u *unit) error {
		rows, err := u.InsertVerifierSet(ctx, sqlc.InsertVerifierSetParams{Version: set.Version, Epoch: set.Epoch,
			Hash: set.Hash, PrevHash: set.PrevHash, Document: set.Document})
		if err != nil {
			return err
		}
		if rows == 1 {
			u.note(audit.Event{Stream: audit.SystemStream, Actor: by.Actor, Action: audit.SetPublished,
				Target: set.Hash, Result: audit.Succeeded, CorrelationID: by.CorrelationID,
				Detail: map[string]string{"version": strconv.FormatInt(set.Version, 10), "epoch": strconv.FormatInt(set.Epoch, 10)}})
			return u.later.Notify(ctx, channelSets, "")
		}
		stands, err := u.GetVerifierSet(ctx, set.Version)
		if err != nil && !notFound(err) {
			return err
		}
		if err == nil && stands.Hash == set.Hash {
			return nil
		}
		return schema.NewError(schema.KindInvalidRequest, "verifier set %d does not follow the newest one", set.Version).
			WithReason("set_outdated")
	})
}

// NewestSet returns the newest verifier set. KindNotFound when there is none.
func (s *Store) NewestSet(ctx context.Context) (trust.StoredSet, error) {
	var set trust.StoredSet
	err := s.read(ctx, "reading the newest verifier set", func(ctx context.Context) error {
		row, err := s.q.NewestVerifierSet(ctx)
		if notFound(err) {
			return schema.NewError(schema.KindNotFound, "there is no verifier set").WithNext("gpuaas admin setup")
		}
		set = storedSet(sqlc.VerifierSetsAfterRow(row))
		return err
	})
	return set, err
}

// SetsAfter returns up to limit verifier sets above a version, in order; limit
// is at most 64.
func (s *Store) SetsAfter(ctx context.Context, version int64, limit int) ([]trust.StoredSet, error) {
	var sets []trust.StoredSet
	err := s.read(ctx, "reading verifier sets", func(ctx context.Context) error {
		rows, err := s.q.VerifierSetsAfter(ctx, version, int32(min(limit, maxSets)))
		for _, r := range rows {
			sets = append(sets, storedSet(r))
		}
		return err
	})
	return sets, err
}

func storedSet(r sqlc.VerifierSetsAfterRow) trust.StoredSet {
	return trust.StoredSet{Version: r.Version, Epoch: r.Epoch, Hash: r.Hash, PrevHash: r.PrevHash, Document: r.Document}
}
