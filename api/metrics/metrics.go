// Package metrics holds what gpuaas-api tells Prometheus: counters that the
// handlers feed (Metrics) and gauges read from the database when somebody asks
// (Census). Names are those of design/interfaces.md §6.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// ResultIssued is the result of a request for an identity that was answered with
// a certificate; refusals count under their kind.
const ResultIssued = "issued"

// Metrics are the API's own counters. All methods may be called at once.
type Metrics struct {
	waiting    prometheus.Gauge
	dispatch   prometheus.Histogram
	withheld   prometheus.Counter
	signer     prometheus.Gauge
	leaseKey   prometheus.Gauge
	issued     map[trust.IssueMethod]*prometheus.CounterVec
	budget     *prometheus.CounterVec
	budgetLeft prometheus.Gauge
	limited    *prometheus.CounterVec
	expiry     prometheus.Histogram
	refusals   *prometheus.CounterVec
	tasks      *prometheus.CounterVec
	vault      *prometheus.HistogramVec
	outbox     *prometheus.CounterVec
	outboxAge  prometheus.Gauge
}

// New registers the counters. It panics when reg holds one of them already.
func New(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gpuaas_waiting_agents", Help: "Open long polls of node agents."}),
		dispatch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gpuaas_task_dispatch_seconds", Help: "Time from the creation of a task to its first dispatch to the node.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300}}),
		withheld: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gpuaas_tasks_withheld_total", Help: "Polls that skipped dispatch because no lease grant could be signed."}),
		signer: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gpuaas_task_signer_ok", Help: "1 when Vault's task key is the newest verifier set's, by the last check; 0 when it is not or was not checked."}),
		leaseKey: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gpuaas_lease_key_ok", Help: "1 when the last try to have this replica's lease key delegated succeeded."}),
		issued: map[trust.IssueMethod]*prometheus.CounterVec{
			trust.IssuedByEnroll:  counters("gpuaas_enrollments_total", "Enrolment requests by result: issued, or the refusal's code.", "result"),
			trust.IssuedByRenew:   counters("gpuaas_renewals_total", "Renewal requests by result: issued, or the refusal's code.", "result"),
			trust.IssuedByRecover: counters("gpuaas_recoveries_total", "Recovery requests by result: issued, or the refusal's code.", "result"),
		},
		budget: counters("gpuaas_issue_budget_total", "Issuances asked of the budget, by priority and outcome: granted or refused.", "priority", "outcome"),
		budgetLeft: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gpuaas_issue_budget_left", Help: "What the issuance budget gave room for after it was last asked; the most urgent may use all of it."}),
		limited: counters("gpuaas_issue_limited_total", "Requests for an identity refused for their rate, by limit: node or remote.", "limit"),
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
	for _, c := range m.issued {
		reg.MustRegister(c)
	}
	reg.MustRegister(m.waiting, m.dispatch, m.withheld, m.signer, m.leaseKey, m.budget, m.budgetLeft, m.limited, m.expiry, m.refusals, m.tasks, m.vault, m.outbox, m.outboxAge)
	return m
}

// startAtZero makes the series that an alert watches exist before their first
// event, so that a rate sees it.
func (m *Metrics) startAtZero() {
	for _, reason := range []string{schema.ReasonNoCertificate, schema.ReasonUnknownIssuer, schema.ReasonIssuerRetired, schema.ReasonExpired,
		schema.ReasonSerialSuperseded, schema.ReasonNodeLocked, schema.ReasonNodeRemoved, schema.ReasonIdentityMismatch, schema.ReasonResultSignature} {
		m.refusals.WithLabelValues(reason)
	}
	for _, result := range []string{ResultIssued, string(schema.KindInvalidRequest), string(schema.KindUnauthenticated),
		string(schema.KindTokenConsumed), string(schema.KindTokenExpired), string(schema.KindInvalidNodeIdentity),
		string(schema.KindRateLimited), string(schema.KindServiceUnavailable), string(schema.KindInternal)} {
		for _, c := range m.issued {
			c.WithLabelValues(result)
		}
	}
	for _, limit := range []string{"node", "remote"} {
		m.limited.WithLabelValues(limit)
	}
	for _, priority := range []string{"recovery", "urgent", "other"} {
		for _, outcome := range []string{budgetGranted, budgetRefused} {
			m.budget.WithLabelValues(priority, outcome)
		}
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

// Dispatched records a task's first dispatch, waited after its creation.
func (m *Metrics) Dispatched(waited time.Duration) {
	m.dispatch.Observe(max(0, waited.Seconds()))
}

// Withheld counts a poll that skipped dispatch.
func (m *Metrics) Withheld() { m.withheld.Inc() }

// Signer sets whether Vault's task key is the verifier set's.
func (m *Metrics) Signer(ok bool) { m.signer.Set(asFloat(ok)) }

// LeaseKey sets whether this replica's lease key was delegated.
func (m *Metrics) LeaseKey(ok bool) { m.leaseKey.Set(asFloat(ok)) }

func asFloat(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}

// TaskEnded counts a stored result.
func (m *Metrics) TaskEnded(t task.Type, s task.Status) {
	m.tasks.WithLabelValues(string(t), string(s)).Inc()
}

// Outcomes of asking the issuance budget.
const (
	budgetGranted = "granted"
	budgetRefused = "refused"
)

// Issued counts a request for an identity: nil for an issued certificate.
func (m *Metrics) Issued(via trust.IssueMethod, err error) {
	result := ResultIssued
	if err != nil {
		result = string(schema.KindOf(err))
	}
	if c, ok := m.issued[via]; ok {
		c.WithLabelValues(result).Inc()
	}
}

// Budget counts an issuance that was asked of the budget and sets what is left.
func (m *Metrics) Budget(priority string, granted bool, left float64) {
	outcome := budgetRefused
	if granted {
		outcome = budgetGranted
	}
	m.budget.WithLabelValues(priority, outcome).Inc()
	m.budgetLeft.Set(left)
}

// Limited counts a request over the limit of a node or a remote address.
func (m *Metrics) Limited(limit string) { m.limited.WithLabelValues(limit).Inc() }

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
