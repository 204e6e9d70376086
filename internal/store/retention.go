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
		b := partBuilder{q: s.db.q, part: p, before: before.UTC().Truncate(24 * time.Hour), open: map[string]int{}}
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
}

func (b *partBuilder) collect(ctx context.Context) error {
	for after := b.part.After; ; {
		batch, err := b.q.CheckpointsAfter(ctx, after, archiveBatch)
		if err != nil || len(batch) == 0 {
			return err
		}
		for _, row := range batch {
			ends, err := b.add(ctx, row)
			if err != nil || ends {
				return err
			}
		}
		after = batch[len(batch)-1].Number
	}
}

// add adds a checkpoint, and reports whether the part ends before or after it.
func (b *partBuilder) add(ctx context.Context, row sqlc.CheckpointsAfterRow) (ends bool, err error) {
	signed, err := audit.ParseCheckpoint(row.Signed)
	if err != nil {
		return false, err
	}
	day := signed.At.UTC().Format(time.DateOnly)
	if !signed.At.Before(b.before) || b.day != "" && day != b.day {
		return true, nil
	}
	var body audit.CheckpointBody
	if err := json.Unmarshal(row.Body, &body); err != nil {
		return false, schema.Wrap(schema.KindInternal, err, "reading audit checkpoint %d", row.Number)
	}
	b.day = day
	b.part.Checkpoints = append(b.part.Checkpoints, audit.StoredCheckpoint{Body: row.Body, Signed: row.Signed})
	if err := b.begin(ctx, body.Heads); err != nil {
		return false, err
	}
	for _, h := range body.Heads {
		s := &b.part.Segments[b.open[h.Stream]]
		b.events += h.Seq - s.Head.Seq
		s.Head = h
	}
	return b.events >= audit.MaxArchiveEvents, nil
}

// begin begins the segments of the streams that have none yet.
func (b *partBuilder) begin(ctx context.Context, heads []audit.Head) error {
	var streams []string
	for _, h := range heads {
		if _, ok := b.open[h.Stream]; !ok {
			streams = append(streams, h.Stream)
			b.open[h.Stream] = len(b.part.Segments)
			from := audit.Head{Stream: h.Stream}
			b.part.Segments = append(b.part.Segments, audit.ArchiveSegment{From: from, Head: from})
		}
	}
	if len(streams) == 0 {
		return nil
	}
	archived, err := b.q.ArchivedHeads(ctx, streams, b.part.After)
	for _, a := range archived {
		s := &b.part.Segments[b.open[a.Stream]]
		s.From.Seq, s.From.Hash, s.Head.Seq = a.Seq, a.Hash, a.Seq
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
