package activities

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// archivePage is how many events one query of the archive reads.
const archivePage = 1000

// audit deletes a batch of archived events. If there are none, it archives the next part.
func (r *retention) audit(ctx context.Context, keep time.Duration) (rows int64, more bool, err error) {
	cuts, err := r.Trail.Deletable(ctx, retentionBatch)
	if err != nil {
		return 0, false, err
	}
	if len(cuts) == 0 {
		more, err := r.archive(ctx, keep)
		return 0, more, err
	}
	checked := map[string]bool{}
	for _, c := range cuts {
		if !checked[c.File.Name] {
			if err := r.Archive.Check(ctx, c.File.Name, c.File.SHA256); err != nil {
				return 0, false, err
			}
			checked[c.File.Name] = true
			activity.RecordHeartbeat(ctx, r.RetentionSummary)
		}
	}
	rows, err = r.Trail.Cut(ctx, cuts)
	return rows, rows > 0, err // none: something needs the events now
}

// archive archives the next part of the trail. It fails if an earlier attempt that still
// runs deletes what it reads: then the part is archived already.
func (r *retention) archive(ctx context.Context, keep time.Duration) (more bool, err error) {
	part, err := r.Trail.NextPart(ctx, keep)
	if err != nil || len(part.Checkpoints) == 0 {
		return false, err
	}
	failed := r.archivePart(ctx, part)
	last, err := r.Trail.LastArchived(ctx)
	if err == nil && last == part.After {
		err = failed
	}
	return last > part.After, err
}

// archivePart writes a part to a file and records it.
func (r *retention) archivePart(ctx context.Context, part audit.ArchivePart) error {
	if last := part.Previous; last.Name != "" {
		// Without the last file, the folder is not the archive: it is not mounted, or another one.
		if err := r.Archive.Check(ctx, last.Name, last.SHA256); err != nil {
			return err
		}
	}
	keys, err := r.Keys(ctx)
	if err != nil {
		return err
	}
	w := archiveWriter{retention: r, part: part, covered: map[audit.Head]string{}}
	if err := w.verify(keys); err != nil {
		return errArchive(err)
	}
	file := audit.ArchiveFile{After: part.After, Last: w.last.Number, Name: audit.ArchiveName(w.last.At, part.After, w.last.Number)}
	file.SHA256, err = r.Archive.Write(ctx, file.Name, func(out io.Writer) error { return w.write(ctx, out) })
	if err != nil {
		return err
	}
	file.Events = w.events
	recorded, err := r.Trail.RecordArchive(ctx, file)
	if recorded {
		r.Archived = append(r.Archived, file.Name)
	}
	return err
}

// errArchive is the error of a trail that does not match its checkpoints. Nothing of it is
// archived or deleted.
func errArchive(cause error) error {
	return schema.NewError(schema.KindInternal, "the audit trail is not archived: %v", cause).
		WithReason("archive_mismatch").WithNext("gpuaas audit --verify")
}

// archiveWriter writes one file.
type archiveWriter struct {
	*retention
	part    audit.ArchivePart
	last    audit.Checkpoint
	covered map[audit.Head]string // hashes that checkpoints name; the keys have none
	events  int64
}

// verify verifies the checkpoints.
func (w *archiveWriter) verify(keys map[string]ed25519.PublicKey) error {
	w.last = audit.Checkpoint{Number: w.part.After, Hash: w.part.AfterHash}
	for _, c := range w.part.Checkpoints {
		body, signed, err := c.Next(w.last.Number, w.last.Hash, keys)
		if err != nil {
			return err
		}
		for _, h := range body.Heads {
			w.covered[audit.Head{Stream: h.Stream, Seq: h.Seq}] = h.Hash
		}
		w.last = signed
	}
	return nil
}

// write writes the lines of the file and verifies the events.
func (w *archiveWriter) write(ctx context.Context, out io.Writer) error {
	w.events = 0
	lines := json.NewEncoder(out)
	for i := range w.part.Checkpoints {
		if err := lines.Encode(audit.ArchiveLine{Checkpoint: &w.part.Checkpoints[i]}); err != nil {
			return err
		}
	}
	for _, s := range w.part.Segments {
		last := &audit.Event{Seq: s.From.Seq, Hash: s.From.Hash}
		for last.Seq < s.Head.Seq {
			page, err := w.Trail.AuditStream(ctx, s.Head.Stream, last.Seq, int(min(archivePage, s.Head.Seq-last.Seq)))
			if err != nil {
				return err
			}
			if len(page) == 0 {
				return errArchive(fmt.Errorf("audit stream %s: the rows after %d are missing", s.Head.Stream, last.Seq))
			}
			if err := w.page(lines, last, page); err != nil {
				return err
			}
			activity.RecordHeartbeat(ctx, w.RetentionSummary)
			last = &page[len(page)-1]
		}
	}
	return nil
}

// page writes the events that follow last.
func (w *archiveWriter) page(lines *json.Encoder, last *audit.Event, page []audit.Event) error {
	if err := audit.VerifyChain(last, page); err != nil {
		return errArchive(err)
	}
	for i, e := range page {
		if hash, ok := w.covered[audit.Head{Stream: e.Stream, Seq: e.Seq}]; ok && hash != e.Hash {
			return errArchive(fmt.Errorf("audit stream %s: row %d was replaced: a checkpoint has another hash", e.Stream, e.Seq))
		}
		if err := lines.Encode(audit.ArchiveLine{Event: &page[i]}); err != nil {
			return err
		}
	}
	w.events += int64(len(page))
	return nil
}
