package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// Retention deletes old records and keeps the record of archived parts of the audit trail. It
// implements activities.OldRecords and activities.AuditTrail.
type Retention struct {
	db     *db
	events *Admin
}

// archiveBatch is how many checkpoints one query of NextPart reads.
const archiveBatch = 100

// DeleteTasks implements activities.OldRecords.
func (s *Retention) DeleteTasks(ctx context.Context, keep time.Duration, limit int) (int64, error) {
	return query(ctx, s.db, "deleting old tasks", func(ctx context.Context) (int64, error) {
		return s.db.q.DeleteOldTasks(ctx, keep.Seconds(), int64(limit))
	})
}

// DeleteIdentities implements activities.OldRecords.
func (s *Retention) DeleteIdentities(ctx context.Context, keep time.Duration, limit int) (int64, error) {
	return query(ctx, s.db, "deleting old identities", func(ctx context.Context) (int64, error) {
		return s.db.q.DeleteOldIdentities(ctx, keep.Seconds(), int64(limit))
	})
}

// DeleteMessages implements activities.OldRecords.
func (s *Retention) DeleteMessages(ctx context.Context, keep time.Duration, limit int) (int64, error) {
	return query(ctx, s.db, "deleting old messages", func(ctx context.Context) (int64, error) {
		return s.db.q.DeleteOldMessages(ctx, keep.Seconds(), int64(limit))
	})
}

// Succeeded implements activities.OldRecords.
func (s *Retention) Succeeded(ctx context.Context) error {
	return s.db.Call(ctx, "recording that old records are deleted", s.db.q.RetentionSucceeded)
}

// NextPart implements activities.AuditTrail. A day is archived once it ended, so that a part
// depends only on what was archived before it.
func (s *Retention) NextPart(ctx context.Context, keep time.Duration) (audit.ArchivePart, error) {
	return query(ctx, s.db, "reading the next part of the audit trail to archive", func(ctx context.Context) (p audit.ArchivePart, err error) {
		before, err := s.db.q.TimeBefore(ctx, keep.Seconds())
		if err != nil {
			return p, err
		}
		last, err := s.lastArchive(ctx)
		if err != nil {
			return p, err
		}
		p.After, p.AfterHash = last.LastCheckpoint, last.Hash
		p.Previous = audit.ArchiveFile{Last: last.LastCheckpoint, Name: last.File, SHA256: last.Sha256}
		b := partBuilder{q: s.db.q, part: p, before: before.UTC().Truncate(24 * time.Hour), open: map[string]int{}, archived: map[string]audit.Head{}}
		err = b.collect(ctx)
		return b.part, err
	})
}

// partBuilder collects the checkpoints of a part.
type partBuilder struct {
	q      *sqlc.Queries
	part   audit.ArchivePart
	before time.Time
	day    string
	events int64
	open   map[string]int // the segment of each stream
	// archived is the last archived head of each stream of the checkpoints read so far.
	archived map[string]audit.Head
}

func (b *partBuilder) collect(ctx context.Context) error {
	for after := b.part.After; ; {
		batch, err := b.q.CheckpointsAfter(ctx, after, archiveBatch)
		if err != nil || len(batch) == 0 {
			return err
		}
		same, err := b.ofDay(batch)
		if err != nil {
			return err
		}
		if err := b.begin(ctx, same); err != nil {
			return err
		}
		for _, c := range same {
			if b.add(c) >= audit.MaxArchiveEvents {
				return nil
			}
		}
		if len(same) < len(batch) {
			return nil
		}
		after = batch[len(batch)-1].Number
	}
}

// partCheckpoint is a checkpoint of a part, with its heads.
type partCheckpoint struct {
	audit.StoredCheckpoint
	heads []audit.Head
}

// ofDay returns the first checkpoints of a batch that belong to the day of the part.
func (b *partBuilder) ofDay(batch []sqlc.CheckpointsAfterRow) (same []partCheckpoint, err error) {
	for _, row := range batch {
		signed, err := audit.ParseCheckpoint(row.Signed)
		if err != nil {
			return nil, err
		}
		day := signed.At.UTC().Format(time.DateOnly)
		if !signed.At.Before(b.before) || b.day != "" && day != b.day {
			break
		}
		var body audit.CheckpointBody
		if err := json.Unmarshal(row.Body, &body); err != nil {
			return nil, schema.Wrap(schema.KindInternal, err, "reading audit checkpoint %d", row.Number)
		}
		b.day = day
		same = append(same, partCheckpoint{audit.StoredCheckpoint{Body: row.Body, Signed: row.Signed}, body.Heads})
	}
	return same, nil
}

// add adds a checkpoint, whose streams have segments, and returns the events of the part.
func (b *partBuilder) add(c partCheckpoint) (events int64) {
	b.part.Checkpoints = append(b.part.Checkpoints, c.StoredCheckpoint)
	for _, h := range c.heads {
		i, ok := b.open[h.Stream]
		if !ok {
			i = len(b.part.Segments)
			b.open[h.Stream] = i
			from := b.archived[h.Stream]
			b.part.Segments = append(b.part.Segments, audit.ArchiveSegment{From: from, Head: audit.Head{Stream: h.Stream, Seq: from.Seq}})
		}
		s := &b.part.Segments[i]
		b.events += h.Seq - s.Head.Seq
		s.Head = h
	}
	return b.events
}

// begin reads where the segments of the checkpoints' streams begin, in one query for all.
func (b *partBuilder) begin(ctx context.Context, checkpoints []partCheckpoint) error {
	var streams []string
	for _, c := range checkpoints {
		for _, h := range c.heads {
			if _, known := b.archived[h.Stream]; !known {
				streams = append(streams, h.Stream)
				b.archived[h.Stream] = audit.Head{Stream: h.Stream}
			}
		}
	}
	if len(streams) == 0 {
		return nil
	}
	archived, err := b.q.ArchivedHeads(ctx, streams, b.part.After)
	for _, a := range archived {
		b.archived[a.Stream] = audit.Head{Stream: a.Stream, Seq: a.Seq, Hash: a.Hash}
	}
	return err
}

// AuditStream implements activities.AuditTrail.
func (s *Retention) AuditStream(ctx context.Context, stream string, after int64, limit int) ([]audit.Event, error) {
	return s.events.AuditStream(ctx, stream, after, limit)
}

// LastArchived implements activities.AuditTrail.
func (s *Retention) LastArchived(ctx context.Context) (int64, error) {
	last, err := query(ctx, s.db, "reading the last archived audit checkpoint", s.lastArchive)
	return last.LastCheckpoint, err
}

// lastArchive returns the last file, zero if there is none.
func (s *Retention) lastArchive(ctx context.Context) (sqlc.LastArchiveRow, error) {
	row, err := s.db.q.LastArchive(ctx)
	return row, orMissing(err, nil)
}

// RecordArchive implements activities.AuditTrail.
func (s *Retention) RecordArchive(ctx context.Context, f audit.ArchiveFile) (bool, error) {
	return query(ctx, s.db, "recording the file "+f.Name+" of the audit archive", func(ctx context.Context) (bool, error) {
		return s.db.q.RecordArchive(ctx, sqlc.RecordArchiveParams{AfterCheckpoint: f.After, LastCheckpoint: f.Last, File: f.Name, Sha256: f.SHA256, Events: f.Events})
	})
}

// Deletable implements activities.AuditTrail.
func (s *Retention) Deletable(ctx context.Context, limit int) ([]audit.Cut, error) {
	rows, err := query(ctx, s.db, "listing archived audit events", func(ctx context.Context) ([]sqlc.DeletableAuditRow, error) {
		return s.db.q.DeletableAudit(ctx, int64(limit))
	})
	return convert(rows, func(r sqlc.DeletableAuditRow) audit.Cut {
		return audit.Cut{Stream: r.Stream, Seq: r.Seq, File: audit.ArchiveFile{Name: r.File, SHA256: r.Sha256}}
	}), err
}

// Cut implements activities.AuditTrail.
func (s *Retention) Cut(ctx context.Context, cuts []audit.Cut) (int64, error) {
	streams, seqs := make([]string, len(cuts)), make([]int64, len(cuts))
	for i, c := range cuts {
		streams[i], seqs[i] = c.Stream, c.Seq
	}
	return query(ctx, s.db, "deleting archived audit events", func(ctx context.Context) (int64, error) {
		return s.db.q.CutAudit(ctx, streams, seqs)
	})
}
