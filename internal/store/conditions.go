package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxConditionAge bounds how long before its report a condition may have begun.
const maxConditionAge = 30 * 24 * time.Hour

// reordered is how much older than the stored report one may be that another overtook. An even
// older one means that the reporter's clock was set back.
const reordered = time.Minute

// healthReport is a report about a node.
type healthReport struct {
	health.Report
	nodeID      string
	source      health.Source
	incarnation int64
	// fenced is set if the node itself reports: its incarnation must be the present one.
	fenced bool
}

// storeHealth replaces the conditions of the reporter by those of its report, with a signal for
// each change. It does nothing if a newer report is stored. An unchanged report updates one row.
// KindInvalidNodeIdentity if the node was removed, or has begun another incarnation than the caller's.
func storeHealth(ctx context.Context, db *db, r healthReport) (accepted bool, err error) {
	digest, err := conditionsDigest(r.Conditions)
	if err != nil {
		return false, err
	}
	doing := "storing the health report about node " + r.nodeID
	repeated, err := query(ctx, db, doing, func(ctx context.Context) (int64, error) {
		return db.q.RepeatReport(ctx, sqlc.RepeatReportParams{At: r.At, NodeID: r.nodeID, Source: r.source, Incarnation: r.incarnation, BootID: r.BootID, Digest: digest})
	})
	if err != nil || repeated > 0 {
		return err == nil, err
	}
	return write(ctx, db, doing, func(ctx context.Context, tx *tx) (bool, error) {
		node, err := tx.lockNode(ctx, r.nodeID)
		switch {
		case err == nil && node.State.Refusing():
			err = errRemoved()
		case err == nil && r.fenced && r.incarnation != node.Incarnation:
			err = errOtherIncarnation()
		}
		if err != nil {
			return false, err
		}
		r.incarnation = node.Incarnation
		last, err := tx.GetReport(ctx, r.nodeID, r.source)
		switch {
		case postgres.NotFound(err):
		case err != nil:
			return false, err
		case last.Incarnation == r.incarnation && r.At.Before(last.At) && r.At.After(last.At.Add(-reordered)):
			return false, nil
		}
		before := reporting{last: last.At, now: node.Now, oldest: node.Now.Add(-wire.HealthInterval)}
		if last.Incarnation == r.incarnation && last.ReportedAt.Before(before.oldest) {
			before.oldest = last.ReportedAt
		}
		if err := replaceConditions(ctx, tx, r, before); err != nil {
			return false, err
		}
		return true, tx.PutReport(ctx, sqlc.PutReportParams{NodeID: r.nodeID, Source: r.source, Incarnation: r.incarnation, BootID: r.BootID, At: r.At, Digest: digest})
	})
}

func errOtherIncarnation() error {
	return errIdentity(schema.ReasonIdentityMismatch, "the heartbeat is for another incarnation of the node")
}

// conditionsDigest is the hash of what is stored of conditions. Of a condition that needs no
// repair, the time and the number of samples are not.
func conditionsDigest(conditions []health.Condition) ([]byte, error) {
	stored := make([]health.Condition, len(conditions))
	for i, c := range conditions {
		if c.Status != health.Unhealthy {
			c.Samples, c.Since = 0, time.Time{}
		}
		stored[i] = c
	}
	raw, err := json.Marshal(stored)
	sum := sha256.Sum256(raw)
	return sum[:], err
}

// conditionKey identifies a condition of a reporter.
type conditionKey struct{ checker, component string }

// reporting is when a reporter reports.
type reporting struct {
	last time.Time // of the report before, by the reporter's clock
	now  time.Time // by the database's clock
	// oldest is when a status that the report before does not have may have begun, by the database's
	// clock: since that report, and before a first one within the interval of reports.
	oldest time.Time
}

// replaceConditions stores the difference between the stored conditions and those of the report.
func replaceConditions(ctx context.Context, tx *tx, r healthReport, when reporting) error {
	rows, err := tx.ListConditions(ctx, r.nodeID, r.source)
	if err != nil {
		return err
	}
	stored := make(map[conditionKey]health.Condition, len(rows))
	for _, c := range rows {
		stored[conditionKey{c.Checker, c.Component}] = health.Condition(c)
	}
	d := conditionsDiff{report: r}
	seen := make(map[conditionKey]bool, len(r.Conditions))
	for _, c := range r.Conditions {
		key := conditionKey{c.Checker, c.Component}
		if seen[key] {
			return schema.NewError(schema.KindInvalidRequest, "the health report has two conditions of one checker and component").WithReason("bad_health")
		}
		seen[key] = true
		was, known := stored[key]
		d.compare(was, converted(c, was, known, r.At, when))
	}
	for _, c := range rows {
		if key := (conditionKey{c.Checker, c.Component}); !seen[key] {
			d.end(stored[key])
		}
	}
	return storeDiff(ctx, tx, d)
}

// converted returns a reported condition with its Since by the clock of the database. A status
// that the reporter has seen since before its last report keeps the time that is stored, so that
// the delays of reports do not move it, and so does one that began in the future of the reporter, whose
// clock was set back. Another one began since that report, or continues a stored
// fault: a reporter gives no new fault an age.
func converted(c, was health.Condition, known bool, at time.Time, when reporting) health.Condition {
	oldest := when.oldest
	switch {
	case was.Status == health.Unhealthy && was.Since.Before(oldest):
		oldest = was.Since
	case was.Status == health.Unknown && !was.FaultSince.IsZero() && was.FaultSince.Before(oldest):
		oldest = was.FaultSince
	}
	if setBack := c.Since.After(at); known && c.Status == was.Status && (setBack || !c.Since.After(when.last)) {
		c.Since = was.Since
	} else {
		c.Since = inDatabase(c.Since, at, when.now, oldest)
	}
	if !c.FaultSince.IsZero() {
		c.FaultSince = inDatabase(c.FaultSince, at, when.now, oldest)
	}
	return c
}

// inDatabase returns a time before a report, by the clock of the reporter, by that of the database. It
// is not before oldest.
func inDatabase(t, at, now, oldest time.Time) time.Time {
	inside := now.Add(-min(max(at.Sub(t), 0), maxConditionAge))
	if inside.Before(oldest) {
		return oldest
	}
	return inside
}

// conditionsDiff is what a report changes.
type conditionsDiff struct {
	report  healthReport
	put     []health.Condition
	ended   []health.Condition
	signals []health.Signal
}

// compare adds the difference between a stored condition, zero for none, and a reported one. A new
// condition is a signal only if it is unhealthy.
func (d *conditionsDiff) compare(was, is health.Condition) {
	changed := was.Status != is.Status || was.Reason != is.Reason || was.Code != is.Code
	if changed && (was.Checker != "" || is.Status == health.Unhealthy) {
		d.signal(is)
	}
	if changed || was.Repair != is.Repair || was.Detail != is.Detail || was.UnknownSeconds != is.UnknownSeconds ||
		is.Status == health.Unhealthy && (was.Samples != is.Samples || !was.Since.Equal(is.Since)) {
		d.put = append(d.put, is)
	}
}

// end ends a stored condition. It is a signal if the condition was unhealthy.
func (d *conditionsDiff) end(was health.Condition) {
	d.ended = append(d.ended, was)
	if was.Status == health.Unhealthy {
		d.signal(health.Condition{Checker: was.Checker, Component: was.Component, Status: health.Unknown, Reason: signal.ReasonEnded, Code: was.Code})
	}
}

func (d *conditionsDiff) signal(c health.Condition) {
	d.signals = append(d.signals, health.Signal{Type: health.ConditionSignal(c.Checker), Source: d.report.source, Status: c.Status,
		Component: c.Component, Reason: c.Reason, Code: c.Code, Repair: c.Repair, BootID: d.report.BootID, Detail: c.Detail})
}

func storeDiff(ctx context.Context, tx *tx, d conditionsDiff) error {
	if len(d.ended) > 0 {
		gone := sqlc.DeleteConditionsParams{NodeID: d.report.nodeID, Source: d.report.source}
		for _, c := range d.ended {
			gone.Checkers, gone.Components = append(gone.Checkers, c.Checker), append(gone.Components, c.Component)
		}
		if err := tx.DeleteConditions(ctx, gone); err != nil {
			return err
		}
	}
	if len(d.put) > 0 {
		if err := tx.PutConditions(ctx, columnsOf(d)); err != nil {
			return err
		}
	}
	return recordLimited(ctx, tx, d.report.nodeID, d.signals)
}

// columnsOf returns the conditions to store, one list for each column.
func columnsOf(d conditionsDiff) sqlc.PutConditionsParams {
	p := sqlc.PutConditionsParams{NodeID: d.report.nodeID, Source: d.report.source}
	for _, c := range d.put {
		p.Checkers, p.Components = append(p.Checkers, c.Checker), append(p.Components, c.Component)
		p.Statuses, p.Reasons = append(p.Statuses, string(c.Status)), append(p.Reasons, c.Reason)
		p.Codes, p.Samples = append(p.Codes, int32(c.Code)), append(p.Samples, int32(c.Samples))
		p.Repairs, p.Details = append(p.Repairs, string(c.Repair)), append(p.Details, c.Detail)
		p.Sinces, p.FaultSinces = append(p.Sinces, c.Since), append(p.FaultSinces, c.FaultSince)
		p.FaultSamples, p.UnknownSeconds = append(p.FaultSamples, int32(c.FaultSamples)), append(p.UnknownSeconds, c.UnknownSeconds)
	}
	return p
}
