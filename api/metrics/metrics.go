// Package metrics holds what gpuaas-api tells Prometheus: counters that the
// handlers feed (Metrics) and gauges read from the database when somebody asks
// (Census). Names are those of design/interfaces.md §6.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuaas/gpuaas/schema"
)

// ResultIssued is the enrollments_total result of an enrolment that was
// answered with a certificate; refusals count under their kind.
const ResultIssued = "issued"

// Metrics are the API's own counters. All methods may be called at once.
type Metrics struct {
	waiting     prometheus.Gauge
	dispatch    prometheus.Histogram
	enrollments *prometheus.CounterVec
	expiry      prometheus.Histogram
	refusals    *prometheus.CounterVec
	tasks       *prometheus.CounterVec
	vault       *prometheus.HistogramVec
	outbox      *prometheus.CounterVec
	outboxAge   prometheus.Gauge
}

// New registers the counters. It panics when reg holds one of them already.
func New(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gpuaas_waiting_agents", Help: "Open long polls of node agents."}),
		dispatch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gpuaas_task_dispatch_seconds", Help: "Time from a task's creation to its first hand-over to the node.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300}}),
		enrollments: counters("gpuaas_enrollments_total", "Enrolment requests by result: issued, or the refusal's code.", "result"),
		expiry: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gpuaas_certificate_expiry_seconds", Help: "What is left of a node certificate's life, seen at each poll.",
			Buckets: []float64{3600, 6 * 3600, 12 * 3600, 24 * 3600, 36 * 3600, 48 * 3600, 72 * 3600, 96 * 3600}}),
		refusals: counters("gpuaas_identity_refusals_total", "Requests refused for the caller's identity, by reason.", "reason"),
		tasks:    counters("gpuaas_tasks_total", "Node tasks that ended, by type and outcome.", "type", "outcome"),
		vault: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gpuaas_vault_requests_seconds", Help: "Duration of calls to Vault, by operation.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}}, []string{"op"}),
		outbox: counters("gpuaas_outbox_messages_total", "Messages for Temporal by kind and outcome of a try.", "kind", "outcome"),
		outboxAge: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gpuaas_outbox_oldest_seconds", Help: "Age of the oldest message for Temporal that failed and is still to be delivered; 0 for none."}),
	}
	m.startAtZero()
	reg.MustRegister(m.waiting, m.dispatch, m.enrollments, m.expiry, m.refusals, m.tasks, m.vault, m.outbox, m.outboxAge)
	return m
}

// startAtZero makes the series that an alert watches exist before their first
// event, so that a rate sees it.
func (m *Metrics) startAtZero() {
	for _, reason := range []string{schema.ReasonNoCertificate, schema.ReasonUnknownIssuer, schema.ReasonIssuerRetired, schema.ReasonExpired,
		schema.ReasonSerialSuperseded, schema.ReasonNodeLocked, schema.ReasonNodeRemoved, schema.ReasonIdentityMismatch} {
		m.refusals.WithLabelValues(reason)
	}
	for _, result := range []string{ResultIssued, string(schema.KindInvalidRequest), string(schema.KindUnauthenticated),
		string(schema.KindTokenConsumed), string(schema.KindTokenExpired), string(schema.KindInvalidNodeIdentity),
		string(schema.KindServiceUnavailable), string(schema.KindInternal)} {
		m.enrollments.WithLabelValues(result)
	}
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// PollOpened counts an open long poll until the returned function is called.
func (m *Metrics) PollOpened() (closed func()) {
	m.waiting.Inc()
	return m.waiting.Dec
}

// Polled notes what is left of the polling node's certificate.
func (m *Metrics) Polled(left time.Duration) { m.expiry.Observe(left.Seconds()) }

// Offered notes that a task was handed over. Only the first hand-over counts.
func (m *Metrics) Offered(o *schema.TaskOffer) {
	if o.Lease.Epoch == 1 && !o.CreatedAt.IsZero() {
		m.dispatch.Observe(max(0, o.ServerTime.Sub(o.CreatedAt).Seconds()))
	}
}

// TaskEnded counts a stored result.
func (m *Metrics) TaskEnded(t schema.TaskType, s schema.TaskStatus) {
	m.tasks.WithLabelValues(string(t), string(s)).Inc()
}

// Enrollment counts an enrolment request: nil for an issued certificate.
func (m *Metrics) Enrollment(err error) {
	result := ResultIssued
	if err != nil {
		result = string(schema.KindOf(err))
	}
	m.enrollments.WithLabelValues(result).Inc()
}

// IdentityRefused counts a refused identity.
func (m *Metrics) IdentityRefused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// Vault notes how long a call to Vault took.
func (m *Metrics) Vault(op string, took time.Duration) {
	m.vault.WithLabelValues(op).Observe(took.Seconds())
}

// Relayed counts one try to deliver a message: delivered, orphaned or failed.
func (m *Metrics) Relayed(kind, outcome string) { m.outbox.WithLabelValues(kind, outcome).Inc() }

// OutboxAge sets the age of the oldest message still to be delivered.
func (m *Metrics) OutboxAge(age time.Duration) { m.outboxAge.Set(max(0, age.Seconds())) }
