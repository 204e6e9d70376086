package agent

import (
	"context"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// HealthMonitor checks the node's health.
type HealthMonitor interface {
	// Run checks the node periodically until ctx ends. It calls changed when a check has another
	// result than before.
	Run(ctx context.Context, changed func())
	// Report returns the newest report, nil before the first one. The caller does not change it.
	Report() *health.Report
}

// healthReports decides which heartbeats carry a health report. Only the poll loop uses it.
type healthReports struct {
	monitor HealthMonitor
	// sent is the last report that the server has, at sentAt.
	sent   *health.Report
	sentAt time.Time
	// refusedAt is when a server refused a heartbeat with a report, zero if it did not.
	refusedAt time.Time
}

// due returns the report for a heartbeat whose answer takes up to wait, nil for none: a report that
// the server lacks, and at least one every wire.HealthInterval.
func (h *healthReports) due(now time.Time, wait time.Duration) *health.Report {
	r := h.monitor.Report()
	refused := !h.refusedAt.IsZero() && now.Sub(h.refusedAt).Abs() < wire.HealthInterval
	switch {
	case r == nil || refused:
		return nil
	case h.sent == nil || now.Sub(h.sentAt).Abs()+wait >= wire.HealthInterval || reportsDiffer(h.sent, r):
		return r
	}
	return nil
}

// answered records the answer to a poll with a report. retry is true if the heartbeat is sent again
// without it: servers before this version refuse unknown fields, and one field must not cost the
// heartbeat.
func (h *healthReports) answered(r *health.Report, at time.Time, err error) (retry bool) {
	switch {
	case r == nil:
	case schema.KindOf(err) == schema.KindInvalidRequest:
		h.refusedAt = at
		return true
	case err == nil:
		h.sent, h.sentAt, h.refusedAt = r, at, time.Time{}
	}
	return false
}

// reportsDiffer reports whether b says more than a. The number of samples counts while a condition
// is unhealthy, because a repair waits for it; details such as a temperature do not.
func reportsDiffer(a, b *health.Report) bool {
	return a.BootID != b.BootID || !slices.EqualFunc(a.Conditions, b.Conditions, func(x, y health.Condition) bool {
		return x.Checker == y.Checker && x.Component == y.Component && x.Status == y.Status && x.Reason == y.Reason &&
			x.Code == y.Code && x.Repair == y.Repair && x.Since.Equal(y.Since) && (y.Status != health.Unhealthy || x.Samples == y.Samples)
	})
}
