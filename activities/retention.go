package activities

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"io"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// OldRecords deletes records of the database. Each method deletes up to limit rows that are
// older than keep and that nothing needs, and returns how many. A second call deletes further
// rows.
type OldRecords interface {
	DeleteTasks(ctx context.Context, keep time.Duration, limit int) (int64, error)
	DeleteIdentities(ctx context.Context, keep time.Duration, limit int) (int64, error)
	DeleteMessages(ctx context.Context, keep time.Duration, limit int) (int64, error)
	// DeleteRepairs deletes decisions and attempts of health recovery.
	DeleteRepairs(ctx context.Context, keep time.Duration, limit int) (int64, error)
	DeleteSignals(ctx context.Context, keep time.Duration, limit int) (int64, error)
	// DeleteEvidence deletes the RMA bundles of repairs.
	DeleteEvidence(ctx context.Context, keep time.Duration, limit int) (int64, error)
	// DeleteSessions deletes sessions of the console that ended more than keep ago.
	DeleteSessions(ctx context.Context, keep time.Duration, limit int) (int64, error)
	// Succeeded records that everything old is deleted.
	Succeeded(ctx context.Context) error
}

// AuditTrail is the database's side of the archive.
type AuditTrail interface {
	// NextPart returns the part of the trail that the next file contains. It has no checkpoints
	// if none is left whose day ended more than keep ago.
	NextPart(ctx context.Context, keep time.Duration) (audit.ArchivePart, error)
	// LastArchived returns the number of the last checkpoint that is archived, 0 without one.
	LastArchived(ctx context.Context) (int64, error)
	// AuditStream returns up to limit events of a stream after seq, in order.
	AuditStream(ctx context.Context, stream string, after int64, limit int) ([]audit.Event, error)
	// RecordArchive records a file that is stored, and reports whether it did: false if
	// another file follows the same checkpoint. A second call returns false.
	RecordArchive(ctx context.Context, f audit.ArchiveFile) (bool, error)
	// Deletable returns up to limit cuts that are archived and that nothing needs.
	Deletable(ctx context.Context, limit int) ([]audit.Cut, error)
	// Cut deletes the events of the cuts, unless something needs them now, and returns how
	// many. A second call deletes nothing.
	Cut(ctx context.Context, cuts []audit.Cut) (int64, error)
}

// Archive keeps the files of the archive.
type Archive interface {
	// Write stores what fill writes under the name, durably, and returns its SHA-256. A file of
	// that name with the same content remains, and one with other content is an error.
	Write(ctx context.Context, name string, fill func(io.Writer) error) (sha256 string, err error)
	// Check returns an error unless the file has the SHA-256.
	Check(ctx context.Context, name, sha256 string) error
}

// Keep is how long each class of records is kept; 0 is forever.
type Keep struct{ Tasks, Identities, Messages, Signals, Repairs, Evidence, Audit time.Duration }

// Retention has the activity that deletes old records.
type Retention struct {
	Records OldRecords
	Trail   AuditTrail
	// Archive is nil if no audit event is deleted.
	Archive Archive
	// Keys returns the public keys of audit checkpoints by key ID.
	Keys func(context.Context) (map[string]ed25519.PublicKey, error)
	Keep Keep
	// OnDelete observes deleted rows. nil observes nothing.
	OnDelete func(class string, rows int64)
	// Budget is the time after which no further batch begins. Defaults to three quarters of
	// lifecycle.RoundTry.
	Budget time.Duration
}

// RetentionSummary is the result of a round.
type RetentionSummary struct {
	// Deleted are the deleted rows by class.
	Deleted map[string]int64 `json:"deleted,omitempty"`
	// Archived are the files that were written.
	Archived []string `json:"archived,omitempty"`
	// More is true if the time was too short for everything.
	More bool `json:"more,omitempty"`
}

// retentionBatch is how many rows one statement deletes, or of how many audit streams.
const retentionBatch = 500

// keepSessions is how long a session of the console is kept after its end.
const keepSessions = time.Hour

// retention is one run of the activity.
type retention struct {
	*Retention
	RetentionSummary
	until time.Time
}

// DeleteOldRecords deletes what is older than its class is kept, in batches. A second attempt
// continues, because what is deleted or archived stays so. If one class fails, it continues
// with the others and returns the error at the end. KindServiceUnavailable ends the attempt.
func (r *Retention) DeleteOldRecords(ctx context.Context) (RetentionSummary, error) {
	run := retention{r, RetentionSummary{Deleted: map[string]int64{}}, time.Now().Add(cmp.Or(r.Budget, lifecycle.RoundTry*3/4))}
	var failed error
	for _, class := range run.classes() {
		if class.keep == 0 {
			continue
		}
		err := run.drain(ctx, class)
		if schema.KindOf(err) == schema.KindServiceUnavailable || ctx.Err() != nil {
			return RetentionSummary{}, Fail(cmp.Or(err, ctx.Err()))
		}
		failed = cmp.Or(failed, err)
	}
	if failed != nil {
		// The other classes are done. A retry would hide the failed one.
		return RetentionSummary{}, Failure(schema.AsError(failed), true)
	}
	if !run.More {
		if err := r.Records.Succeeded(ctx); err != nil {
			return RetentionSummary{}, Fail(err)
		}
	}
	return run.RetentionSummary, nil
}

// class is a class of records. delete deletes a batch and reports whether it may not be the
// last one.
type class struct {
	name   string
	keep   time.Duration
	delete func(ctx context.Context, keep time.Duration) (rows int64, more bool, err error)
}

func (r *retention) classes() []class {
	rows := func(of func(context.Context, time.Duration, int) (int64, error)) func(context.Context, time.Duration) (int64, bool, error) {
		return func(ctx context.Context, keep time.Duration) (int64, bool, error) {
			n, err := of(ctx, keep, retentionBatch)
			return n, n >= retentionBatch, err
		}
	}
	all := []class{
		{"messages", r.Keep.Messages, rows(r.Records.DeleteMessages)},
		{"tasks", r.Keep.Tasks, rows(r.Records.DeleteTasks)},
		{"identities", r.Keep.Identities, rows(r.Records.DeleteIdentities)},
		{"repairs", r.Keep.Repairs, rows(r.Records.DeleteRepairs)},
		{"signals", r.Keep.Signals, rows(r.Records.DeleteSignals)},
		{"evidence", r.Keep.Evidence, rows(r.Records.DeleteEvidence)},
		{"sessions", keepSessions, rows(r.Records.DeleteSessions)},
	}
	if r.Archive != nil {
		all = append(all, class{"audit", r.Keep.Audit, r.audit})
	}
	return all
}

// drain deletes batches of a class until none is left or the time is over.
func (r *retention) drain(ctx context.Context, c class) error {
	for {
		if time.Now().After(r.until) {
			r.More = true
			return nil
		}
		rows, more, err := c.delete(ctx, c.keep)
		if rows > 0 {
			r.Deleted[c.name] += rows
			if r.OnDelete != nil {
				r.OnDelete(c.name, rows)
			}
		}
		activity.RecordHeartbeat(ctx, r.RetentionSummary)
		if err != nil || !more || ctx.Err() != nil {
			return err
		}
	}
}
