package store_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/archive"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

const day = 24 * time.Hour

// retention deletes what is older than 100 days, as a worker does.
type retention struct {
	*env
	activities.Retention
	folder  string
	private ed25519.PrivateKey
}

func (e *env) retention() *retention {
	e.t.Helper()
	public, private, err := ed25519.GenerateKey(strings.NewReader(strings.Repeat("k", ed25519.SeedSize)))
	require.NoError(e.t, err)
	r := &retention{env: e, folder: e.t.TempDir(), private: private}
	r.Retention = activities.Retention{Records: e.Retention, Trail: e.Retention, Archive: archive.New(r.folder),
		Keys: func(context.Context) (map[string]ed25519.PublicKey, error) {
			return map[string]ed25519.PublicKey{"k.v1": public}, nil
		},
		Keep: activities.Keep{Tasks: 100 * day, Identities: 100 * day, Messages: 100 * day, Signals: 100 * day, Audit: 100 * day}}
	return r
}

// run runs the activity once.
func (r *retention) run() (s activities.RetentionSummary, err error) {
	r.t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivity(&r.Retention)
	result, err := env.ExecuteActivity(r.DeleteOldRecords)
	if err == nil {
		require.NoError(r.t, result.Get(&s))
	}
	return s, err
}

// runs is run that must succeed.
func (r *retention) runs() activities.RetentionSummary {
	r.t.Helper()
	s, err := r.run()
	require.NoError(r.t, err)
	return s
}

// aged makes the events of a stream after seq older and keeps the chain valid.
func (r *retention) aged(stream string, after int64, by time.Duration) {
	r.t.Helper()
	events, err := r.AuditStream(r.t.Context(), stream, 0, 1000)
	require.NoError(r.t, err)
	prev := events[0].PrevHash
	r.exec("ALTER TABLE audit_events DISABLE TRIGGER USER")
	for _, v := range events {
		if v.Seq > after {
			v.At, v.PrevHash = v.At.Add(-by), prev
			v.Hash = v.ComputeHash()
			r.exec("UPDATE audit_events SET at = $3, prev_hash = $4, hash = $5 WHERE stream = $1 AND seq = $2", v.Stream, v.Seq, v.At, v.PrevHash, v.Hash)
			r.exec("UPDATE audit_heads SET at = $2, prev_hash = $3, hash = $4 WHERE stream = $1", v.Stream, v.At, v.PrevHash, v.Hash)
		}
		prev = v.Hash
	}
	r.exec("ALTER TABLE audit_events ENABLE TRIGGER USER")
}

// sign stores a checkpoint of what is not covered yet, signed that long ago.
func (r *retention) sign(ago time.Duration) {
	r.t.Helper()
	body, err := r.Checkpoints.Next(r.t.Context())
	require.NoError(r.t, err)
	require.NotEmpty(r.t, body.Heads)
	_, hash, err := body.Encode()
	require.NoError(r.t, err)
	c := audit.Checkpoint{Env: "test", Number: body.Number, Hash: hash, At: time.Now().Add(-ago).UTC().Truncate(time.Second), KeyID: "k.v1"}
	c.Signature = ed25519.Sign(r.private, c.Signed())
	stored, err := r.Checkpoints.Put(r.t.Context(), body, c)
	require.NoError(r.t, err)
	require.True(r.t, stored)
}

// note appends n events to a stream.
func (r *retention) note(stream string, n int) {
	r.t.Helper()
	for range n {
		r.exec("SELECT audit_append($1, 'a', '', 'b', 'c', 'succeeded', '', '', '', '{\"k\": \"v\"}')", stream)
	}
}

// history gives a stream 3 events of each of three days, the last one recent.
func (r *retention) history(stream string) {
	r.t.Helper()
	for _, ago := range []time.Duration{130 * day, 120 * day, time.Hour} {
		before := int64(len(r.chain(stream)))
		r.note(stream, 3)
		r.aged(stream, before, ago)
		r.sign(ago)
	}
}

// files returns the lines of the archive's files.
func (r *retention) files() (names []string, lines map[string][]audit.ArchiveLine) {
	r.t.Helper()
	entries, err := os.ReadDir(r.folder)
	require.NoError(r.t, err)
	lines = map[string][]audit.ArchiveLine{}
	for _, entry := range entries {
		names = append(names, entry.Name())
		data, err := os.ReadFile(filepath.Join(r.folder, entry.Name()))
		require.NoError(r.t, err)
		for text := range strings.Lines(string(data)) {
			var line audit.ArchiveLine
			require.NoError(r.t, json.Unmarshal([]byte(text), &line))
			lines[entry.Name()] = append(lines[entry.Name()], line)
		}
	}
	return names, lines
}

// left returns the seqs of a stream in the database, whose chain must continue the archive.
func (r *retention) left(stream string) (seqs []int64) {
	r.t.Helper()
	events, err := r.AuditStream(r.t.Context(), stream, 0, 1000)
	require.NoError(r.t, err)
	_, lines := r.files()
	var before *audit.Event
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		for _, line := range lines[name] {
			if e := line.Event; e != nil && e.Stream == stream && e.Seq < events[0].Seq {
				require.NoError(r.t, audit.VerifyChain(before, []audit.Event{*e}))
				before = e
			}
		}
	}
	require.NoError(r.t, audit.VerifyChain(before, events))
	for _, e := range events {
		seqs = append(seqs, e.Seq)
	}
	return seqs
}

// Events are archived by day and then deleted; what is left continues the archive. A further
// run does nothing.
func TestAuditIsArchivedBeforeItIsDeleted(t *testing.T) {
	e := setup(t)
	r := e.retention()
	r.history("system")
	s := r.runs()
	require.Len(t, s.Archived, 2)
	require.Equal(t, map[string]int64{"audit": 6}, s.Deleted)
	require.False(t, s.More)
	names, lines := r.files()
	require.Equal(t, s.Archived, names)
	require.Len(t, lines[names[0]], 4, "a checkpoint and three events")
	require.Equal(t, []int64{7, 8, 9, 10, 11}, r.left("system"), "two files were recorded")
	require.Equal(t, "audit.archived", r.text("SELECT action FROM audit_events WHERE seq = 11"))
	require.Equal(t, names[1], r.text("SELECT detail ->> 'file' FROM audit_events WHERE seq = 11"))
	require.Empty(t, r.auditFaults())

	again := r.runs()
	require.Empty(t, again.Archived)
	require.Empty(t, again.Deleted)
	r.Archive = nil
	r.runs()
}

// A part is read with a few queries, however many checkpoints and streams it has. Each stream
// continues where it was archived before.
func TestPartIsReadWithFewQueries(t *testing.T) {
	e := setup(t)
	r := e.retention()
	const archived = "first"
	r.note(archived, 2)
	r.aged(archived, 0, 130*day)
	r.sign(130 * day)
	require.Len(t, r.runs().Archived, 1)
	streams := []string{archived}
	for i := range 20 {
		streams = append(streams, fmt.Sprint("stream-", i))
	}
	for _, stream := range streams {
		before := int64(len(r.chain(stream)))
		r.note(stream, 1)
		r.aged(stream, before, 120*day)
		r.sign(120 * day)
	}
	part, queries, err := r.CountedPart(t.Context(), 100*day)
	require.NoError(t, err)
	require.Len(t, part.Checkpoints, len(streams))
	require.LessOrEqual(t, queries, 4, "checkpoints and archived heads")
	froms := map[string]int64{}
	for _, s := range part.Segments {
		froms[s.From.Stream] = s.From.Seq
		require.Equal(t, s.From.Seq+1, s.Head.Seq, s.From.Stream)
	}
	require.Equal(t, int64(2), froms[archived])
	require.Zero(t, froms["stream-0"])
}

// Two workers archive each part once and delete each event once.
func TestTwoRunsAtOnce(t *testing.T) {
	e := setup(t)
	r := e.retention()
	r.history("system")
	summaries := make([]activities.RetentionSummary, 4)
	for _, err := range race(len(summaries), func(i int) (err error) {
		summaries[i], err = r.run()
		return err
	}) {
		require.NoError(t, err)
	}
	r.runs()
	names, _ := r.files()
	require.Len(t, names, 2)
	require.Equal(t, int64(2), r.number("SELECT count(*) FROM audit_archives"))
	require.Equal(t, []int64{7, 8, 9, 10, 11}, r.left("system"))
}

// failing fails one call of the trail.
type failing struct {
	activities.AuditTrail
	record, cut bool
}

func (f *failing) RecordArchive(ctx context.Context, file audit.ArchiveFile) (bool, error) {
	if f.record {
		return false, errors.New("killed")
	}
	return f.AuditTrail.RecordArchive(ctx, file)
}

func (f *failing) Cut(ctx context.Context, cuts []audit.Cut) (int64, error) {
	if f.cut {
		return 0, errors.New("killed")
	}
	return f.AuditTrail.Cut(ctx, cuts)
}

// A worker that is killed after it wrote a file, or after it recorded it, loses nothing: the
// next run continues.
func TestKilledBetweenArchiveAndDelete(t *testing.T) {
	e := setup(t)
	r := e.retention()
	r.history("system")
	trail := &failing{AuditTrail: r.Trail, record: true}
	r.Trail = trail
	_, err := r.run()
	require.Error(t, err)
	names, _ := r.files()
	require.Len(t, names, 1)
	require.Zero(t, r.number("SELECT count(*) FROM audit_archives"))

	trail.record, trail.cut = false, true
	_, err = r.run()
	require.Error(t, err)
	require.Equal(t, int64(1), r.number("SELECT count(*) FROM audit_archives"))
	require.Equal(t, int64(10), r.number("SELECT count(*) FROM audit_events"))

	trail.cut = false
	r.runs()
	require.Equal(t, []int64{7, 8, 9, 10, 11}, r.left("system"))
}

// A file that is gone or changed keeps its events in the database, and so does a trail that
// does not match its checkpoints.
func TestNothingIsDeletedWithoutItsFile(t *testing.T) {
	e := setup(t)
	r := e.retention()
	r.history("system")
	r.Trail = &failing{AuditTrail: r.Trail, cut: true}
	_, err := r.run()
	require.Error(t, err)
	r.Trail = e.Retention
	names, _ := r.files()
	require.NoError(t, os.Remove(filepath.Join(r.folder, names[0])))
	_, err = r.run()
	require.Equal(t, "archive_missing", activities.Typed(err).Reason)
	require.Equal(t, int64(10), r.number("SELECT count(*) FROM audit_events"))
}

// A worker whose folder lacks the last file writes no further one: the folder is not the
// archive, for example because it is not mounted.
func TestAnotherFolderIsNotTheArchive(t *testing.T) {
	e := setup(t)
	r := e.retention()
	r.note("system", 3)
	r.aged("system", 0, 130*day)
	r.sign(130 * day)
	r.note("system", 1)
	require.Len(t, r.runs().Archived, 1)
	r.aged("system", 3, 120*day)
	r.sign(120 * day)
	r.note("system", 1)
	events := r.number("SELECT count(*) FROM audit_events")

	other := t.TempDir()
	r.Archive = archive.New(other)
	_, err := r.run()
	require.Equal(t, "archive_missing", activities.Typed(err).Reason)
	require.Equal(t, int64(1), r.number("SELECT count(*) FROM audit_archives"))
	require.Equal(t, events, r.number("SELECT count(*) FROM audit_events"))
	entries, err := os.ReadDir(other)
	require.NoError(t, err)
	require.Empty(t, entries)

	r.Archive = archive.New(r.folder)
	require.Len(t, r.runs().Archived, 1)
}

func TestChangedTrailIsNotArchived(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"an event": "UPDATE audit_events SET actor = 'mallory' WHERE seq = 2",
		"a hole":   "DELETE FROM audit_events WHERE seq = 2",
	} {
		t.Run(name, func(t *testing.T) {
			e := setup(t)
			r := e.retention()
			r.history("system")
			r.exec("ALTER TABLE audit_events DISABLE TRIGGER USER")
			r.exec(sql)
			_, err := r.run()
			require.Equal(t, "archive_mismatch", activities.Typed(err).Reason)
			require.NotEmpty(t, activities.Typed(err).Next)
			names, _ := r.files()
			require.Empty(t, names)
			require.Zero(t, r.number("SELECT count(*) FROM audit_archives"))
		})
	}
}

// unwritable is a folder on a full disk.
type unwritable struct{ activities.Archive }

func (unwritable) Write(context.Context, string, func(io.Writer) error) (string, error) {
	return "", schema.NewError(schema.KindInternal, "no space left").WithReason("archive_unwritable")
}

// If the archive cannot be written, nothing of the audit trail is deleted, the other classes
// are, and the lack of a success is a fault after two days.
func TestUnwritableArchive(t *testing.T) {
	e := setup(t)
	r := e.retention()
	r.history("system")
	r.Archive = unwritable{r.Archive}
	r.exec("INSERT INTO outbox (workflow_id, event, orphaned_at) VALUES ('w', '{}', now() - interval '101 days')")
	r.exec("UPDATE retention_runs SET succeeded_at = now() - interval '47 hours'")
	_, err := r.run()
	require.Equal(t, "archive_unwritable", activities.Typed(err).Reason)
	require.Equal(t, int64(9), r.number("SELECT count(*) FROM audit_events"))
	require.Zero(t, r.number("SELECT count(*) FROM outbox"))
	require.Empty(t, r.retentionFaults())
	r.exec("UPDATE retention_runs SET succeeded_at = now() - interval '49 hours'")
	require.Equal(t, []string{"stalled"}, r.retentionFaults())
	r.Archive = archive.New(r.folder)
	r.runs()
	require.Empty(t, r.retentionFaults())
}

func (r *retention) retentionFaults() (reasons []string) {
	r.t.Helper()
	faults, err := r.Admin.Faults(r.t.Context())
	require.NoError(r.t, err)
	for _, f := range faults {
		if f.Component == "retention" {
			require.NotEmpty(r.t, f.Next)
			reasons = append(reasons, f.Reason)
		}
	}
	return reasons
}

// The events that an open operation, a removal or a restore needs stay in the database, and so
// do the last events of a stream.
func TestNeededEventsStay(t *testing.T) {
	e := setup(t)
	r := e.retention()
	n := e.inState(lifecycle.NodeActive)
	c := e.claim(n.ID, lifecycle.ActionProvision)
	r.aged(n.ID, 0, 130*day)
	r.sign(130 * day)
	r.runs()
	require.Equal(t, []int64{1, 2}, r.left(n.ID), "the operation is open")
	require.NoError(t, e.Finish(t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Instance: lifecycle.InstanceRunning}))
	epoch := r.number("INSERT INTO restore_modes (actor, reason, ends_at) VALUES ('a', 'r', now() + interval '1 hour') RETURNING epoch")
	r.runs()
	require.Equal(t, int64(1), r.left(n.ID)[0], "the database was just restored")
	r.exec("UPDATE restore_modes SET ended_at = now() WHERE epoch = $1", epoch)
	r.runs()
	require.Equal(t, int64(3), r.left(n.ID)[0])

	end := r.left(n.ID)[len(r.left(n.ID))-1]
	r.aged("system", 0, 125*day)
	r.exec("SELECT audit_append($1, 'a', '', 'nodes.remove', $1, 'succeeded', '', '', '', '{}')", n.ID)
	r.aged(n.ID, 2, 125*day)
	r.sign(125 * day)
	r.note(n.ID, 1)
	r.runs()
	require.Contains(t, r.left(n.ID), end+1, "a signed removal relies on the event")
}

// The function deletes only what a checkpoint covers and a file has, also for the worker.
func TestCutNeedsAnArchive(t *testing.T) {
	e := setup(t)
	r := e.retention()
	r.history("system")
	for _, cut := range []audit.Cut{{Stream: "system", Seq: 3}, {Stream: "system", Seq: 9}} {
		rows, err := e.Retention.Cut(t.Context(), []audit.Cut{cut})
		require.NoError(t, err)
		require.Zero(t, rows)
	}
	sum := strings.Repeat("0", 64)
	recorded, err := e.Retention.RecordArchive(t.Context(), audit.ArchiveFile{Last: 3, Name: "f", SHA256: sum})
	require.Error(t, err, "the events of checkpoint 3 are too new")
	require.False(t, recorded)
	recorded, err = e.Retention.RecordArchive(t.Context(), audit.ArchiveFile{After: 1, Last: 2, Name: "f", SHA256: sum})
	require.NoError(t, err)
	require.False(t, recorded, "checkpoint 1 is not archived")
	recorded, err = e.Retention.RecordArchive(t.Context(), audit.ArchiveFile{Last: 1, Name: "f", SHA256: sum})
	require.NoError(t, err)
	require.True(t, recorded)
	rows, err := e.Retention.Cut(t.Context(), []audit.Cut{{Stream: "system", Seq: 2}})
	require.NoError(t, err)
	require.Zero(t, rows, "no checkpoint names row 2")
	rows, err = e.Retention.Cut(t.Context(), []audit.Cut{{Stream: "system", Seq: 3}})
	require.NoError(t, err)
	require.Equal(t, int64(3), rows)
}
