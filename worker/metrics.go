package worker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// metrics are the worker's own, by the names of design/interfaces.md §6. Node
// ids are never labels.
type metrics struct {
	operations *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	vault      *prometheus.HistogramVec
	signer     prometheus.Gauge
	reclaims   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		operations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuaas_operations_total",
			Help: "Operations that ended, by action and outcome (completed, cancelled, failed, rejected).",
		}, []string{"action", "outcome"}),
		durations: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "gpuaas_operation_duration_seconds",
			Help:    "From the operation's start to its recorded end.",
			Buckets: []float64{0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600},
		}, []string{"action"}),
		vault: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuaas_vault_requests_seconds", Help: "Requests to Vault, by operation.",
			Buckets: prometheus.DefBuckets,
		}, []string{"op"}),
		reclaims: f.NewCounterVec(prometheus.CounterOpts{
			Name: "gpuaas_reclaims_total",
			Help: "The reclaimer's decisions, by task type and result (requeued, lost, voided, redelivered).",
		}, []string{"type", "result"}),
		signer: f.NewGauge(prometheus.GaugeOpts{
			Name: "gpuaas_task_signer_ok",
			Help: "1 when Vault's task key is the newest verifier set's, by the last check; 0 when it is not and nothing is signed.",
		}),
	}
}

// ended implements activities.Record's observer.
func (m *metrics) ended(a lifecycle.Action, s lifecycle.OperationState, took time.Duration) {
	m.operations.WithLabelValues(string(a), string(s)).Inc()
	if s != lifecycle.OperationRejected {
		m.durations.WithLabelValues(string(a)).Observe(took.Seconds())
	}
}

// signerChecked implements the observer of sets.Follower.
func (m *metrics) signerChecked(ok bool) {
	m.signer.Set(0)
	if ok {
		m.signer.Set(1)
	}
}

func (m *metrics) vaultCall(op string, d time.Duration, _ error) {
	m.vault.WithLabelValues(op).Observe(d.Seconds())
}

// reclaimed implements activities.Reclaim's observer.
func (m *metrics) reclaimed(t task.Type, r activities.ReclaimResult) {
	m.reclaims.WithLabelValues(string(t), string(r)).Inc()
}
