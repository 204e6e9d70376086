package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// Checkpoints stores the signed checkpoints of the audit trail, and those that nodes keep
// and the database lost. It implements the worker's and nodeapi's ports for checkpoints.
type Checkpoints struct{ db *db }

// maxCheckpointHeads bounds the heads of a checkpoint. The next one has the others.
const maxCheckpointHeads = 5000

// uncoveredAfter is the age at which an event without a checkpoint is a fault.
const uncoveredAfter = 10 * time.Minute

// Newest returns the newest checkpoint, zero if there is none.
func (s *Checkpoints) Newest(ctx context.Context) (audit.Checkpoint, error) {
	row, err := query(ctx, s.db, "reading the newest audit checkpoint", s.db.q.NewestCheckpoint)
	if postgres.NotFound(err) {
		return audit.Checkpoint{}, nil
	}
	if err != nil {
		return audit.Checkpoint{}, err
	}
	return audit.ParseCheckpoint(row.Signed)
}

// Next returns the checkpoint that follows the newest one, without heads if no stream
// changed. Its number is above each number that a node keeps, so that nodes adopt it
// after a restore of the database.
func (s *Checkpoints) Next(ctx context.Context) (audit.CheckpointBody, error) {
	return query(ctx, s.db, "preparing an audit checkpoint", func(ctx context.Context) (b audit.CheckpointBody, err error) {
		newest, err := s.db.q.NewestCheckpoint(ctx)
		if err != nil && !postgres.NotFound(err) {
			return b, err
		}
		greatest, err := s.db.q.GreatestCheckpoint(ctx)
		if err != nil {
			return b, err
		}
		heads, err := s.db.q.ChangedHeads(ctx, maxCheckpointHeads)
		b = audit.CheckpointBody{Number: greatest + 1, Prev: newest.Hash, Heads: convert(heads, func(h sqlc.ChangedHeadsRow) audit.Head {
			return audit.Head{Stream: h.Stream, Seq: h.Seq, Hash: h.Hash}
		})}
		slices.SortFunc(b.Heads, func(x, y audit.Head) int { return cmp.Compare(x.Stream, y.Stream) })
		return b, err
	})
}

// Put stores a signed checkpoint and reports whether it did: false if another one follows
// the same checkpoint.
func (s *Checkpoints) Put(ctx context.Context, b audit.CheckpointBody, signed audit.Checkpoint) (stored bool, err error) {
	body, hash, err := b.Encode()
	if err != nil {
		return false, err
	}
	streams, seqs := make([]string, len(b.Heads)), make([]int64, len(b.Heads))
	for i, h := range b.Heads {
		streams[i], seqs[i] = h.Stream, h.Seq
	}
	return write(ctx, s.db, "storing an audit checkpoint", func(ctx context.Context, tx *tx) (bool, error) {
		rows, err := tx.InsertCheckpoint(ctx, sqlc.InsertCheckpointParams{Number: b.Number, Hash: hash, PrevHash: b.Prev, Body: body, Signed: signed.String()})
		if err != nil || rows == 0 {
			return false, err
		}
		return true, tx.SetCheckpointHeads(ctx, streams, seqs)
	})
}

// Has reports whether the checkpoint with the number has the hash.
func (s *Checkpoints) Has(ctx context.Context, number int64, hash string) (bool, error) {
	stored, err := query(ctx, s.db, "reading an audit checkpoint", func(ctx context.Context) (string, error) {
		return s.db.q.CheckpointHash(ctx, number)
	})
	if postgres.NotFound(err) {
		return false, nil
	}
	return stored == hash, err
}

// RecordMissing records a checkpoint that a node keeps and the database lost. The caller
// has verified its signature. Recording it again changes nothing.
func (s *Checkpoints) RecordMissing(ctx context.Context, nodeID string, c audit.Checkpoint) error {
	return s.record(ctx, audit.CheckpointMissing,
		sqlc.InsertMissingCheckpointParams{Number: c.Number, Hash: c.Hash, Verified: true, Signed: c.String(), NodeID: nodeID}, c.String())
}

// RecordUnverified records a checkpoint that a node keeps and that no checkpoint key
// signed. A further one of the node changes nothing until an operator accepts the first.
func (s *Checkpoints) RecordUnverified(ctx context.Context, nodeID string, c audit.Checkpoint) error {
	return s.record(ctx, audit.CheckpointUnverified, // without the text, which a node may choose
		sqlc.InsertMissingCheckpointParams{Number: c.Number, Hash: c.Hash, NodeID: nodeID}, fmt.Sprintf("%d %s", c.Number, c.Hash))
}

func (s *Checkpoints) record(ctx context.Context, action string, row sqlc.InsertMissingCheckpointParams, checkpoint string) error {
	return s.db.write(ctx, "recording the audit checkpoint of a node", func(ctx context.Context, tx *tx) error {
		rows, err := tx.InsertMissingCheckpoint(ctx, row)
		if err == nil && rows > 0 {
			tx.note(audit.Event{Stream: audit.SystemStream, Actor: systemActor, Action: action, Target: row.NodeID, Result: audit.Failed,
				Detail: map[string]string{"checkpoint": checkpoint}})
		}
		return err
	})
}

// AcceptMissing ends the alarms about the checkpoints that nodes keep and the database
// does not have, and returns how many there were.
func (s *Checkpoints) AcceptMissing(ctx context.Context, reason string, by audit.Subject) (int64, error) {
	return write(ctx, s.db, "accepting missing audit checkpoints", func(ctx context.Context, tx *tx) (int64, error) {
		rows, err := tx.AcceptMissingCheckpoints(ctx)
		if err == nil && rows > 0 {
			e := subjectEvent(by, audit.SystemStream, audit.GapAccepted, audit.SystemStream, map[string]string{"checkpoints": fmt.Sprint(rows)})
			e.Reason = reason
			tx.note(e)
		}
		return rows, err
	})
}

// After returns up to limit checkpoints above a number, in order.
func (s *Checkpoints) After(ctx context.Context, number int64, limit int) ([]audit.StoredCheckpoint, error) {
	rows, err := query(ctx, s.db, "listing audit checkpoints", func(ctx context.Context) ([]sqlc.CheckpointsAfterRow, error) {
		return s.db.q.CheckpointsAfter(ctx, number, int32(limit))
	})
	return convert(rows, func(r sqlc.CheckpointsAfterRow) audit.StoredCheckpoint {
		return audit.StoredCheckpoint{Body: r.Body, Signed: r.Signed}
	}), err
}
