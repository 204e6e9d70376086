package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// one reads the one row of a query.
func one[T any](ctx context.Context, q querier, sql string, args ...any) (T, error) {
	rows, _ := q.Query(ctx, sql, args...) // CollectExactlyOneRow returns the error
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[T])
}

// Drill reads what a restored copy of the database must have. It writes nothing.
type Drill struct{ db *db }

// Drill returns the checks of a restored copy.
func (s *Store) Drill() *Drill { return &Drill{s.db} }

// DrillCounts are the rows of the main tables, and the time of the newest audit event.
type DrillCounts struct {
	Nodes, Operations, Tasks, AuditEvents, Certificates, VerifierSets int64
	// Open and Parked are the operations that have not ended, and those of them that wait for a decision.
	Open, Parked int64
	// NewestAudit is nil if there is no audit event.
	NewestAudit *time.Time
}

// Counts counts the rows in one snapshot: those that were written at until or before, or all if it is nil.
func (d *Drill) Counts(ctx context.Context, until *time.Time) (DrillCounts, error) {
	return query(ctx, d.db, "counting the rows", func(ctx context.Context) (DrillCounts, error) {
		return one[DrillCounts](ctx, d.db.Pool(), drillCounts, until)
	})
}

const drillCounts = `WITH until AS (SELECT coalesce($1::timestamptz, 'infinity') AS at)
	SELECT (SELECT count(*) FROM nodes WHERE created_at <= until.at) AS nodes,
	(SELECT count(*) FROM operations WHERE started_at <= until.at) AS operations,
	(SELECT count(*) FROM node_tasks WHERE created_at <= until.at) AS tasks,
	(SELECT count(*) FROM audit_events e WHERE e.at <= until.at) AS audit_events,
	(SELECT count(*) FROM node_certificates WHERE issued_at <= until.at) AS certificates,
	(SELECT count(*) FROM verifier_sets WHERE stored_at <= until.at) AS verifier_sets,
	(SELECT count(*) FROM operations WHERE ended_at IS NULL) AS open,
	(SELECT count(*) FROM operations WHERE status = 'parked') AS parked,
	(SELECT max(e.at) FROM audit_events e) AS newest_audit
	FROM until`

// Snapshot counts the rows in a snapshot, and runs dump while the snapshot, which it exported, can be imported.
// The transaction that exported it must stay open until then; ctx ends it in any case.
func (d *Drill) Snapshot(ctx context.Context, dump func(snapshot string) error) (n DrillCounts, err error) {
	type exported struct{ ID string }
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, d.db.Pool(), options, func(tx pgx.Tx) error {
		// pg_dump may take its time to connect.
		if _, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
			return err
		}
		if n, err = one[DrillCounts](ctx, tx, drillCounts, nil); err != nil {
			return d.db.Interpret(err, "counting the rows")
		}
		snapshot, err := one[exported](ctx, tx, "SELECT pg_export_snapshot() AS id")
		if err != nil {
			return err
		}
		return dump(snapshot.ID)
	})
	return n, d.db.Interpret(err, "exporting a snapshot")
}

// DrillDamage counts rows that contradict others. All are 0 in an undamaged copy.
type DrillDamage struct {
	// Claims are nodes that name an operation that is not theirs, or that is unknown.
	Claims int64
	// Fences are nodes whose fence or incarnation is behind their operations or certificates.
	Fences int64
	// Tasks are tasks without their node or operation.
	Tasks int64
}

// Damage counts the contradictions.
func (d *Drill) Damage(ctx context.Context) (DrillDamage, error) {
	return query(ctx, d.db, "comparing nodes, operations and tasks", func(ctx context.Context) (DrillDamage, error) {
		return one[DrillDamage](ctx, d.db.Pool(), `SELECT (SELECT count(*) FROM nodes n WHERE operation_id IS NOT NULL
				AND NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = n.operation_id AND o.node_id = n.node_id)) AS claims,
			(SELECT count(*) FROM nodes n WHERE EXISTS (SELECT FROM operations o WHERE o.node_id = n.node_id AND o.op_seq > n.op_seq)
				OR EXISTS (SELECT FROM node_certificates c WHERE c.node_id = n.node_id AND c.incarnation > n.incarnation)) AS fences,
			(SELECT count(*) FROM node_tasks t WHERE NOT EXISTS (SELECT FROM nodes n WHERE n.node_id = t.node_id)
				OR NOT EXISTS (SELECT FROM operations o WHERE o.operation_id = t.operation_id)) AS tasks`)
	})
}

// VerifierSets reads the chain of verifier sets and returns the newest one, and the first fault.
func (d *Drill) VerifierSets(ctx context.Context) (newest trust.VerifierSet, fault string, err error) {
	sets := &Identities{db: d.db}
	for {
		page, err := sets.SetsAfter(ctx, newest.Doc.Version, drillPage)
		if err != nil || len(page) == 0 {
			return newest, fault, err
		}
		for _, stored := range page {
			set, err := trust.ParseVerifierSet(stored.Document)
			switch {
			case err != nil:
				return newest, fmt.Sprintf("verifier set %d cannot be read: %v", stored.Version, err), nil
			case !set.Matches(stored):
				return newest, fmt.Sprintf("verifier set %d is not the one of its record", stored.Version), nil
			}
			newest = set
		}
	}
}

// drillPage is the number of rows that are read at a time.
const drillPage = 1000

// DrillTrail is what Trail verified.
type DrillTrail struct {
	Events, Streams, Checkpoints int64
	// Fault is the first fault, "" if there is none.
	Fault string
}

// Trail verifies the chain of each audit stream, the streams' heads, the chain of checkpoints, and the
// rows that checkpoints cover. It does not verify signatures. progress is called after each page of
// events.
func (d *Drill) Trail(ctx context.Context, progress func(DrillTrail)) (DrillTrail, error) {
	t := trailCheck{admin: &Admin{db: d.db}, progress: progress, covered: map[string]map[int64]string{}}
	if err := t.checkpoints(ctx, &Checkpoints{db: d.db}); err != nil || t.Fault != "" {
		return t.DrillTrail, err
	}
	streams, err := query(ctx, d.db, "listing audit streams", func(ctx context.Context) ([]audit.Head, error) {
		return list[audit.Head](ctx, d.db, "SELECT stream, seq, hash FROM audit_heads ORDER BY stream")
	})
	for _, head := range streams {
		if err == nil && t.Fault == "" {
			err = t.stream(ctx, head)
		}
		delete(t.covered, head.Stream)
	}
	for stream := range t.covered {
		t.fault(true, "audit stream %s is missing: a checkpoint covers it", stream)
	}
	return t.DrillTrail, err
}

// trailCheck is one run of Trail.
type trailCheck struct {
	DrillTrail
	admin    *Admin
	progress func(DrillTrail)
	// covered are the hashes of the rows that checkpoints name, by stream and seq.
	covered map[string]map[int64]string
}

func (t *trailCheck) fault(bad bool, format string, args ...any) {
	if bad && t.Fault == "" {
		t.Fault = fmt.Sprintf(format, args...)
	}
}

func (t *trailCheck) checkpoints(ctx context.Context, c *Checkpoints) error {
	var last audit.Checkpoint
	for {
		page, err := c.After(ctx, last.Number, drillPage)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, stored := range page {
			body, signed, err := stored.Link(last.Number, last.Hash)
			if err != nil {
				t.fault(true, "%v", err)
				return nil
			}
			for _, h := range body.Heads {
				if t.covered[h.Stream] == nil {
					t.covered[h.Stream] = map[int64]string{}
				}
				t.covered[h.Stream][h.Seq] = h.Hash
			}
			last = signed
			t.Checkpoints++
		}
	}
}

// stream verifies one stream. Its first rows may be archived: it then begins after a row that a
// checkpoint covers.
func (t *trailCheck) stream(ctx context.Context, head audit.Head) error {
	var last *audit.Event
	t.Streams++
	for after := int64(0); ; after = last.Seq {
		events, err := t.admin.AuditStream(ctx, head.Stream, after, drillPage)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			break
		}
		if first := events[0].Seq; last == nil && first > 1 {
			last = &audit.Event{Stream: head.Stream, Seq: first - 1, Hash: t.covered[head.Stream][first-1]}
		}
		if err := audit.VerifyChain(last, events); err != nil {
			t.fault(true, "%v", err)
			return nil
		}
		for _, e := range events {
			hash, covered := t.covered[head.Stream][e.Seq]
			t.fault(covered && hash != e.Hash, "audit stream %s: row %d was replaced: a checkpoint has another hash", e.Stream, e.Seq)
		}
		last = &events[len(events)-1]
		t.Events += int64(len(events))
		t.progress(t.DrillTrail)
	}
	t.end(head, last)
	return nil
}

// end requires that a stream ends at its head, and after all rows that checkpoints cover.
func (t *trailCheck) end(head audit.Head, last *audit.Event) {
	if last == nil {
		t.fault(head.Seq > 0, "audit stream %s has no rows", head.Stream)
		return
	}
	t.fault(last.Seq != head.Seq || last.Hash != head.Hash, "audit stream %s: its last row is %d, and its head is %d", head.Stream, last.Seq, head.Seq)
	for seq := range t.covered[head.Stream] {
		t.fault(seq > last.Seq, "audit stream %s: the rows after %d are missing: a checkpoint covers row %d", head.Stream, last.Seq, seq)
	}
}

// Schema returns the schema version of the copy, and the oldest programs that work with it; 0 if it has
// no schema.
func (d *Drill) Schema(ctx context.Context) (version, oldest int64, err error) {
	type row struct{ Version, Oldest int64 }
	r, err := query(ctx, d.db, "reading the schema version", func(ctx context.Context) (row, error) {
		return one[row](ctx, d.db.Pool(), `SELECT (SELECT coalesce(max(version_id), 0) FROM goose_db_version) AS version,
			(SELECT oldest_program FROM schema_programs) AS oldest`)
	})
	return r.Version, r.Oldest, err
}
