package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/task"
)

// metrics are the worker's own metrics. Node IDs are never labels.
type metrics struct {
	operations *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	reclaims   *prometheus.CounterVec
	abandons   *prometheus.CounterVec
	deletions  *prometheus.CounterVec
	decisions  *prometheus.CounterVec
	attempts   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		operations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuaas_operations_total",
			Help: "Operations that ended, by action and outcome.",
		}, []string{"action", "outcome"}),
		durations: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "gpuaas_operation_duration_seconds",
			Help:    "Time from an operation's start to its recorded end.",
			Buckets: lifecycle.DurationBounds(),
		}, []string{"action"}),
		reclaims: f.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuaas_reclaims_total",
			Help: "Decisions of the reclaimer about stale task leases, by task type and result.",
		}, []string{"type", "result"}),
		abandons: f.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuaas_abandoned_operations_total",
			Help: "Operations that the run watcher marked as abandoned, by action and reason.",
		}, []string{"action", "reason"}),
		deletions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuaas_deleted_records_total",
			Help: "Old records that were deleted, by class: audit, evidence, identities, messages, repairs, sessions, signals or tasks.",
		}, []string{"class"}),
		decisions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuaas_recovery_decisions_total",
			Help: "Decisions about nodes with a fault that changed, by rung and by the brake that stops the repair; brake is empty for a repair that starts.",
		}, []string{"rung", "brake"}),
		attempts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuaas_recovery_attempts_total",
			Help: "Rungs of repairs that ended, by rung and outcome.",
		}, []string{"rung", "outcome"}),
	}
}

// ended records the end of an operation. It is the observer of activities.Record.
func (m *metrics) ended(ctx context.Context, a lifecycle.Action, s lifecycle.OperationState, took time.Duration) {
	m.operations.WithLabelValues(string(a), string(s)).Inc()
	if s != lifecycle.OperationRejected {
		daemon.Observe(ctx, m.durations.WithLabelValues(string(a)), took)
	}
}

// reclaimed records a decision of the reclaimer. It is the observer of
// activities.Reclaim.
func (m *metrics) reclaimed(t task.Type, r activities.ReclaimResult) {
	m.reclaims.WithLabelValues(string(t), string(r)).Inc()
}

// abandoned records an operation that the run watcher marked. It is the observer of
// activities.Watch.
func (m *metrics) abandoned(a lifecycle.Action, end lifecycle.RunEnd) {
	m.abandons.WithLabelValues(string(a), string(end)).Inc()
}

// deleted records deleted rows. It is the observer of activities.Retention.
func (m *metrics) deleted(class string, rows int64) {
	m.deletions.WithLabelValues(class).Add(float64(rows))
}

// decided records the decisions of a round. It is the observer of activities.RepairRounds.
func (m *metrics) decided(r activities.RepairRound) {
	for _, d := range r.Decisions {
		m.decisions.WithLabelValues(string(d.Rung), string(d.Brake)).Inc()
	}
}

// attempted records the end of a rung. It is the observer of activities.Repair.
func (m *metrics) attempted(a recovery.Attempt) {
	m.attempts.WithLabelValues(string(a.Rung), a.Outcome).Inc()
}
