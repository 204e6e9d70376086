package console

import (
	"cmp"
	"context"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// trailTime bounds the record of a stop, which continues without the browser.
const trailTime = 10 * time.Second

// Trail records in the audit trail what the console does without the admin API.
type Trail interface {
	// BulkStopped records that a subject stopped a bulk run. A second record of the run within a day does
	// nothing. Errors are *schema.Error; the event may be stored although there is one.
	BulkStopped(ctx context.Context, s BulkStop, by audit.Subject) error
}

// BulkStop is a bulk run that was stopped.
type BulkStop struct {
	// ID is that of the run, Run what it does, StartedBy the subject who started it, and Reason the
	// reason given for it.
	ID, Run, StartedBy, Reason string
	// Requests is the number of its requests, and Sent how many of them were sent.
	Requests, Sent int
}

// stopBy stops an open run for the subject of a request, and then records that. A run that is stopped stays
// stopped if it cannot be recorded: a further stop then only records the first one.
func (b *bulkRuns) stopBy(r *request, run *bulkRun) error {
	run.stopFor(audit.Subject{Actor: r.Subject.Name, Via: Via, CorrelationID: edge.CorrelationID(r.Context())})
	run.records.Lock()
	defer run.records.Unlock()
	stop, by := run.unrecorded()
	if by == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), trailTime)
	defer cancel()
	if err := b.console.cfg.Trail.BulkStopped(ctx, stop, *by); err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the run is stopped and sends no further request, but the stop may be missing in the audit trail: %s",
			schema.AsError(err).Message).WithReason("stop_not_recorded").
			WithNext("when the database responds, record the stop on the page of the run; it is recorded once")
	}
	run.recorded()
	return nil
}

// over reports whether no further request is sent.
func (r *bulkRun) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why != ""
}

// stop makes a run send no further request, unless it has ended. The first reason is kept.
func (r *bulkRun) stop(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endedAt.IsZero() {
		r.why = cmp.Or(r.why, why)
	}
}

// stopFor stops a run for a subject, unless it has ended or is stopped already.
func (r *bulkRun) stopFor(by audit.Subject) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endedAt.IsZero() && r.why == "" {
		r.why, r.stopped = "stopped by "+by.Actor, &by
	}
}

// unrecorded returns the stop that the audit trail may not have, and who stopped the run; nil for none. After
// the stop no further request is sent, so that each call returns the same.
func (r *bulkRun) unrecorded() (BulkStop, *audit.Subject) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return BulkStop{ID: r.id, Run: r.verb.Name, StartedBy: r.by.Name, Reason: r.reason, Requests: len(r.rows), Sent: r.sent()}, r.stopped
}

// recorded notes that the audit trail has the stop.
func (r *bulkRun) recorded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = nil
}

// sent is the number of requests that were sent. The caller holds the lock.
func (r *bulkRun) sent() (n int) {
	for _, row := range r.rows {
		if row.outcome != bulkNotSent {
			n++
		}
	}
	return n
}
